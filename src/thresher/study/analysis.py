"""Analyse a study: which arm is better, with error bars. Only numbers; `report` draws them."""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from thresher import options
from thresher.errors import InvalidValueError, nearest
from thresher.study.comparisons import ArmComparison, MetricScale, compare_cells
from thresher.study.definition import (
    METRICS,
    ComparisonConfig,
    compared_axis,
    compared_pairs,
    higher_is_better,
)
from thresher.study.draws import notes
from thresher.study.equal_training import unequal_samples
from thresher.study.history import changes, left_out
from thresher.study.power import DECISION
from thresher.study.preflight import option_remarks
from thresher.study.primary import Compared, named_comparisons
from thresher.study.reading import check_axis_name
from thresher.study.reported import POINTS, TO_TARGET
from thresher.study.results import (
    Trial,
    changed_networks,
    open_data,
    plain_trial,
    read_trials,
    to_json_values,
)
from thresher.study.rounding import image_step, written_step
from thresher.study.selecting import hold_out
from thresher.study.status import StudyStatus
from thresher.study.study import Study
from thresher.study.summaries import CellSummary, StudyCost, mean, summarise, unpaired
from thresher.study.tasks import StudyPlan, StudyTask
from thresher.study.tune import TuningChoice, choices, poor_choices

UNITS = {
    "time_to_target": "s",
    "steps_to_target": "steps",
    "seconds": "s",
    "images_per_s": "images/s",
    **dict.fromkeys(POINTS, "points"),
}
MARGIN_POINTS = 0.3
MARGIN_SHARE = 0.03


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """The comparisons of a study and the numbers behind them."""

    verdicts: list[ArmComparison]
    """Comparisons over all cells first, then cell by cell."""
    cells: list[CellSummary]
    """Mean and interval of each combination of the axes that are not tuned."""
    trials: list[Trial]
    """Every trial except candidates that tuning rejected before they ran."""
    choices: list[TuningChoice] = field(default_factory=list)
    """What tuning chose; [] if nothing is tuned."""
    axes: list[str]
    """The axes that are not tuned."""
    tuned: tuple[str, ...] = ()
    """The axes that are tuned."""
    compared: str | None
    """The axis that is compared; None if no axis has two values."""
    metric: str
    unit: str
    """"points", "s", "steps", "images/s", or "" for a loss."""
    margin: float
    """Largest difference that counts as equivalent."""
    level: float
    """Threshold of the corrected p-values."""
    higher_is_better: bool
    cost: StudyCost
    notes: list[str] = field(default_factory=list)
    """What limits the verdicts: comparisons that were changed after runs had finished, arms without
    runs, and draws that all seeds share."""
    resolution: float = 0.0
    """Smallest step of the metric, whose rounding is part of the error: one test image, or the last
    decimal of the values; 0 if they are exact."""
    title: str = ""
    study: Study | None = field(default=None, repr=False)
    """The study; None if trials were given."""
    plan: StudyPlan | None = field(default=None, repr=False)
    status: StudyStatus | None = field(default=None, repr=False)

    @property
    def complete(self) -> bool:
        """Whether every trial is finished."""
        return self.status is None or self.status.complete

    @property
    def overall(self) -> list[ArmComparison]:
        """The comparisons over all cells; all comparisons if there is only one cell."""
        return [c for c in self.verdicts if not c.cell] or self.verdicts

    @property
    def headlines(self) -> list[ArmComparison]:
        """The primary comparisons, then those over all cells."""
        primary = [c for c in self.verdicts if c.primary]
        return [*primary, *(c for c in self.overall if c not in primary)]

    def label(self, name: str = "") -> str:
        """Return the metric, or another name of it, with the unit of its means."""
        unit = "%" if self.unit == "points" else self.unit  # in which accuracies differ
        return f"{name or self.metric.replace('_', ' ')} ({unit})".replace(" ()", "")

    def to_dict(self) -> dict[str, Any]:
        """Return the output of `thresher study report --json`."""
        keys = ("title", "metric", "unit", "margin", "level", "resolution", "higher_is_better")
        values = {
            **{key: getattr(self, key) for key in keys},
            "complete": self.complete,
            "verdicts": [comparison.to_dict() for comparison in self.verdicts],
            "notes": self.notes,
            "cells": [cell.to_dict(bool(self.tuned)) for cell in self.cells],
            "choices": [choice.to_dict() for choice in self.choices],
            "cost": asdict(self.cost),
            "trials": [trial.to_dict() for trial in self.trials],
        }
        return to_json_values(values)


