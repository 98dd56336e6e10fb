"""Claim O3 (Gahlot et al. 2020, figure 6): filtered data at small batches, weight decay tuned."""

from thresher.recipes.base import ClaimRow
from thresher.recipes.support import studies
from thresher.recipes.support.studies import DROP
from thresher.study.analysis import Analysis
from thresher.study.comparisons import ArmComparison
from thresher.study.tasks import Values

GRID = {"batch_size": [64, 128, 256], "weight_decay": [0.005, 0.01, 0.012, 0.0135]}
RESULTS = {
    (256, "full"): (0.6, "83.2 (wd .005) against 82.6 (wd .012)"),
    (256, "random"): (2.3, "83.2 against 80.9 (wd .0135)"),
    (128, "random"): (2.2, "82.7 against 80.5"),
    (64, "random"): (2.6, "81.8 against 79.2"),
}
"""Published differences in points, and accuracies, by batch size and the arm compared with."""

STUDIES: dict[str, Values] = {
    "smoke": {
        "base": {**studies.SMOKE, **studies.EQUAL_STEPS, "validation": 0.1, "epochs": 8},
        "grid": {"batch_size": [64], "weight_decay": [0.0005, 0.005]},
        "tune": ["weight_decay"],
        "steps": studies.pipeline({**studies.SMOKE, "batch_size": 64, "epochs": 8}, DROP),
        "seeds": 3,
        "tune_seeds": 2,
    },
    "gpu": {
        **studies.filtered("gpu", "resnet34", GRID, seeds=6, validation=5000),
        "tune": ["weight_decay"],
        "tune_seeds": 2,
    },
    "paper": {
        "base": {**studies.FULL_SIZE, **studies.EQUAL_STEPS, "workers": 1, "validation": 5000},
        "grid": GRID,
        "tune": ["weight_decay"],
        "steps": studies.pipeline(
            {**studies.FULL_SIZE, "workers": 1, "model": "resnet101", "batch_size": 256}, DROP
        ),
        "seeds": 4,
    },
}

PUBLISHED: Values = {
    **studies.PAPER,
    "workers": 1,
    "batch_norm": studies.WHOLE_BATCH,
    "budget": "epochs",
    **GRID,
    **studies.FILTER,
}


PAIRS = [("network", "full"), ("network", "random")]


def definition(preset: str) -> Values:
    """Return the study: network-filtered data against full and randomly filtered data."""
    study = STUDIES[preset]
    batches = study["grid"]["batch_size"]
    primary = studies.in_each_cell(PAIRS, {"batch_size": batches})
    claimed = {
        f"network - {other} @ batch_size={batch}": effect
        for (batch, other), (effect, _) in RESULTS.items()
        if batch in batches
    }
    return {
        "title": "Filtered data at small batches, weight decay tuned on validation (figure 6)",
        "compare": "selection",
        "pairs": PAIRS,
        "primary": primary,
        **({"claimed": claimed} if claimed else {}),
        **study,
        "grid": {**study["grid"], "selection": ["full", "random", "network"]},
    }


def rows(analysis: Analysis) -> list[ClaimRow]:
    return [_row(analysis, c) for c in analysis.verdicts if c.cell]


def _row(analysis: Analysis, comparison: ArmComparison) -> ClaimRow:
    batch = comparison.cell["batch_size"]
    arms = [
        f"{studies.mean(c)} (wd {c.chosen['weight_decay'] if c.chosen else '?'})"
        for arm in (comparison.arm, comparison.baseline)
        for c in [studies.cell(analysis, batch_size=batch, selection=arm)]
    ]
    _, published = RESULTS.get((batch, comparison.baseline), (None, "network above"))
    paper = f"batch {batch}, network against {comparison.baseline}: {published}"
    return studies.claim_row("O3", paper, " against ".join(arms), comparison, batch_size=batch)


RECIPE = studies.study_recipe(
    "ornl-fig6",
    "O3",
    "full, randomly and network-filtered data at small batches, weight decay tuned",
    studies.one_study(definition, rows),
    studies.paper(PUBLISHED, STUDIES),
)
