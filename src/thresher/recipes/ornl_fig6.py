"""Claim O3 (Gahlot et al. 2020, figure 6): filtered data at small batches, weight decay tuned."""

from functools import partial
from pathlib import Path
from typing import Any

from thresher.recipes.base import ClaimRow, Recipe, RecipeResult
from thresher.recipes.ornl_fig7 import DROP
from thresher.recipes.support.studies import (
    DATA,
    EXECUTORS,
    GPU,
    PAPER,
    SMOKE,
    cell,
    holds_if_better,
    interval,
    mean,
    pipeline,
    report_path,
    run,
    verdict,
)

DECAYS = [0.005, 0.01, 0.012, 0.0135]
PUBLISHED = {
    (256, "full"): "83.2 (wd .005) against 82.6 (wd .012)",
    (256, "random"): "83.2 against 80.9 (wd .0135)",
    (128, "random"): "82.7 against 80.5",
    (64, "random"): "81.8 against 79.2",
}

STUDIES: dict[str, dict[str, Any]] = {
    "smoke": {
        "base": {**SMOKE, "validation": 0.1, "epochs": 8},
        "grid": {"batch_size": [64], "weight_decay": [0.0005, 0.005]},
        "steps": pipeline({**SMOKE, "batch_size": 64}, {"drop": DROP}),
        "seeds": 3,
    },
    "gpu": {
        "base": {**GPU, "validation": 5000},
        "grid": {"batch_size": [64, 128, 256], "weight_decay": DECAYS},
        "steps": pipeline({**GPU, "model": "resnet34", "batch_size": 256}, {"drop": DROP}),
        "seeds": 3,
    },
    "paper": {
        "base": {**PAPER, "workers": 1, "validation": 5000},
        "grid": {"batch_size": [64, 128, 256], "weight_decay": DECAYS},
        "steps": pipeline({**PAPER, "model": "resnet101", "batch_size": 256}, {"drop": DROP}),
        "seeds": 4,
    },
}


def reproduce(preset: str, out: Path) -> RecipeResult:
    study = STUDIES[preset]
    grid = {**study["grid"], "selection": ["full", "random", "network"]}
    analysis = run(
        {
            "title": "Filtered data at small batches, weight decay tuned on validation (figure 6)",
            "compare": "selection",
            "tune": ["weight_decay"],
            **study,
            "grid": grid,
            "executor": EXECUTORS[preset],
        },
        out,
    )
    rows = []
    for batch in grid["batch_size"]:
        for other in ("full", "random"):
            comparison = verdict(analysis, "network", other, batch_size=batch)
            cells = [cell(analysis, batch_size=batch, selection=a) for a in ("network", other)]
            decays = [c.chosen["weight_decay"] if c.chosen else "?" for c in cells]
            published = PUBLISHED.get((batch, other), "network above")
            rows.append(
                ClaimRow(
                    "O3",
                    f"batch {batch}, network against {other}: {published}",
                    f"{mean(cells[0])} (wd {decays[0]}) against {mean(cells[1])} (wd {decays[1]})",
                    holds_if_better(comparison.verdict),
                    interval(comparison.low, comparison.high, " points"),
                    comparison.sentence,
                    {"batch_size": batch},
                )
            )
    return RecipeResult(rows, {"report": report_path(out)})


RECIPE = Recipe(
    "ornl-fig6",
    "O3",
    "full, randomly and network-filtered data at small batches, weight decay tuned",
    {name: partial(reproduce, name) for name in STUDIES},
    DATA,
)
