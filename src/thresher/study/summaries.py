"""Summaries of trials: mean and interval of each cell, cost of the study, preferred batch sizes.

A cell is one combination of the values of the axes that are not tuned; its trials differ in the
seed only.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from thresher.study.reported import TO_TARGET
from thresher.study.results import Trial
from thresher.study.tasks import Values
from thresher.study.tune import TuningChoice


@dataclass(frozen=True, kw_only=True)
class CellSummary:
    """The trials of one cell, over seeds."""

    cell: Values
    """Values of the axes that are not tuned."""
    chosen: Values | None = None
    """Values of the tuned axes; None if nothing is tuned or the choice is not made yet."""
    n: int
    """Number of finished trials with a value."""
    mean: float | None
    """Mean of the metric."""
    sd: float | None
    """Standard deviation over seeds; None for fewer than two."""
    low: float
    """Lower end of the 95 % interval of the mean; infinite for fewer than two trials."""
    high: float
    values: dict[int, float]
    """The metric by seed."""
    diverged: int
    """Number of trials that diverged."""
    missing: int
    """Number of trials that are not finished."""
    validation_accuracy: float | None
    """Mean validation accuracy in points."""
    seconds: float | None
    """Mean training time."""
    time_to_target: float | None
    """Mean time to the target, of the trials that reached it."""
    train_samples: float | None
    """Mean number of training samples."""
    draws: dict[int, dict[str, str]] = field(default_factory=dict, repr=False)
    """Which outcome of each random step a trial uses, by seed and name of the step."""
    censored: dict[int, float] = field(default_factory=dict, repr=False)
    """Seconds or steps at which trials ended without a value, by seed; infinite if one diverged or
    its end is not known."""
    correct: dict[int, np.ndarray] = field(default_factory=dict, repr=False, compare=False)
    """Which test images each trial predicts correctly, by seed."""
    tested_on: dict[int, str] = field(default_factory=dict, repr=False)
    """Digest of the ids of these images in their order, by seed, where it is known."""

    @property
    def digits(self) -> int:
        """Decimals that show the mean and its interval."""
        from thresher.study.statistics import decimals  # loads scipy

        mean = self.mean or 0.0
        return max(decimals(mean, size=mean), decimals(self.high - self.low, size=mean))

    def to_dict(self, tuned: bool) -> dict[str, Any]:
        """Return one flat row of JSON values; `chosen` is in it if anything is tuned."""
        left_out = ("cell", "chosen", "draws", "correct", "tested_on", "censored")
        row = {key: value for key, value in vars(self).items() if key not in left_out}
        return {**self.cell, **({"chosen": self.chosen} if tuned else {}), **row}


@dataclass(frozen=True)
class StudyCost:
    """What a study has cost so far."""

    trials: int
    """Number of finished trials."""
    device_hours: float
    """Training time times workers, in hours, training steps included."""
    images: float
    """Images trained on, training steps included."""
    devices: list[str]
    """GPUs or processors that were used."""
    mean_trial_seconds: float | None


@dataclass(frozen=True)
class PreferredBatch:
    """The best batch size for one combination of the other axes."""

    cell: Values
    """Values of the other axes."""
    batch_size: int
    as_good: list[int]
    """Batch sizes within the margin of the best."""
    chosen_by: str
    """What chose: "validation accuracy", or "metric"."""


def summarise(
    trials: Sequence[Trial],
    axes: Sequence[str],
    choices: Sequence[TuningChoice] = (),
    planned: Iterable[Values] = (),
) -> list[CellSummary]:
    """Summarise trials by the values of `axes`, in order of appearance.

    Cells in `planned` come first, also those without trials.
    """
    from thresher.study.statistics import mean_and_sd, mean_interval  # loads scipy

    chosen = {tuple(choice.cell.values()): choice.chosen for choice in choices}
    groups: dict[tuple[Any, ...], list[Trial]] = {
        tuple(cell[axis] for axis in axes): [] for cell in planned
    }
    for trial in trials:
        groups.setdefault(tuple(trial.cell[axis] for axis in axes), []).append(trial)
    summaries = []
    for key, members in groups.items():
        finished = [trial for trial in members if trial.state == "finished"]
        values = {trial.seed: trial.value for trial in finished if trial.value is not None}
        numbers = np.array(list(values.values()), float)
        low, high = mean_interval(numbers)
        average, sd = next(iter(values.values()), None), None
        if len(values) > 1:
            average, sd = mean_and_sd(numbers)
        summaries.append(
            CellSummary(
                cell=dict(zip(axes, key, strict=True)),
                chosen=chosen.get(key),
                n=len(values),
                mean=average if average is None else float(average),
                sd=sd,
                low=low,
                high=high,
                values=values,
                diverged=sum(trial.status == "diverged" for trial in finished),
                missing=len(members) - len(finished),
                validation_accuracy=mean(trial.validation_accuracy for trial in finished),
                seconds=mean(trial.seconds for trial in finished),
                time_to_target=mean(trial.time_to_target for trial in finished),
                train_samples=mean(trial.train_samples for trial in finished),
                draws={trial.seed: trial.draws for trial in finished if trial.draws},
                censored={t.seed: _end(t) for t in finished if t.value is None},
                correct={t.seed: t.correct for t in finished if t.correct is not None},
                tested_on={t.seed: t.tested_on for t in finished if t.tested_on},
            )
        )
    return summaries


def unpaired(
    cells: Sequence[CellSummary], axis: str | None, pairs: Sequence[tuple[Any, Any]]
) -> list[str]:
    """Return a sentence on runs for which no arm that theirs is compared with has the same seed."""
    if axis is None:
        return []
    partners: dict[Any, set[Any]] = {}
    for arm, baseline in pairs:
        partners.setdefault(arm, set()).add(baseline)
        partners.setdefault(baseline, set()).add(arm)
    by_cell = {tuple(cell.cell.values()): cell.values.keys() for cell in cells}
    alone = 0
    for cell in cells:
        others = partners.get(cell.cell[axis], ())
        keys = [tuple((cell.cell | {axis: arm}).values()) for arm in others]
        if keys:
            alone += len(set(cell.values).difference(*(by_cell.get(key, ()) for key in keys)))
    if not alone:
        return []
    text = "1 run has" if alone == 1 else f"{alone} runs have"
    return [
        f"{text} no partner with the same seed and other axes, so the verdicts leave "
        f"{'it' if alone == 1 else 'them'} out."
    ]


def _end(trial: Trial) -> float:
    """Return when a trial was last seen without its target; infinite if that is not known, or if it
    diverged and never gets there."""
    last = trial.seconds if trial.end is None else trial.end
    return math.inf if trial.status == "diverged" or not last else last


def preferred_batches(
    cells: Sequence[CellSummary],
    margin: float,
    higher_is_better: bool = True,
    metric: str = "accuracy",
) -> list[PreferredBatch]:
    """Return the best batch size for each combination of the other axes.

    The metric chooses; in place of the test accuracy, the validation accuracy if every cell has
    one. Of times to a target, the batch size that fewest runs did not reach it with comes first.
    """
    sign = 1 if higher_is_better else -1
    groups: dict[tuple[Any, ...], list[CellSummary]] = {}
    for summary in cells:
        if "batch_size" in summary.cell and summary.mean is not None:
            groups.setdefault(tuple(_others(summary).values()), []).append(summary)
    preferred = []
    for members in groups.values():
        held_out = all(member.validation_accuracy is not None for member in members)
        by = "validation_accuracy" if held_out and metric == "accuracy" else "mean"
        # Of times to a target, the mean is that of the lucky runs.
        least = min(map(_missed, members)) if metric in TO_TARGET else 1.0
        sound = [member for member in members if _missed(member) <= least]
        best = max(sound, key=lambda member: sign * getattr(member, by))
        top = getattr(best, by)
        near = [m for m in sound if sign * (top - getattr(m, by)) <= margin]
        preferred.append(
            PreferredBatch(
                cell=_others(best),
                batch_size=best.cell["batch_size"],
                as_good=sorted(member.cell["batch_size"] for member in near),
                chosen_by="metric" if by == "mean" else "validation accuracy",
            )
        )
    return preferred


def _missed(summary: CellSummary) -> float:
    """Return the share of the finished trials that have no value."""
    return len(summary.censored) / max(1, len(summary.censored) + summary.n)


def _others(summary: CellSummary) -> Values:
    return {axis: value for axis, value in summary.cell.items() if axis != "batch_size"}


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None; None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def describe_cell(cell: Values) -> str:
    """Return a cell in words: `batch size 1,024, lr 0.1`."""
    return ", ".join(f"{axis.replace('_', ' ')} {format_value(v)}" for axis, v in cell.items())


def format_value(value: Any) -> str:
    """Return a value of an axis as text, integers with thousands separators."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