def analyse(
    study: Study | Path | str | Sequence[Trial], config: ComparisonConfig | None = None
) -> Analysis:
    """Compare the arms of a study, paired by seed.

    Unfinished trials are left out, so a study can be analysed while it runs.

    Args:
        study: A study, its folder, or trials of any training program.
        config: Which axis, values and metric to compare; default: as the study file says, or for
            trials the first axis with two values.

    Raises:
        NotFoundError: The folder does not hold a study.
        InvalidValueError: `config` names an axis or value that the trials do not have, two trials
            have the same axes and seed, an axis is called as a column of results, a value is not
            finite, that of an axis is missing, a seed is no integer, or accuracies are shares.

    Example:
        >>> from thresher import analyse
        >>> from thresher.study.results import Trial
        >>> accuracy = {"full": [91.0, 91.4, 90.9], "filtered": [93.1, 93.3, 92.8]}
        >>> trials = [
        ...     Trial(cell={"selection": arm}, seed=seed, value=value)
        ...     for arm, values in accuracy.items()
        ...     for seed, value in enumerate(values)
        ... ]
        >>> (comparison,) = analyse(trials).verdicts
        >>> comparison.verdict, round(comparison.difference, 2)
        ('better', 1.97)
    """
    if isinstance(study, str | Path):
        study = Study.open(study)
    if isinstance(study, Study):
        return _analyse_study(study, config)
    trials = [plain_trial(trial) for trial in study]
    names = list(trials[0].cell) if trials else []
    for name in names:
        check_axis_name(name)
    runs: set[tuple[Any, ...]] = set()
    for trial in trials:
        if set(trial.cell) != set(names):
            raise InvalidValueError(
                f"trials must have the same axes, got {sorted(names)} and {sorted(trial.cell)}"
            )
        if trial.value is not None and not math.isfinite(trial.value):
            raise InvalidValueError(
                f"the value of a trial must be a finite number, got {trial.value} "
                f"({trial.cell}, seed {trial.seed})",
                "give None for a trial without a result",
            )
        run = (trial.seed, *(trial.cell[name] for name in names))
        if trial.reported and run in runs:
            raise InvalidValueError(
                f"two trials are the same run: {trial.cell}, seed {trial.seed}",
                "give them different seeds",
            )
        runs.add(run)
    config = config or ComparisonConfig()
    _check_points(trials, config)
    axes = {name: list(dict.fromkeys(trial.cell[name] for trial in trials)) for name in names}
    return _build(trials, axes, config, cost=_cost(trials, []))


def _check_points(trials: Sequence[Trial], config: ComparisonConfig) -> None:
    """Refuse accuracies that are not in percent, unless a margin tells their unit.

    Shares from 0 to 1 would all be equivalent within 0.3 points.
    """
    values = [trial.value for trial in trials if trial.value is not None]
    if config.metric not in POINTS or config.margin is not None:
        return
    fix = "give 100 times the shares, or set another `metric` or a `margin`"
    for value in values:
        if not 0 <= value <= 100:
            raise InvalidValueError(f"{config.metric} must be in [0, 100], got {value:g}", fix)
    if any(values) and max(values) <= 1:
        raise InvalidValueError(
            f"{config.metric} must be in points (percent), but no value is above 1", fix
        )


