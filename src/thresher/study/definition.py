"""The content of a study file: options, axes, steps, and which values are compared.

`reading.py` reads the file; docs/studies.md shows one.
"""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from thresher.errors import InvalidValueError, nearest
from thresher.options import option
from thresher.study.command import COMMAND
from thresher.study.tasks import TaskKind, Values

FULL = "full"
"""Value of the axis `selection` that trains on all samples."""
ARM = "arm"
"""The axis whose values are the tables under [arms]: named groups of training options."""
SHARPNESS = ("top_eigenvalue", "loss_rise")
"""Metrics of runs with `sharpness`: the top Hessian eigenvalue, and by how much perturbed weights
raise the training loss."""
METRICS = (
    *("accuracy", "loss", "time_to_target", "steps_to_target", "seconds", "images_per_s"),
    *("train_loss", "validation_accuracy", *SHARPNESS),
)
"""Numbers of our own runs that can be compared; commands report others, too."""
LOWER_IS_BETTER = {
    *("loss", "error", "err", "mse", "rmse", "mae", "mape", "nll", "ppl", "perplexity", "bpc"),
    *("time", "seconds", "steps", "latency", "wer", "cer", "fid", "eigenvalue", "entropy", "brier"),
    *("logloss", "regret", "cost", "runtime", "ece", "losses", "errors"),
}
"""Words in the name of a metric of which less is better."""


@dataclass(frozen=True, kw_only=True)
class MetricConfig:
    """The axis that is compared, and the metric that decides."""

    compare: str | None = None
    """Axis whose values are compared; default: selection, arm, or the first axis with two values.
    """
    metric: str = "accuracy"
    """Number that is compared."""
    better: Literal["higher", "lower"] | None = None
    """Whether a higher or a lower metric is better; default: lower for losses, errors and times."""
    margin: float | None = option(None, ge=0)
    """Largest difference that counts as equivalent, in the unit of the metric, for accuracies in
    points (also if they are given as shares); default: 0.3 points, or 3 % of a time or loss."""


@dataclass(frozen=True, kw_only=True)
class ComparisonConfig(MetricConfig):
    """What is compared, and by which metric."""

    baseline: Any = option(None, only_with={"pairs": False})
    """Value that the others are compared with; default: the first."""
    pairs: tuple[tuple[Any, Any], ...] = ()
    """(value, baseline) pairs to compare; default: every pair of up to three values, otherwise
    each value with the baseline."""
    primary: tuple[str, ...] = ()
    """Comparisons that the study is made for, such as "network - full @ batch_size=6272"; they are
    corrected among themselves and the others are exploratory. Default: all are one family."""
    claimed: float | dict[str, float] | None = None
    """Effect that others claim for the primary comparisons, in the unit of the metric, or a table
    of effects by comparison; a verdict says whether the runs exclude it."""
    level: float | None = option(None, gt=0, le=0.05)
    """Threshold of the corrected p-values; default: 0.04, with which at most 5 % of studies without
    an effect report one. Lower it if several studies answer one question."""


@dataclass(frozen=True, kw_only=True)
class TuningConfig:
    """Which axes are tuned on the validation split."""

    tune: tuple[str, ...] = ()
    """Axes whose best value is chosen for each combination of the other axes."""
    tune_seeds: int | None = option(None, ge=1, only_with={"tune": True})
    """Run the candidates with this many seeds and the chosen one with all; default: all."""


@dataclass(frozen=True)
class StepDefinition:
    """`[steps.NAME]`: a run, features or selection that trials need."""

    name: str
    do: TaskKind
    settings: Values
    """Training options, embedding options, or a filter and its options."""
    each: tuple[str, ...] = ()
    """Axes (and `seed`) for each value of which the step runs separately."""
    draws: int | None = None
    """How often a step with `seed` in `each` runs at most; seeds take turns. None: for each."""

    @property
    def is_control(self) -> bool:
        """Whether the step is a random selection that matches another selection."""
        return self.settings.get("filter") == "random" and bool(self.settings.get("like"))


