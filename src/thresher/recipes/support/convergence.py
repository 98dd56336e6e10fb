"""How soon the runs of a study reach an accuracy, and how sharp the minimum is that they find."""

import json
from dataclasses import replace

from thresher.paths import RunPaths
from thresher.study.analysis import Analysis, analyse
from thresher.study.definition import ComparisonConfig
from thresher.study.results import Trial
from thresher.study.study import Study


def first_reached(run: RunPaths, accuracy: float) -> tuple[int, float] | None:
    """Return steps and seconds of the first evaluation with at least `accuracy`, from 0 to 1.

    Needs a run with `evaluate_every`; None if no evaluation is that good.
    """
    lines = run.metrics.read_text(encoding="utf-8").splitlines()
    for line in map(json.loads, lines):
        if line["kind"] == "epoch" and (line["accuracy"] or 0.0) >= accuracy:
            return line["step"], line["seconds"]
    return None


def trials_to(study: Study, accuracy: float) -> dict[str, list[Trial]]:
    """Return the trials with steps, and with seconds, to `accuracy` as their values.

    Runs that do not reach it have no value and are censored at their end. If the runs measure their
    sharpness, the trials with the top eigenvalue as their value are returned as well.
    """
    plan = study.plan()
    steps, times, sharp = [], [], []
    for trial in study.trials():
        if trial.state != "finished" or not trial.reported:
            continue
        cell = {k: v for k, v in trial.cell.items() if k not in study.definition.tune}
        reached = first_reached(RunPaths(plan.trials[trial.name].out), accuracy) or (None, None)
        same = replace(trial, cell=cell, correct=None)
        steps.append(replace(same, value=reached[0], end=trial.steps))
        times.append(replace(same, value=reached[1], end=trial.seconds))
        sharp.append(replace(same, value=trial.top_eigenvalue))
    measured = {"top_eigenvalue": sharp} if study.definition.base.get("sharpness") else {}
    return {"steps_to_target": steps, "time_to_target": times, **measured}


def compare_metrics(
    trials: dict[str, list[Trial]], axis: str, pair: tuple[str, str], level: float
) -> dict[str, Analysis]:
    """Compare two arms over all cells by each metric of `trials`."""
    return {
        metric: analyse(
            members,
            ComparisonConfig(
                compare=axis,
                pairs=(pair,),
                metric=metric,
                primary=(f"{pair[0]} - {pair[1]}",),
                level=level,
            ),
        )
        for metric, members in trials.items()
    }
