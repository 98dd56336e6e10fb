"""Tuning: choose values on the validation split, so that the test set only reports.

For each combination of the axes that are not tuned (a cell), the candidates are the combinations of
the tuned axes. The candidate with the best mean validation accuracy is chosen, and only its trials
are reported. This module does not read the test accuracy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from thresher.errors import InvalidValueError
from thresher.study.definition import StudyDefinition
from thresher.study.guessing import guess
from thresher.study.tasks import StudyPlan, StudyTask, Values

Key = tuple[Any, ...]
CLEARLY_WORSE = 0.01
"""Validation accuracy by which a choice must fall behind to be mentioned: one point."""


@dataclass(frozen=True)
class TuningCandidate:
    """One combination of the tuned axes."""

    values: Values
    """Values of the tuned axes."""
    validation_accuracy: float | None
    """Mean over seeds, from 0 to 1; None while trials are unfinished."""
    seeds: int
    """Number of finished trials."""


@dataclass(frozen=True)
class TuningChoice:
    """The candidates of one cell and the chosen one."""

    cell: Values
    """Values of the axes that are not tuned."""
    chosen: Values | None
    """Chosen values of the tuned axes; None while candidates are unfinished."""
    candidates: list[TuningCandidate]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        candidates = [
            {**c.values, "validation_accuracy": c.validation_accuracy, "seeds": c.seeds}
            for c in self.candidates
        ]
        return {"cell": self.cell, "chosen": self.chosen, "candidates": candidates}


def choices(study: StudyDefinition, plan: StudyPlan) -> list[TuningChoice]:
    """Return one choice per cell, in grid order; [] if nothing is tuned."""
    if not study.tune:
        return []
    seeds = set(study.seeds[: study.tune_seeds])
    groups: dict[Key, dict[Key, list[StudyTask]]] = {}
    for trial in plan.trials.values():
        if trial.seed in seeds:
            cell, values = _split(study, trial)
            groups.setdefault(cell, {}).setdefault(values, []).append(trial)
    return [
        _choose(dict(zip(study.untuned_axes, cell, strict=True)), tried, study.tune)
        for cell, tried in groups.items()
    ]


def _choose(cell: Values, tried: dict[Key, list[StudyTask]], tuned: Sequence[str]) -> TuningChoice:
    candidates = []
    for values, trials in tried.items():
        scores = [score for score in map(_validation, trials) if score is not None]
        mean = fmean(scores) if len(scores) == len(trials) else None
        named = dict(zip(tuned, values, strict=True))
        candidates.append(TuningCandidate(named, mean, len(scores)))
    # `max` takes the first of equals, so the order in the file decides ties.
    best = max(candidates, key=lambda candidate: candidate.validation_accuracy or 0.0)
    complete = all(candidate.validation_accuracy is not None for candidate in candidates)
    return TuningChoice(cell, best.values if complete else None, candidates)


def wanted_trials(study: StudyDefinition, plan: StudyPlan) -> list[StudyTask]:
    """Return the trials to run, as far as is known now.

    Without `tune_seeds` these are all trials. With it, every candidate runs with the first seeds,
    and the chosen candidate with the others once it is known.
    """
    return _trials(study, plan, study.seeds[: study.tune_seeds])


def number_of_trials(study: StudyDefinition, plan: StudyPlan, wanted: Sequence[StudyTask]) -> int:
    """Return how many trials are finished when the study is, as far as is known now.

    Finished trials that are no longer `wanted` count, too: `tune_seeds` or the candidates may have
    been changed after they ran.
    """
    if not study.tune:
        return len(plan.trials)
    finished = [trial for trial in plan.trials.values() if trial.finished]
    counted = {trial.name: trial for trial in (*wanted, *finished)}
    known = {(_split(study, trial)[0], trial.seed) for trial in counted.values()}
    # One candidate of each of the others will be chosen.
    others = {(_split(study, t)[0], t.seed) for t in plan.trials.values()} - known
    return len(counted) + len(others)


def rejected_trials(study: StudyDefinition, plan: StudyPlan) -> list[StudyTask]:
    """Return the trials that will not run, because another candidate was chosen in their cell."""
    wanted = {trial.name for trial in wanted_trials(study, plan)}
    others = [trial for trial in plan.trials.values() if trial.name not in wanted]
    if not others:
        return []
    chosen = {tuple(c.cell.values()) for c in choices(study, plan) if c.chosen is not None}
    return [trial for trial in others if _split(study, trial)[0] in chosen]


def reported_trials(study: StudyDefinition, plan: StudyPlan) -> list[StudyTask]:
    """Return the trials whose test results may be reported: those of the chosen candidates."""
    return _trials(study, plan, ())


def poor_choices(study: StudyDefinition, plan: StudyPlan) -> list[str]:
    """Return a sentence if the chosen values are worse with the seeds that did not choose them than
    other values are with those that did.

    Then too few seeds chose, as where some runs of a value end far below the others.
    """
    first = set(study.seeds[: study.tune_seeds])
    others: dict[Key, list[float]] = {}
    for trial in reported_trials(study, plan):
        # One that did not choose need not have reported any.
        score = None if trial.seed in first else _validation(trial, needed=False)
        if score is not None:
            others.setdefault(_split(study, trial)[0], []).append(score)
    poor = []
    for choice in choices(study, plan):
        scores = others.get(tuple(choice.cell.values()), [])
        rest = [c for c in choice.candidates if c.values != choice.chosen]
        best = max((c.validation_accuracy or 0.0 for c in rest), default=0.0)
        if scores and best - fmean(scores) > CLEARLY_WORSE:
            poor.append((best - fmean(scores), choice))
    if not poor:
        return []
    worst, example = max(poor, key=lambda item: item[0])
    where = " at ".join(filter(None, (_text(example.chosen), _text(example.cell))))
    return [
        f"In {len(poor)} of {len(others)} cells, what tuning chose is worse with the other seeds "
        "than another value is with those that chose, by up to "
        f"{100 * worst:.1f} points of validation accuracy ({where}): arms may differ by the luck "
        f"of the choice. Use more than {len(first)} `tune_seeds`."
    ]


def _text(values: Values | None) -> str:
    return ", ".join(f"{axis} {value}" for axis, value in (values or {}).items())


def _trials(study: StudyDefinition, plan: StudyPlan, seeds: Sequence[int]) -> list[StudyTask]:
    """Return the trials of the chosen candidates, and all with these seeds."""
    trials = list(plan.trials.values())
    if not study.tune or set(seeds) == set(study.seeds):
        return trials
    chosen = {
        tuple(choice.cell.values()): tuple(choice.chosen.values())
        for choice in choices(study, plan)
        if choice.chosen is not None
    }
    split = [(trial, *_split(study, trial)) for trial in trials]
    return [t for t, cell, values in split if t.seed in seeds or chosen.get(cell) == values]


def _split(study: StudyDefinition, trial: StudyTask) -> tuple[Key, Key]:
    """Return the values of the axes that are not tuned, and of those that are."""
    cell = trial.cell or {}
    fixed = tuple(value for axis, value in cell.items() if axis not in study.tune)
    return fixed, tuple(cell[axis] for axis in study.tune)


def _validation(trial: StudyTask, needed: bool = True) -> float | None:
    """Return the validation accuracy; None for an unfinished run.

    A run that diverged without one counts as guessing, as in reports.

    A command that ran before its study was tuned may not have reported one: that is an error if it
    is `needed`, otherwise None.
    """
    result = trial.result
    if not result:
        return None
    accuracy = result.get("validation_accuracy")
    if accuracy is None and result.get("status") == "diverged":
        classes = trial.recorded_data.get("classes")
        return guess(["validation_accuracy"], classes)["validation_accuracy"]
    if accuracy is None:
        if not needed:
            return None
        raise InvalidValueError(
            f"trial {trial.name} has no validation_accuracy, so `tune` cannot choose",
            f"remove {trial.out} to run it again",
        )
    return float(accuracy)
