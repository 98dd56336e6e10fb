"""Compare strong with weak scaling on a test bed of hosts, with and without compression.

Every run is an ordinary `train` on hosts that each have the same share of a core. Rules are
compared by the training time to a given loss, evaluations not counted.
"""

import itertools
import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any, Literal, get_args

from thresher.data.pack import Pack
from thresher.distributed.names import Compress
from thresher.effect import names_shown
from thresher.errors import InvalidValueError
from thresher.lab.comparison import FIGURE, RESULT, ComparisonConfig
from thresher.lab.shares import enter_share, fair_share, host_shares
from thresher.lab.testbed import Testbed
from thresher.models.registry import check
from thresher.options import option, validate
from thresher.paths import scratch_folder, write_json
from thresher.progress import bar
from thresher.report.scaling_figures import SecondsBar, rules_figure
from thresher.training.config import TrainConfig
from thresher.training.folder import finished
from thresher.training.result import RunResult

logger = logging.getLogger(__name__)


Rule = Literal["strong", "weak", "weak+linear", "weak+linear+warmup"]
RULES: dict[Rule, dict[str, Any]] = {
    "strong": {"scaling": "strong", "lr_rule": "none"},
    "weak": {"scaling": "weak", "lr_rule": "none"},
    "weak+linear": {"scaling": "weak", "lr_rule": "linear"},
    "weak+linear+warmup": {"scaling": "weak", "lr_rule": "linear", "warmup_epochs": 2.0},
}
"""Training options by rule."""
MODELS = ("alexnet-small", "googlenet-small")
"""One network with large gradients, one with much computation."""
COMPRESS: tuple[Compress, ...] = ("none", "int8")
TIMEOUT_S = 1200.0


@dataclass(frozen=True, kw_only=True)
class RuleComparisonConfig(ComparisonConfig):
    """Options of `compare_rules`."""

    rules: tuple[Rule, ...] = option(get_args(Rule), only_with={"hosts": True})
    """Scaling rules to compare."""
    data: str = option("digits", only_with={"hosts": True})
    """The pack to train on."""
    target_loss: float = option(0.6, gt=0, only_with={"hosts": True})
    """The test loss at which a run stops."""
    lr: float = option(0.02, gt=0, only_with={"hosts": True})
    """Learning rate of one worker."""
    epochs: float = option(20.0, gt=0, only_with={"hosts": True})
    """Most epochs of a run that does not reach the loss."""
    seeds: int = option(1, ge=1, only_with={"hosts": True})
    """Runs of each rule."""


@dataclass(frozen=True)
class RuleRun:
    """One training run."""

    model: str
    rule: str
    """The scaling rule, or "one host"."""
    compress: str
    hosts: int
    seed: int
    link: str
    status: str
    seconds_to_loss: float | None
    """None if the loss was not reached."""
    steps: int
    samples: int
    step_s: float
    images_per_s: float
    loss: float | None
    accuracy: float | None


@dataclass(frozen=True)
class SecondsRange:
    """Seconds to the loss over seeds."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class RuleVerdict:
    """Which rule reached the loss first, for one network, compression and number of hosts."""

    model: str
    compress: str
    hosts: int
    seeds: int
    first: str | None
    """The rule with the least mean time, of those that reached the loss with every seed."""
    seconds: float | None
    speed_up: float | None
    """Against one host."""
    strong_first: bool | None
    strong_first_in: int
    """With how many seeds strong scaling was first."""
    rules: dict[str, SecondsRange | None]


@dataclass(frozen=True)
class RuleComparison:
    """Result of `compare_rules`."""

    link: str
    hosts: int
    seeds: int
    target_loss: float
    rows: list[RuleRun]
    verdicts: list[RuleVerdict]
    figure: Path | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the content of compare.json."""
        values = asdict(self)
        figure = values.pop("figure")
        return values if figure is None else {**values, "figure": str(figure)}


def compare_rules(config: RuleComparisonConfig) -> RuleComparison:
    """Train with every rule on one host and on `hosts` until `target_loss` or `epochs`.

    `batch_size` and `lr` are those of one worker; weak scaling multiplies the batch, the linear
    rule the learning rate. On one host all rules are the same run, which is done once for each
    seed. With `out`, the runs are kept in its folder `runs`, from which a call that was killed
    resumes.
    """
    validate(config)
    if config.hosts is None:
        raise InvalidValueError("hosts is required to compare scaling rules", "", "hosts")
    Pack.open(config.data)
    for model in config.models or MODELS:
        check(model)
    runs = _train_all(config, config.hosts)
    comparison = RuleComparison(
        config.link, config.hosts, config.seeds, config.target_loss, runs, verdicts(runs)
    )
    if config.out is not None:
        comparison = replace(comparison, figure=config.out / FIGURE)
        _draw(runs, config.out / FIGURE)
        write_json(config.out / RESULT, comparison.to_dict())
    return comparison


def rule_options(rule: Rule, hosts: int) -> dict[str, Any]:
    """Return the training options of a rule; on one host all have the same, without a warm-up."""
    return RULES["strong" if hosts == 1 else rule]


