"""Claim O4 (Gahlot et al. 2020), the mechanism: faster convergence and a smoother loss.

Three arms at the paper's batch of 6,272, on the same footing as `ornl-fig7`, with an evaluation
after every epoch and a measurement of sharpness at the end.
"""

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from thresher.paths import RunPaths, write_json
from thresher.recipes.base import ClaimRow, RecipeResult
from thresher.recipes.ornl_fig7 import ARMS, FILTERED, LARGE
from thresher.recipes.ornl_fig7 import PUBLISHED as FIGURE_7
from thresher.recipes.support import holds, studies
from thresher.study.analysis import Analysis, analyse
from thresher.study.definition import ComparisonConfig
from thresher.study.reported import TO_TARGET
from thresher.study.results import Trial
from thresher.study.study import Study
from thresher.study.tasks import Values

TARGETS = {"smoke": 0.9, "gpu": 0.75, "paper": 0.75}
"""Accuracy to which the speed of convergence is compared; the paper gives none."""
REACHED = "reached.json"
"""When each run reached the accuracy, which its trial does not say."""
ANALYSES = 3
"""Steps and seconds to an accuracy, and sharpness."""
WATCHED: Values = {"evaluate_every": 1, "sharpness": True}

GPU: Values = {**WATCHED, "weight_decay": 0.005, "batch_norm": "ghost:1/8"}
PAPER: Values = {**WATCHED, "weight_decay": 0.005}
GRID = {"batch_size": [LARGE]}

STUDIES: dict[str, Values] = {
    "smoke": studies.filtered("smoke", "tiny", {"batch_size": [64]}, seeds=6, **WATCHED),
    "gpu": studies.filtered("gpu", "resnet18", GRID, seeds=16, **GPU),
    "paper": studies.filtered("paper", "resnet101", GRID, seeds=16, **PAPER),
}


def definition(preset: str) -> Values:
    """Return the study: network-filtered data against full and randomly filtered data."""
    return {
        "title": "Convergence and sharpness with filtered data",
        "compare": "arm",
        "pairs": [FILTERED],
        "arms": ARMS,
        **STUDIES[preset],
    }


def first_reached(run: RunPaths, accuracy: float) -> tuple[int, float] | tuple[None, None]:
    """Return steps and seconds of the first evaluation with at least `accuracy`, from 0 to 1."""
    lines = run.metrics.read_text(encoding="utf-8").splitlines()
    for line in map(json.loads, lines):
        if line["kind"] == "epoch" and (line["accuracy"] or 0.0) >= accuracy:
            return line["step"], line["seconds"]
    return None, None


def trials_to(study: Study, accuracy: float) -> dict[str, list[Trial]]:
    """Return the trials with steps, and with seconds, to `accuracy` as their values, and with the
    top eigenvalue.

    Runs that do not reach it have no value and are censored at their end.
    """
    plan = study.plan()
    steps, times, sharp = [], [], []
    for trial in study.trials():
        if trial.state != "finished":
            continue
        step, seconds = first_reached(RunPaths(plan.trials[trial.name].out), accuracy)
        same = replace(trial, correct=None)
        steps.append(replace(same, value=step, end=trial.steps))
        times.append(replace(same, value=seconds, end=trial.seconds))
        sharp.append(replace(same, value=trial.top_eigenvalue))
    return {"steps_to_target": steps, "time_to_target": times, "top_eigenvalue": sharp}


def rows(trials: dict[str, list[Trial]]) -> list[ClaimRow]:
    """Return the rows; `trials` are those by steps and time to an accuracy, and by sharpness."""
    config = ComparisonConfig(
        compare="arm",
        pairs=(FILTERED,),
        primary=(" - ".join(FILTERED),),
        level=holds.share_of_level(ANALYSES),
    )
    metrics = {m: analyse(members, replace(config, metric=m)) for m, members in trials.items()}
    sharp = metrics.pop("top_eigenvalue")
    return [*(_sooner(metric, compared) for metric, compared in metrics.items()), _smoother(sharp)]


def _sooner(metric: str, analysis: Analysis) -> ClaimRow:
    """Return whether filtered data reach an accuracy in fewer steps, or in less time."""
    comparison = analysis.overall[0]
    arms = [
        [c for c in analysis.cells if c.cell["arm"] == arm]
        for arm in (comparison.arm, comparison.baseline)
    ]
    reached = [f"{sum(c.n for c in a)} of {sum(c.n + len(c.censored) for c in a)}" for a in arms]
    unit = "steps" if metric == "steps_to_target" else "seconds"
    paper = f"filtering speeds up convergence: {unit} to a given accuracy"
    runs = f"network reaches it in {reached[0]} runs, full in {reached[1]}"
    measured = f"{comparison.difference:+.3g} {unit}; {runs}"
    return studies.claim_row("O4", paper, measured, comparison, unit=f" {unit}")


def _smoother(analysis: Analysis) -> ClaimRow:
    """Return whether the loss is less sharp at the end of runs on filtered data."""
    comparison = analysis.overall[0]
    means = [
        fmean(c.mean for c in analysis.cells if c.cell["arm"] == arm and c.mean is not None)
        for arm in (comparison.arm, comparison.baseline)
    ]
    paper = "filtering smooths the loss landscape: top Hessian eigenvalue at the end"
    measured = f"network {means[0]:.3g}, full {means[1]:.3g}"
    return studies.claim_row("O4", paper, measured, comparison, unit="")


def reproduce(preset: str, out: Path) -> RecipeResult:
    analysis = studies.run(preset, out / "study", **definition(preset))
    assert analysis.study is not None
    trials = trials_to(analysis.study, TARGETS[preset])
    reached = {
        metric: [{**t.cell, "seed": t.seed, "value": t.value, "end": t.end} for t in trials[metric]]
        for metric in TO_TARGET
    }
    write_json(out / REACHED, {"accuracy": TARGETS[preset], **reached})
    return studies.result(rows(trials), out / "study", target=TARGETS[preset])


RECIPE = studies.study_recipe(
    "ornl-mechanism",
    "O4",
    "steps and time to an accuracy, and sharpness, with filtered and full data",
    reproduce,
    studies.paper(FIGURE_7, STUDIES),
)