def _analyse_study(study: Study, config: ComparisonConfig | None) -> Analysis:
    definition, plan, status = study.definition, study.plan(), study.status()
    config = config or definition
    trials = read_trials(definition, plan, status, config.metric)
    remarks = changes(study.root, config, status.count("finished")) + left_out(study.root, plan)
    remarks += option_remarks(plan) + changed_networks(trials) + poor_choices(definition, plan)
    if definition.tune and config.metric in TO_TARGET:
        remarks.append(
            f"{', '.join(definition.tune)} was tuned by validation accuracy, which is about equal "
            "in all runs that stop at a target: the chosen value need not be the fastest."
        )
    if definition.tune and config.metric == "validation_accuracy":
        remarks.append(
            f"{', '.join(definition.tune)} was tuned by the validation accuracy that is compared: "
            "it is too high, the more so the more values an arm tried. Test images show how much."
        )
    return _build(
        trials,
        {axis: definition.values(axis) for axis in definition.untuned_axes},
        config,
        _resolution(plan, config.metric) if config.metric in POINTS else 0.0,
        remarks,
        choices=choices(definition, plan),
        tuned=definition.tune,
        cost=_cost(trials, list(plan.steps.values())),
        title=definition.title,
        study=study,
        plan=plan,
        status=status,
    )


def _build(
    trials: list[Trial],
    axes: dict[str, list[Any]],
    config: ComparisonConfig,
    resolution: float = 0.0,
    remarks: Sequence[str] = (),
    **known: Any,
) -> Analysis:
    """Compare the reported trials; `axes` are those that are not tuned, with their values."""
    options.validate(config)
    axis = config.compare or compared_axis(axes)
    if axis is not None and axis not in axes:
        raise InvalidValueError(f'"{axis}" is not an axis of the trials', nearest(axis, axes))
    values = axes[axis] if axis is not None else []
    pairs = compared_pairs(config, values) if values else []
    for value in (value for pair in pairs for value in pair if value not in values):
        hint = nearest(str(value), map(str, values))
        raise InvalidValueError(f'"{value}" is not a value of {axis}', hint)
    reported = [trial for trial in trials if trial.reported]
    if config.metric == "steps_to_target":
        # Seconds are not steps; the end of a run that does not say its steps is not known.
        ends = ((t.end if t.end is not None else t.steps) or math.inf for t in reported)
        reported = [replace(t, end=end) for t, end in zip(reported, ends, strict=True)]
    # Without test images to count, as for runs made elsewhere, the digits show the rounding.
    numbers = [t.value for t in reported if t.value is not None]
    resolution = resolution or written_step(numbers)
    if not resolution and config.metric in POINTS:
        resolution = image_step(numbers)
    study: Study | None = known.get("study")
    planned = list(study.definition.cells) if study is not None else []
    cells = summarise(reported, list(axes), known.get("choices", ()), planned)
    unit, higher = UNITS.get(config.metric, ""), higher_is_better(config)
    margin, level = _margin(config, cells), config.level or DECISION
    censored = config.metric in TO_TARGET
    scale = MetricScale(unit or config.metric, margin, higher, resolution, censored, level)
    named = named_comparisons(config, Compared(axes, axis, pairs, [c.cell for c in cells]))
    verdicts, remarks = [], list(remarks)
    if axis is not None:
        verdicts = compare_cells(cells, axis, pairs, scale, named)
        remarks += notes(cells, axis) + unequal_samples(reported, axes, axis, pairs)
    remarks += _without_value(reported, config.metric)
    if study is None and not censored:
        remarks += unpaired(cells, axis, pairs)
    remarks += _stopped(reported, config.metric)
    return Analysis(
        verdicts=verdicts,
        cells=cells,
        trials=trials,
        axes=list(axes),
        compared=axis,
        metric=config.metric,
        unit=unit,
        margin=margin,
        level=level,
        higher_is_better=higher,
        notes=remarks + _doubts(cells, config, higher),
        resolution=resolution,
        **known,
    )


def _without_value(trials: Sequence[Trial], metric: str) -> list[str]:
    """Return a sentence about finished runs that do not have the metric, such as the accuracy on
    data without test images."""
    without = [t for t in trials if t.state == "finished" and t.value is None]
    if not without or metric in TO_TARGET:
        return []
    text = "1 finished run has" if len(without) == 1 else f"{len(without)} finished runs have"
    diverged = sum(t.status == "diverged" for t in without)
    hint = f" ({diverged} of them diverged)" if diverged else ""
    if metric == "accuracy" and any(t.validation_accuracy is not None for t in without):
        hint = '; metric = "validation_accuracy" compares them'
    return [f"{text} no {metric.replace('_', ' ')}, so the verdicts leave them out{hint}."]


