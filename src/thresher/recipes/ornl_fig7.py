"""Claim O4 (Gahlot et al. 2020, figure 7): filtered data at large batches."""

from pathlib import Path
from typing import Any

from thresher.recipes.base import ClaimRow, RecipeResult
from thresher.recipes.support import studies
from thresher.study.analysis import Analysis
from thresher.study.tasks import Values

LARGE = 6272
"""From this batch on, the paper reports higher accuracy with filtered than with full data."""
DROP = 0.0512
"""Share dropped with the paper's extractor, ResNet-101 (table I)."""

STUDIES: dict[str, Values] = {
    "smoke": {
        "base": studies.SMOKE,
        "grid": {"batch_size": [64, 256, 480]},
        "steps": studies.pipeline({**studies.SMOKE, "batch_size": 64}, DROP),
        "seeds": 4,
    },
    "gpu": {
        "base": {**studies.GPU, "lr_rule": "none"},
        "grid": {"batch_size": [256, 1024, 2048, 4096, 6272, 10368]},
        "steps": studies.pipeline({**studies.GPU, "model": "resnet34", "batch_size": 256}, DROP),
        "seeds": 4,
    },
    "paper": {
        "base": {**studies.PAPER, "weight_decay": 0.005},
        "grid": {"batch_size": [256, 1024, 2048, 4096, 6272, 8192, 10368]},
        "steps": studies.pipeline({**studies.PAPER, "model": "resnet101", "batch_size": 256}, DROP),
        "seeds": 4,
    },
}

_RATES: dict[str, list[Any]] = {"batch_size": [1024, 6272, 10368], "lr": [0.05, 0.1, 0.2, 0.4]}
RATES = {"gpu": _RATES, "paper": _RATES}
"""The paper does not give its rate: one for all batches is chosen on validation, on full data."""


def reproduce(preset: str, out: Path) -> RecipeResult:
    study = dict(STUDIES[preset])
    grid = {**study["grid"], "selection": ["full", "random", "network"]}
    if preset in RATES:
        rate = studies.tuned(study["base"], RATES[preset], "lr", out / "rate", preset)
        study["base"] = {**study["base"], "lr": rate}
    analysis = studies.run(
        preset,
        out / "study",
        title="Filtered data at large batches (figure 7)",
        compare="selection",
        **{**study, "grid": grid},
    )
    batches = grid["batch_size"]
    large = [b for b in batches if b >= LARGE] or batches[-1:]
    rows = [_row(analysis, b, "full", b in large) for b in batches]
    rows += [_row(analysis, b, "random", True) for b in batches]
    return studies.result(rows, out / "study", lr=study["base"]["lr"])


def _row(analysis: Analysis, batch: int, other: str, better: bool) -> ClaimRow:
    """Compare network-filtered data with `other`; the paper says better, or else equal."""
    comparison = studies.verdict(analysis, "network", other, batch_size=batch)
    holds = studies.holds_if_better(comparison)
    paper = "network above random everywhere"
    if other == "full" and better:
        paper = "network above full" + (" (77.5 against 75.2)" if batch == LARGE else "")
    elif other == "full":
        paper = "network and full equal within error bars"
        holds = "partly" if comparison.low <= 0 <= comparison.high else "no"
        if comparison.verdict == "equivalent":
            holds = "yes"
    cells = [studies.cell(analysis, batch_size=batch, selection=arm) for arm in ("network", other)]
    return ClaimRow(
        "O4",
        f"batch {batch:,}: {paper}",
        f"network {studies.mean(cells[0])}, {other} {studies.mean(cells[1])}",
        holds,
        studies.interval(comparison.low, comparison.high),
        comparison.sentence,
        {"batch_size": batch},
    )


RECIPE = studies.study_recipe(
    "ornl-fig7",
    "O4",
    "full, randomly filtered and network-filtered data from small to large batches",
    reproduce,
)
