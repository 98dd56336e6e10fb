"""Validation chooses, test reports: the best values of the tuned axes, per cell.

A cell is one combination of the axes that are not tuned. Its candidates are the combinations of
the tuned axes; the one with the best mean accuracy on the validation split is chosen, and only its
runs are reported. The test accuracy is not read here.
"""

from dataclasses import dataclass
from typing import Any

from thresher.paths import RunPaths, read_json
from thresher.study.definition import StudyDefinition
from thresher.study.tasks import StudyPlan, StudyTask

Key = tuple[Any, ...]


@dataclass(frozen=True)
class Choice:
    """What tuning chose in one cell."""

    cell: dict[str, Any]
    """The axes that are not tuned."""
    chosen: dict[str, Any] | None
    """Values of the tuned axes; None while candidates are unfinished."""
    candidates: list[dict[str, Any]]
    """Each with its values, the mean `validation_accuracy` (None: unfinished) and `seeds`."""


def choices(study: StudyDefinition, plan: StudyPlan) -> list[Choice]:
    """One choice per cell, in the order of the grid; [] where nothing is tuned."""
    if not study.tune:
        return []
    seeds = set(study.seeds[: study.tune_seeds] if study.tune_seeds else study.seeds)
    groups: dict[Key, dict[Key, list[StudyTask]]] = {}
    for trial in plan.trials.values():
        if trial.seed in seeds:
            cell, values = _split(study, trial)
            groups.setdefault(cell, {}).setdefault(values, []).append(trial)
    free = [axis for axis in study.axes if axis not in study.tune]
    found = []
    for cell, tried in groups.items():
        candidates: list[dict[str, Any]] = []
        for values, trials in tried.items():
            scores = [_validation(trial) for trial in trials]
            known = [score for score in scores if score is not None]
            candidates.append(
                {
                    **dict(zip(study.tune, values, strict=True)),
                    "validation_accuracy": sum(known) / len(known)
                    if len(known) == len(scores)
                    else None,
                    "seeds": len(known),
                }
            )
        # The first of equals: the order of the file decides, not chance.
        scored = [c for c in candidates if c["validation_accuracy"] is not None]
        best = max(scored, key=lambda c: c["validation_accuracy"], default=None)
        whole = best is not None and len(scored) == len(candidates)
        chosen = {axis: best[axis] for axis in study.tune} if best is not None and whole else None
        found.append(Choice(dict(zip(free, cell, strict=True)), chosen, candidates))
    return found


def wanted_trials(study: StudyDefinition, plan: StudyPlan) -> list[StudyTask]:
    """The trials to run as far as is known now.

    Without `tune_seeds` all of them. With it, every candidate runs with the first seeds only, and
    the chosen one with the rest once it is known.
    """
    if not study.tune or not study.tune_seeds:
        return list(plan.trials.values())
    chosen = chosen_values(study, plan)
    first = set(study.seeds[: study.tune_seeds])
    wanted = []
    for trial in plan.trials.values():
        cell, values = _split(study, trial)
        if trial.seed in first or chosen.get(cell) == values:
            wanted.append(trial)
    return wanted


def reported_trials(study: StudyDefinition, plan: StudyPlan) -> list[StudyTask]:
    """The trials whose test results may be reported: those of the chosen candidates."""
    if not study.tune:
        return list(plan.trials.values())
    chosen = chosen_values(study, plan)
    split = ((trial, _split(study, trial)) for trial in plan.trials.values())
    return [trial for trial, (cell, values) in split if chosen.get(cell) == values]


def chosen_values(study: StudyDefinition, plan: StudyPlan) -> dict[Key, Key]:
    """Per cell the chosen values, for the cells that are decided."""
    return {
        tuple(choice.cell.values()): tuple(choice.chosen.values())
        for choice in choices(study, plan)
        if choice.chosen is not None
    }


def _split(study: StudyDefinition, trial: StudyTask) -> tuple[Key, Key]:
    assert trial.cell is not None
    cell = tuple(value for axis, value in trial.cell.items() if axis not in study.tune)
    return cell, tuple(trial.cell[axis] for axis in study.tune)


def _validation(trial: StudyTask) -> float | None:
    """A diverged run has no accuracy: it is the worst there is, and not a gap."""
    paths = RunPaths(trial.out)
    if not paths.result.exists():
        return None
    result = read_json(paths.result, "run's result")
    accuracy = result.get("validation_accuracy")
    return float(accuracy) if accuracy is not None else 0.0
