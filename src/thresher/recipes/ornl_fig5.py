"""Claim O2 (Gahlot et al. 2020, figures 4 and 5): every rate has its preferred batch size."""

from pathlib import Path
from statistics import fmean
from typing import Any

from thresher.recipes.base import ClaimRow, RecipeResult, Verdict
from thresher.recipes.support import studies
from thresher.recipes.support.differences import PaperSettings
from thresher.study.analysis import Analysis
from thresher.study.tasks import Values

UNSCALED = {"lr_rule": "none"}
"""The claim is about fixed rates: nothing scales them with the batch."""

STUDIES: dict[str, Values] = {
    "smoke": {
        "base": studies.SMOKE,
        "grid": {
            "model": ["tiny", "resnet20"],
            "lr": [0.01, 0.1],
            "batch_size": [16, 64, 256, 1024],
        },
        "seeds": 3,
    },
    "gpu": {
        "base": {**studies.GPU, **UNSCALED},
        "grid": {
            "model": ["resnet18", "resnet50"],
            "lr": [0.01, 0.03, 0.1],
            "batch_size": [64, 256, 1024, 4096, 16384],
        },
        "seeds": 3,
    },
    "paper": {
        "base": {**studies.FULL_SIZE, **UNSCALED},
        "grid": {
            "model": ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"],
            "lr": [0.001, 0.01, 0.1],
            "batch_size": [16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 10240, 20480],
        },
        "seeds": 4,
    },
}

PUBLISHED: Values = {
    **studies.PAPER,
    **UNSCALED,
    **{axis: STUDIES["paper"]["grid"][axis] for axis in ("model", "batch_size")},
}


def reproduce(preset: str, out: Path) -> RecipeResult:
    study = STUDIES[preset]
    analysis = studies.run(
        preset,
        out,
        title="Accuracy against batch size, by learning rate (figures 4 and 5)",
        compare="batch_size",
        **study,
    )
    rows, preferred = [], {}
    for model in study["grid"]["model"]:
        for lr in study["grid"]["lr"]:
            axes = {"model": model, "lr": lr}
            cells = [c for c in analysis.cells if axes.items() <= c.cell.items()]
            cells = [c for c in cells if c.mean is not None]
            best = max(cells, key=lambda c: c.mean or 0.0)
            last = max(cells, key=lambda c: c.cell["batch_size"])
            best_batch, last_batch = best.cell["batch_size"], last.cell["batch_size"]
            preferred[f"{model} {lr}"] = best_batch
            loss = studies.compare(best, last)
            holds: Verdict = "yes" if studies.significant(loss) else "not enough runs"
            rows.append(
                ClaimRow(
                    "O2",
                    f"{model}, rate {lr}: a preferred batch, beyond it accuracy falls",
                    f"best at {best_batch} ({best.mean:.1f}), {last.mean:.1f} at {last_batch}",
                    holds if best_batch < last_batch else "no",
                    studies.interval(*loss.interval),
                )
            )
    rows.append(_closer_at_low_rates(analysis, study["grid"]))
    return studies.result(rows, out, preferred=preferred)


def _closer_at_low_rates(analysis: Analysis, grid: dict[str, list[Any]]) -> ClaimRow:
    """Compare the mean range of the networks' accuracies between rates."""
    apart = {}
    for lr in grid["lr"]:
        means: dict[int, list[float]] = {batch: [] for batch in grid["batch_size"]}
        for c in analysis.cells:
            if c.cell["lr"] == lr and c.mean is not None:
                means[c.cell["batch_size"]].append(c.mean)
        apart[lr] = fmean(max(values) - min(values) for values in means.values())
    low, high = min(apart), max(apart)
    return ClaimRow(
        "O2",
        "the networks' curves are closer at low rates",
        f"{apart[low]:.1f} points apart at {low}, {apart[high]:.1f} at {high}",
        "yes" if apart[low] < apart[high] else "no",
    )


RECIPE = studies.study_recipe(
    "ornl-fig5",
    "O2",
    "for each learning rate there is a preferred batch size",
    reproduce,
    PaperSettings(
        PUBLISHED, {preset: studies.settings(study) for preset, study in STUDIES.items()}
    ),
)