@dataclass(frozen=True, kw_only=True)
class StudyDefinition(ComparisonConfig, TuningConfig):
    """The validated content of a study file."""

    title: str = ""
    """Heading of the report."""
    seeds: tuple[int, ...] = option(ge=0)
    """Seeds; runs with the same seed are compared with each other."""
    base: Values = field(default_factory=dict)
    """Training options of every trial, or `command` and values for its placeholders."""
    grid: dict[str, list[Any]] = field(default_factory=dict)
    """Options and the values to try; every combination is run."""
    arms: dict[str, Values] = field(default_factory=dict)
    """Named groups of options: the values of the axis `arm`."""
    exclude: tuple[dict[str, list[Any]], ...] = ()
    """Combinations that are not run: tables of axes, with a value or a list of values each."""
    steps: dict[str, StepDefinition] = field(default_factory=dict)
    """Tasks that run before the trials."""
    executor: Values = field(default_factory=dict)
    """Where tasks run: `kind` and its options."""
    text: str = ""
    """The file as it was read, with its `format`: the copy in the study's folder."""

    @property
    def runs_command(self) -> bool:
        """Whether trials run a command instead of our own training."""
        return any(COMMAND in table for table in (self.base, *self.arms.values()))

    @property
    def axes(self) -> list[str]:
        """Every axis in file order, without the seed."""
        return [*self.grid, *([ARM] if self.arms else [])]

    @property
    def untuned_axes(self) -> list[str]:
        """The axes that are reported: those that are not tuned."""
        return [axis for axis in self.axes if axis not in self.tune]

    @property
    def cells(self) -> Iterator[Values]:
        """The combinations of values of the axes that are run; the last axis varies fastest."""
        for values in itertools.product(*map(self.values, self.axes)):
            cell = dict(zip(self.axes, values, strict=True))
            if not any(all(cell[a] in v for a, v in table.items()) for table in self.exclude):
                yield cell

    def values(self, axis: str) -> list[Any]:
        """Return the values of an axis."""
        return list(self.arms) if axis == ARM else self.grid[axis]

    @property
    def compared(self) -> str | None:
        """The axis that is compared; None if no axis has two values."""
        return self.compare or compared_axis({a: self.values(a) for a in self.untuned_axes})

    @property
    def compared_pairs(self) -> list[tuple[Any, Any]]:
        """The (value, baseline) pairs that are compared."""
        return compared_pairs(self, self.values(self.compared)) if self.compared else []


def check_metric(name: str) -> None:
    """Raise InvalidValueError unless runs of `thresher train` have the metric."""
    if name not in METRICS:
        raise InvalidValueError(f'metric cannot be "{name}"', nearest(name, METRICS), "metric")


def higher_is_better(config: ComparisonConfig) -> bool:
    """Return whether a larger value is better: as stated, or as the name of the metric says."""
    if config.better is not None:
        return config.better == "higher"
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", config.metric)  # also of valLoss
    return not LOWER_IS_BETTER & {word.lower() for word in words}


def compared_axis(axes: dict[str, list[Any]]) -> str | None:
    """Choose the axis to compare: selection, arm, or the first with two values."""
    varied = [axis for axis, values in axes.items() if len(values) > 1]
    return next((axis for axis in ("selection", ARM, *varied) if axis in varied), None)


def compared_pairs(config: ComparisonConfig, values: list[Any]) -> list[tuple[Any, Any]]:
    """Return the (value, baseline) pairs of the compared axis with these values."""
    if config.pairs:
        for at, pair in enumerate(config.pairs):
            # One comparison made twice would be corrected for as two.
            arm, baseline = pair
            if arm == baseline or {pair, (baseline, arm)} & set(config.pairs[:at]):
                what = "with itself" if arm == baseline else f"with {baseline} twice"
                raise InvalidValueError(f"pairs compares {arm} {what}", "remove that pair")
        return list(config.pairs)
    baseline = values[0] if config.baseline is None else config.baseline
    others = [value for value in values if value != baseline]
    pairs = [(value, baseline) for value in others]
    if len(values) == 3:
        pairs.append((others[1], others[0]))
    return pairs