def _train_all(config: RuleComparisonConfig, hosts: int) -> list[RuleRun]:
    compress = config.compress or COMPRESS
    counts = (1, hosts) if hosts > 1 else (1,)
    # Seeds outermost: a comparison that is interrupted is complete for some of them.
    models = config.models or MODELS
    axes = itertools.product(range(config.seeds), models, compress, counts, config.rules)
    first = (compress[0], 1, config.rules[0])
    cases = [case for case in axes if case[3] > 1 or case[2:] == first]
    runs = []
    with ExitStack() as stack:
        temporary = stack.enter_context(scratch_folder("rules"))
        folder = temporary if config.out is None else config.out / "runs"
        bed = stack.enter_context(Testbed(hosts, config.link))
        shares = stack.enter_context(host_shares(hosts, fair_share(hosts)))
        if shares is None:
            logger.warning("no control groups: the hosts compete for the cores of this machine")
        shown = stack.enter_context(bar("training on hosts", len(cases), "runs"))
        for seed, model, compression, count, rule in cases:
            name = rule if count > 1 else "one host"
            shown.note(f"{model}, {name}, {compression}, {count} hosts, seed {seed}")
            run = TrainConfig(
                data=config.data,
                out=str(folder / f"{model}-{name}-{compression}-{count}x{config.link}-{seed}"),
                model=model,
                batch_size=config.batch_size,
                base_batch=config.batch_size,
                lr=config.lr,
                schedule="constant",
                epochs=config.epochs,
                target_loss=config.target_loss,
                seed=seed,
                device="cpu",
                flip=False,
                compress=compression,
                resume=True,
                **rule_options(rule, count),
            )
            result = finished(run)
            if result is None:
                order = {"config": run.to_dict(), "shares": shares}
                answer = bed.call("thresher.lab.rules:train_on_host", order, count, TIMEOUT_S)
                result = RunResult.from_dict(answer)
            reached = result.time_to_target
            runs.append(
                RuleRun(
                    *(model, name, compression, count, seed, config.link, result.status),
                    seconds_to_loss=None if reached is None else reached.seconds,
                    steps=result.steps,
                    samples=result.samples,
                    step_s=result.seconds / max(1, result.steps),
                    images_per_s=result.samples / result.seconds if result.seconds else 0.0,
                    loss=result.loss,
                    accuracy=result.accuracy,
                )
            )
            shown.advance()
    return runs


def train_on_host(order: Any) -> Any:
    """Train on one host of the test bed; the worker function of `compare_rules`."""
    from thresher.training.train import train

    config = TrainConfig.from_dict(order["config"])
    # After the imports, which would take long at a part of a core.
    if order["shares"]:
        enter_share(order["shares"][int(os.environ["RANK"])])
    with names_shown(None):  # rules are compared with the same options
        return train(config).to_dict()


def verdicts(runs: Sequence[RuleRun]) -> list[RuleVerdict]:
    """Find the rule that reached the loss first for each network, compression and host count."""
    results = []
    keys = dict.fromkeys((run.model, run.compress, run.hosts) for run in runs if run.hosts > 1)
    for model, compress, hosts in keys:
        same = [r for r in runs if (r.model, r.compress, r.hosts) == (model, compress, hosts)]
        ranges = {cell[0].rule: seconds_range(cell) for cell in by_seed(same)}
        means = {rule: times.mean for rule, times in ranges.items() if times is not None}
        alone = seconds_range(r for r in runs if r.model == model and r.hosts == 1)
        first = _fastest(means)
        seeds = {run.seed for run in same}
        winners = [_fastest(_seconds(r for r in same if r.seed == seed)) for seed in seeds]
        results.append(
            RuleVerdict(
                model=model,
                compress=compress,
                hosts=hosts,
                seeds=len(seeds),
                first=first,
                seconds=means[first] if first else None,
                speed_up=alone.mean / means[first] if alone and first else None,
                strong_first=first == "strong" if first else None,
                strong_first_in=winners.count("strong"),
                rules=ranges,
            )
        )
    return results


def by_seed(runs: Sequence[RuleRun]) -> list[list[RuleRun]]:
    """Group the runs that differ only in their seed."""
    groups: dict[tuple[str, str, str, int], list[RuleRun]] = {}
    for run in runs:
        groups.setdefault((run.model, run.rule, run.compress, run.hosts), []).append(run)
    return list(groups.values())


def seconds_range(runs: Iterable[RuleRun]) -> SecondsRange | None:
    """Return the seconds to the loss; None if any run did not reach it."""
    times = [run.seconds_to_loss for run in runs]
    reached = [time for time in times if time is not None]
    if not reached or len(reached) < len(times):
        return None
    return SecondsRange(mean(reached), min(reached), max(reached))


def _seconds(runs: Iterable[RuleRun]) -> dict[str, float]:
    return {run.rule: run.seconds_to_loss for run in runs if run.seconds_to_loss is not None}


def _fastest(times: dict[str, float]) -> str | None:
    return min(times, key=lambda rule: times[rule]) if times else None


def _draw(runs: Sequence[RuleRun], path: Path) -> None:
    panels: dict[str, Sequence[SecondsBar]] = {}
    for cell in by_seed(runs):
        run, times = cell[0], seconds_range(cell)
        title = f"{run.model}, links of {run.link}; mean, least and most of {len(cell)}"
        seconds = None if times is None else (times.mean, times.low, times.high)
        label = f"{run.rule}, {run.hosts} hosts, {run.compress}"
        shown = SecondsBar(label, seconds, highlighted=run.compress != "none")
        panels[title] = [*panels.get(title, ()), shown]
    rules_figure(panels, path)
