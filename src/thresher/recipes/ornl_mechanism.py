"""Claim O4 (Gahlot et al. 2020), the mechanism: faster convergence and a smoother loss.

Three arms at the paper's batch of 6,272, on the same footing as `ornl-fig7`, with an evaluation
after every epoch and a measurement of sharpness at the end.
"""

from pathlib import Path
from statistics import fmean

from thresher.recipes.base import ClaimRow, RecipeResult
from thresher.recipes.ornl_fig7 import ARMS, DROP, FILTERED, LARGE
from thresher.recipes.ornl_fig7 import PUBLISHED as FIGURE_7
from thresher.recipes.support import convergence, holds, studies
from thresher.study.analysis import Analysis
from thresher.study.results import Trial
from thresher.study.tasks import Values

TARGETS = {"smoke": 0.9, "gpu": 0.75, "paper": 0.75}
"""Accuracy to which the speed of convergence is compared; the paper gives none."""
ANALYSES = 3
"""Steps and seconds to an accuracy, and sharpness."""
WATCHED: Values = {"evaluate_every": 1, "sharpness": True}

STUDIES: dict[str, Values] = {
    "smoke": {
        "base": {**studies.SMOKE, **studies.EQUAL_STEPS, **WATCHED},
        "grid": {"batch_size": [64]},
        "steps": studies.pipeline({**studies.SMOKE, "batch_size": 64}, DROP),
        "seeds": 6,
    },
    "gpu": {
        "base": {
            **studies.GPU,
            **studies.EQUAL_STEPS,
            **WATCHED,
            **{"lr_rule": "none", "weight_decay": 0.005, "batch_norm": "ghost:1/8"},
        },
        "grid": {"batch_size": [LARGE]},
        "steps": studies.pipeline({**studies.GPU, "model": "resnet18", "batch_size": 256}, DROP),
        "seeds": 16,
    },
    "paper": {
        "base": {
            **studies.FULL_SIZE,
            **studies.EQUAL_STEPS,
            **WATCHED,
            **{"lr_rule": "none", "weight_decay": 0.005},
        },
        "grid": {"batch_size": [LARGE]},
        "steps": studies.pipeline(
            {**studies.FULL_SIZE, "model": "resnet101", "batch_size": 256}, DROP
        ),
        "seeds": 16,
    },
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


def rows(trials: dict[str, list[Trial]]) -> list[ClaimRow]:
    """Return the rows; `trials` are those by steps and time to an accuracy, and by sharpness."""
    level = holds.share_of_level(ANALYSES)
    metrics = convergence.compare_metrics(trials, "arm", FILTERED, level)
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
    return ClaimRow(
        "O4",
        f"filtering speeds up convergence: {unit} to a given accuracy",
        f"{comparison.difference:+.3g} {unit}; network reaches it in {reached[0]} runs, full in "
        f"{reached[1]}",
        holds.if_better(comparison),
        studies.corrected(comparison, f" {unit}"),
        comparison.sentence,
    )


def _smoother(analysis: Analysis) -> ClaimRow:
    """Return whether the loss is less sharp at the end of runs on filtered data."""
    comparison = analysis.overall[0]
    means = [
        fmean(c.mean for c in analysis.cells if c.cell["arm"] == arm and c.mean is not None)
        for arm in (comparison.arm, comparison.baseline)
    ]
    return ClaimRow(
        "O4",
        "filtering smooths the loss landscape: top Hessian eigenvalue at the end",
        f"network {means[0]:.3g}, full {means[1]:.3g}",
        holds.if_better(comparison),
        studies.corrected(comparison, ""),
        comparison.sentence,
    )


def reproduce(preset: str, out: Path) -> RecipeResult:
    analysis = studies.run(preset, out / "study", **definition(preset))
    assert analysis.study is not None
    trials = convergence.trials_to(analysis.study, TARGETS[preset])
    return studies.result(rows(trials), out / "study", target=TARGETS[preset])


RECIPE = studies.study_recipe(
    "ornl-mechanism",
    "O4",
    "steps and time to an accuracy, and sharpness, with filtered and full data",
    reproduce,
    studies.paper(FIGURE_7, STUDIES),
)
