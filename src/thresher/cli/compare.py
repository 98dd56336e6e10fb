"""`thresher scale compare`: engines side by side, or scaling rules on a real network."""

from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Literal

from thresher.cli.columns import columns
from thresher.cli.commands import Outcome
from thresher.cli.packs import ensure_pack
from thresher.errors import ThresherError

UNFINISHED = "unfinished.json"


@dataclass(frozen=True)
class Compare:
    engines: str = "ddp,horovod"
    """Engines to compare (without --hosts)."""
    workers: str = "1,2,4"
    """Numbers of workers on this machine (without --hosts)."""
    hosts: int = 0
    """Hosts of a test bed in network namespaces (needs root); 0: engines on this machine."""
    link: str = "1gbit"
    """Speed of each host's link: 100mbit, 1gbit, unlimited …"""
    models: str = ""
    """Networks; empty: alexnet-small, and on hosts googlenet-small as well."""
    batch_size: int = 32
    """Each worker's batch (strong scaling: the global one)."""
    scaling: Literal["weak", "strong"] = "weak"
    """How engines are given their batch; rules on hosts know their own."""
    compress: str = ""
    """Compressions, see `train --compress`; empty: none, and on hosts int8 as well."""
    bucket_mb: str = "1,5,25"
    """DDP's bucket sizes in MB."""
    fusion_mb: str = "0,128"
    """Horovod's fusion buffers in MB; 0 sends each gradient alone."""
    cycle_ms: str = "1,5"
    """Horovod's cycle times in milliseconds."""
    steps: int = 10
    """Steps to time of each setting."""
    image_size: int = 32
    """Side of the random images that engines are timed on."""
    rules: str = "strong,weak,weak+linear,weak+linear+warmup"
    """Scaling rules to compare on hosts."""
    data: str = "digits"
    """The pack that runs on hosts train on."""
    target_loss: float = 0.6
    """The test loss at which a run on hosts stops."""
    lr: float = 0.02
    """Learning rate of one worker on hosts."""
    epochs: float = 20.0
    """Where a run on hosts ends that does not reach the loss."""
    seeds: int = 1
    """Runs of each rule on hosts; times are given as their mean, least and most."""
    out: Path | None = None
    """Folder for compare.json, compare.png and what is done so far: the same command goes on."""


def compare(config: Compare) -> Outcome:
    """Compare DDP with Horovod on this machine, their knobs swept, with a timeline of one step; or,
    with --hosts, strong and weak scaling on hosts with real links, by time to a loss.
    """
    outcome = _rules(config) if config.hosts else _engines(config)
    if config.out is not None:
        from thresher.paths import write_json

        write_json(config.out / "compare.json", outcome.data)
        (config.out / UNFINISHED).unlink(missing_ok=True)
    return outcome


