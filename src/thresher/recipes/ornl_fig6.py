"""Claim O3 (Gahlot et al. 2020, figure 6): filtered data at small batches, weight decay tuned."""

from pathlib import Path

from thresher.recipes.base import ClaimRow, RecipeResult
from thresher.recipes.ornl_fig7 import DROP
from thresher.recipes.support import studies
from thresher.recipes.support.differences import PaperSettings
from thresher.study.tasks import Values

DECAYS = [0.005, 0.01, 0.012, 0.0135]
RESULTS = {
    (256, "full"): "83.2 (wd .005) against 82.6 (wd .012)",
    (256, "random"): "83.2 against 80.9 (wd .0135)",
    (128, "random"): "82.7 against 80.5",
    (64, "random"): "81.8 against 79.2",
}

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
        "base": {**studies.GPU, **studies.EQUAL_STEPS, "validation": 5000},
        "grid": {"batch_size": [64, 128, 256], "weight_decay": DECAYS},
        "tune": ["weight_decay"],
        "steps": studies.pipeline({**studies.GPU, "model": "resnet34", "batch_size": 256}, DROP),
        "seeds": 3,
    },
    "paper": {
        "base": {**studies.FULL_SIZE, **studies.EQUAL_STEPS, "workers": 1, "validation": 5000},
        "grid": {"batch_size": [64, 128, 256], "weight_decay": DECAYS},
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
    "budget": "epochs",
    "batch_size": [64, 128, 256],
    "weight_decay": DECAYS,
    "extractor": "resnet101",
    "drop": DROP,
}


def reproduce(preset: str, out: Path) -> RecipeResult:
    study = STUDIES[preset]
    grid = {**study["grid"], "selection": ["full", "random", "network"]}
    analysis = studies.run(
        preset,
        out,
        title="Filtered data at small batches, weight decay tuned on validation (figure 6)",
        compare="selection",
        **{**study, "grid": grid},
    )
    rows = []
    for batch in grid["batch_size"]:
        for other in ("full", "random"):
            comparison = studies.verdict(analysis, "network", other, batch_size=batch)
            arms = [
                f"{studies.mean(c)} (wd {c.chosen['weight_decay'] if c.chosen else '?'})"
                for arm in ("network", other)
                for c in [studies.cell(analysis, batch_size=batch, selection=arm)]
            ]
            published = RESULTS.get((batch, other), "network above")
            rows.append(
                ClaimRow(
                    "O3",
                    f"batch {batch}, network against {other}: {published}",
                    " against ".join(arms),
                    studies.holds_if_better(comparison),
                    studies.interval(comparison.low, comparison.high),
                    comparison.sentence,
                    {"batch_size": batch},
                )
            )
    return studies.result(rows, out)


RECIPE = studies.study_recipe(
    "ornl-fig6",
    "O3",
    "full, randomly and network-filtered data at small batches, weight decay tuned",
    reproduce,
    PaperSettings(
        PUBLISHED, {preset: studies.settings(study) for preset, study in STUDIES.items()}
    ),
)
