"""Claim O2 (Gahlot et al. 2020, figures 4 and 5): every rate has its preferred batch size."""

from functools import partial
from pathlib import Path
from typing import Any

from thresher.recipes.base import ClaimRow, Recipe, RecipeResult
from thresher.recipes.support.studies import (
    DATA,
    EXECUTORS,
    GPU,
    PAPER,
    SMOKE,
    compare,
    interval,
    report_path,
    run,
    significant,
)
from thresher.study.analysis import Analysis

UNSCALED = {"lr_rule": "none", "base_batch": 0}
"""The claim is about fixed rates: nothing scales them with the batch."""

STUDIES: dict[str, dict[str, Any]] = {
    "smoke": {
        "base": SMOKE,
        "grid": {
            "model": ["tiny", "resnet20"],
            "lr": [0.01, 0.1],
            "batch_size": [16, 64, 256, 1024],
        },
        "seeds": 3,
    },
    "gpu": {
        "base": {**GPU, **UNSCALED},
        "grid": {
            "model": ["resnet18", "resnet50"],
            "lr": [0.01, 0.03, 0.1],
            "batch_size": [64, 256, 1024, 4096, 16384],
        },
        "seeds": 3,
    },
    "paper": {
        "base": {**PAPER, **UNSCALED},
        "grid": {
            "model": ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"],
            "lr": [0.001, 0.01, 0.1],
            "batch_size": [16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 10240, 20480],
        },
        "seeds": 4,
    },
}


def reproduce(preset: str, out: Path) -> RecipeResult:
    study = STUDIES[preset]
    analysis = run(
        {
            "title": "Accuracy against batch size, by learning rate (figures 4 and 5)",
            "compare": "batch_size",
            **study,
            "executor": EXECUTORS[preset],
        },
        out,
    )
    rows, preferred = [], {}
    for model in study["grid"]["model"]:
        for lr in study["grid"]["lr"]:
            cells = [c for c in analysis.cells if c.cell["model"] == model and c.cell["lr"] == lr]
            cells = [c for c in cells if c.mean is not None]
            best = max(cells, key=lambda c: c.mean or 0.0)
            last = max(cells, key=lambda c: c.cell["batch_size"])
            best_batch, last_batch = best.cell["batch_size"], last.cell["batch_size"]
            preferred[f"{model} {lr}"] = best_batch
            loss = compare(best, last)
            inside = best_batch < last_batch
            rows.append(
                ClaimRow(
                    "O2",
                    f"{model}, rate {lr}: a preferred batch, beyond it accuracy falls",
                    f"best at {best_batch} ({best.mean:.1f}), {last.mean:.1f} at {last_batch}",
                    "no" if not inside else "yes" if significant(loss) else "not enough runs",
                    interval(*loss.interval, " points"),
                )
            )
    rows.append(_closer_at_low_rates(analysis, study["grid"]))
    return RecipeResult(rows, {"preferred": preferred, "report": report_path(out)})


def _closer_at_low_rates(analysis: Analysis, grid: dict[str, list[Any]]) -> ClaimRow:
    """Compare the mean range of the networks' accuracies between rates."""
    apart = {}
    for lr in grid["lr"]:
        ranges = []
        for batch in grid["batch_size"]:
            means = [
                c.mean
                for c in analysis.cells
                if (c.cell["lr"], c.cell["batch_size"]) == (lr, batch) and c.mean is not None
            ]
            ranges.append(max(means) - min(means))
        apart[lr] = sum(ranges) / len(ranges)
    low, high = min(apart), max(apart)
    return ClaimRow(
        "O2",
        "the networks' curves are closer at low rates",
        f"{apart[low]:.1f} points apart at {low}, {apart[high]:.1f} at {high}",
        "yes" if apart[low] < apart[high] else "no",
    )


RECIPE = Recipe(
    "ornl-fig5",
    "O2",
    "for each learning rate there is a preferred batch size",
    {name: partial(reproduce, name) for name in STUDIES},
    DATA,
)