def _numbers(text: str, flag: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ThresherError(f'{flag} "{text}" is not a list of numbers', "--cycle-ms 1,5") from None


def _engines(config: Compare) -> Outcome:
    from thresher.lab.engines import compare_engines, settings
    from thresher.models.registry import check

    workers = [int(n) for n in _numbers(config.workers, "--workers")]
    if min(workers) < 1 or config.steps < 1 or config.batch_size < 1:
        raise ThresherError("workers, steps and batch must be one or more")
    swept = settings(
        config.engines.split(","),
        _numbers(config.bucket_mb, "--bucket-mb"),
        _numbers(config.fusion_mb, "--fusion-mb"),
        _numbers(config.cycle_ms, "--cycle-ms"),
    )
    model = (config.models or "alexnet-small").split(",")[0]
    check(model)
    rows = compare_engines(
        model,
        workers,
        swept,
        config.batch_size,
        config.scaling,
        config.compress or "none",
        config.image_size,
        steps=config.steps,
        kept=None if config.out is None else config.out / UNFINISHED,
    )
    data: dict[str, Any] = {
        "model": model,
        "scaling": config.scaling,
        "rows": [row.as_dict() for row in rows],
        "timelines": {
            row.engine: row.spans for row in rows if row.best and row.workers == max(workers)
        },
    }
    if config.out is not None:
        from thresher.report.comparison_figures import engines_figure

        data["figure"] = str(config.out / "compare.png")
        engines_figure(rows, config.out / "compare.png")
    table = columns(
        f"{model}, {config.scaling} scaling (milliseconds a step; * is each engine's best)",
        (
            "engine",
            "workers",
            "knobs",
            "compute",
            "step",
            "exposed",
            "hidden %",
            "images/s",
            "eff. %",
        ),
        [
            (
                f"{row.engine}{' *' if row.best else ''}",
                str(row.workers),
                f"buckets {row.bucket_mb:g} MB"
                if row.engine == "ddp"
                else f"fusion {row.fusion_mb:g} MB, cycle {row.cycle_ms:g} ms",
                f"{1e3 * row.compute_s:,.1f}",
                f"{1e3 * row.step_s:,.1f}",
                f"{1e3 * row.exposed_s:,.1f}",
                f"{100 * row.hidden:.0f} %" if row.workers > 1 else "–",
                f"{row.images_per_s:,.0f}",
                f"{100 * row.efficiency:.0f} %",
            )
            for row in rows
        ],
    )
    return Outcome(data, "\n".join([table, *_figure_line(data)]))


def _rules(config: Compare) -> Outcome:
    from thresher.data.pack import Pack
    from thresher.lab.rules import MODELS, as_rows, cells, compare_rules, verdicts
    from thresher.models.registry import check

    ensure_pack(config.data)
    Pack.open(config.data)
    if config.seeds < 1:
        raise ThresherError(f"--seeds {config.seeds} runs nothing", "give one or more")
    models = config.models.split(",") if config.models else list(MODELS)
    for model in models:
        check(model)
    trials = compare_rules(
        config.data,
        [1, config.hosts] if config.hosts > 1 else [1],
        config.link,
        models,
        config.rules.split(","),
        (config.compress or "none,int8").split(","),
        config.batch_size,
        config.lr,
        config.target_loss,
        config.epochs,
        config.seeds,
        None if config.out is None else config.out / "runs",
    )
    data: dict[str, Any] = {
        "link": config.link,
        "hosts": config.hosts,
        "seeds": config.seeds,
        "target_loss": config.target_loss,
        "rows": as_rows(trials),
        "verdicts": verdicts(trials),
    }
    if config.out is not None:
        from thresher.report.comparison_figures import rules_figure

        data["figure"] = str(config.out / "compare.png")
        rules_figure(trials, config.out / "compare.png")
    table = columns(
        f"{config.hosts} hosts, links of {config.link}, to a loss of {config.target_loss:g}",
        ("model", "rule", "hosts", "compress", "to the loss", "steps", "ms a step", "images/s"),
        [_rule_cells(cell) for cell in cells(trials)],
    )
    said = [
        f"{v['model']}, {v['compress']}, {v['hosts']} hosts: {v['first'] or 'no rule'} "
        + ("reached the loss first" if v["first"] else "reached the loss")
        + (f", {v['speed_up']:.2f}× one host" if v["speed_up"] else "")
        + f"; strong scaling was first in {v['strong_first_in']} of {v['seeds']}."
        for v in data["verdicts"]
    ]
    return Outcome(data, "\n".join([table, "", *said, *_figure_line(data)]))


def _rule_cells(runs: Any) -> tuple[str, ...]:
    """A line of the table: runs that differ in their seed only."""
    from thresher.lab.rules import seconds

    one, found = runs[0], seconds(runs)
    if found is None:
        missed = sum(run.seconds_to_loss is None for run in runs)
        reached = f"{missed} of {len(runs)} not"
    elif len(runs) == 1:
        reached = f"{found['mean']:,.1f} s"
    else:
        reached = f"{found['mean']:,.1f} s ({found['low']:,.1f}–{found['high']:,.1f})"
    return (
        one.model,
        one.rule,
        str(one.hosts),
        one.compress,
        reached,
        f"{mean(run.steps for run in runs):,.0f}",
        f"{1e3 * mean(run.step_s for run in runs):,.0f}",
        f"{mean(run.images_per_s for run in runs):,.0f}",
    )


def _figure_line(data: dict[str, Any]) -> list[str]:
    return [f"Figure: {data['figure']}"] if "figure" in data else []