def _stopped(trials: Sequence[Trial], metric: str) -> list[str]:
    """Return a sentence about runs that trained only until their target."""
    count = sum(trial.status == "target" for trial in trials)
    if not count or metric in (*TO_TARGET, "seconds", "images_per_s"):
        return []
    text = "1 run" if count == 1 else f"{count} of {len(trials)} runs"
    return [
        f"{text} stopped at the target, so the {metric.replace('_', ' ')} is that of unequal "
        f'training; metric = "{TO_TARGET[1]}" compares how soon runs reach it.'
    ]


def _doubts(cells: list[CellSummary], config: ComparisonConfig, higher: bool) -> list[str]:
    """Return a sentence for what was assumed about a metric, and for seeds that change nothing."""
    texts = []
    if config.metric not in METRICS and config.better is None:
        word, other = ("higher", "lower") if higher else ("lower", "higher")
        texts.append(
            f'A {word} {config.metric} counts as better; if it does not, set better = "{other}".'
        )
        if "acc" in config.metric.lower() and config.margin is None:
            texts.append("Call it accuracy to have differences in points, and their usual margin.")
    varied = [cell for cell in cells if cell.n > 1]
    if varied and all(len(set(cell.values.values())) == 1 for cell in varied):
        texts.append(
            "All seeds of a setting have exactly the same result, so the spread between seeds is "
            "not known and the verdicts cannot be trusted; check that the seed is used."
        )
    return texts


def _margin(config: ComparisonConfig, cells: list[CellSummary]) -> float:
    if config.margin is not None:
        return float(config.margin)
    if config.metric in POINTS:
        return MARGIN_POINTS
    size = mean(abs(cell.mean) for cell in cells if cell.mean is not None)
    return MARGIN_SHARE * (1.0 if size is None else size)


def _resolution(plan: StudyPlan, metric: str) -> float:
    """Return the points that one image is worth, of the fewest that trials are tested or validated
    on; 0 if neither the data is here nor a run recorded their number, and for commands."""
    packs, counts = open_data(plan), []
    # Of the trials with the same images, a finished one. A command may be tested on any.
    own = (trial for trial in plan.trials.values() if trial.kind != "command")
    ordered = sorted(own, key=lambda trial: trial.finished)
    trials = {(t.settings.get("data"), hold_out(t.settings)): t for t in ordered}
    for (data, held), trial in trials.items():
        pack = packs[data]
        if pack is None:
            key = "test" if metric == "accuracy" else "validation"
            counts.append(trial.recorded_data.get(key) or 0)
        elif metric == "accuracy":
            counts.append(pack.meta.splits[pack.test_split] if pack.test_split else 0)
        elif split := held.own_split(pack):
            counts.append(pack.meta.splits[split])
        else:
            with contextlib.suppress(InvalidValueError):  # its trials failed
                counts.append(int(held.mask(pack).sum()))
    return 100.0 / min(filter(None, counts), default=math.inf)


def _cost(trials: list[Trial], tasks: Sequence[StudyTask]) -> StudyCost:
    done = [trial for trial in trials if trial.seconds is not None]
    steps = [step.result for step in tasks if step.kind == "train"]
    seconds = sum((trial.seconds or 0.0) * (trial.workers or 1) for trial in done)
    seconds += sum(
        (r.get("seconds") or 0.0) * r.get("resolved", {}).get("workers", 1) for r in steps
    )
    images = sum(trial.samples or 0 for trial in done)
    return StudyCost(
        trials=len(done),
        device_hours=seconds / 3600,
        images=images + sum(result.get("samples") or 0 for result in steps),
        devices=sorted({trial.device for trial in done if trial.device}),
        mean_trial_seconds=mean(trial.seconds for trial in done),
    )
