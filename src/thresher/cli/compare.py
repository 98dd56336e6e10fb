"""`thresher scale compare`: compare engines, or scaling rules on a test bed of hosts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from thresher.cli.columns import columns
from thresher.cli.commands import Outcome
from thresher.cli.packs import ensure_pack
from thresher.lab import rules
from thresher.lab.engines import EngineComparison, EngineComparisonConfig, compare_engines


@dataclass(frozen=True, kw_only=True)
class Compare(EngineComparisonConfig, rules.RuleComparisonConfig):
    """Options of `thresher scale compare`."""


def compare(config: Compare) -> Outcome:
    """Compare DDP with Horovod on this machine, with a timeline of one step; or, with `hosts`,
    strong with weak scaling on hosts with limited links, by time to a loss.
    """
    if config.hosts is None:
        engines = compare_engines(config)
        return Outcome(engines.to_dict(), _engines(engines))
    ensure_pack(config.data)
    result = rules.compare_rules(config)
    return Outcome(result.to_dict(), _rules(result))


def _engines(comparison: EngineComparison) -> str:
    table = columns(
        f"{comparison.model}, {comparison.scaling} scaling (milliseconds per step; * marks the "
        "best setting of each engine)",
        "engine|workers|setting|compute|step|exposed|hidden %|images/s|eff. %",
        [
            (
                f"{row.engine}{' *' if row.best else ''}",
                str(row.workers),
                row.label,
                *(f"{1e3 * s:,.1f}" for s in (row.compute_s, row.step_s, row.exposed_s)),
                f"{100 * row.hidden:.0f} %" if row.workers > 1 else "–",
                f"{row.images_per_s:,.0f}",
                f"{100 * row.efficiency:.0f} %",
            )
            for row in comparison.rows
        ],
    )
    return "\n".join([table, *_figure(comparison.figure)])


def _rules(comparison: rules.RuleComparison) -> str:
    table = columns(
        f"{comparison.hosts} hosts, links of {comparison.link}, to a loss of "
        f"{comparison.target_loss:g}",
        "model|rule|hosts|compress|to the loss|steps|ms per step|images/s",
        [_rule_cells(runs) for runs in rules.by_seed(comparison.rows)],
    )
    sentences = [
        f"{v.model}, {v.compress}, {v.hosts} hosts: {v.first or 'no rule'} reached the loss"
        + (" first" if v.first else "")
        + (f", {v.speed_up:.2f}× one host" if v.speed_up else "")
        + f"; strong scaling was first in {v.strong_first_in} of {v.seeds} seeds."
        for v in comparison.verdicts
    ]
    return "\n".join([table, "", *sentences, *_figure(comparison.figure)])


def _rule_cells(runs: Sequence[rules.RuleRun]) -> tuple[str, ...]:
    first, times = runs[0], rules.seconds_range(runs)
    if times is None:
        missed = sum(run.seconds_to_loss is None for run in runs)
        reached = f"not in {missed} of {len(runs)}"
    elif len(runs) == 1:
        reached = f"{times.mean:,.1f} s"
    else:
        reached = f"{times.mean:,.1f} s ({times.low:,.1f}–{times.high:,.1f})"
    return (
        *(first.model, first.rule, str(first.hosts), first.compress, reached),
        f"{mean(run.steps for run in runs):,.0f}",
        f"{1e3 * mean(run.step_s for run in runs):,.0f}",
        f"{mean(run.images_per_s for run in runs):,.0f}",
    )


def _figure(path: Path | None) -> list[str]:
    return [] if path is None else [f"Figure: {path}"]
