"""Claim O4 (Gahlot et al. 2020, figure 7): filtered data at large batches."""

from functools import partial
from pathlib import Path
from typing import Any

from thresher.recipes.base import ClaimRow, Recipe, RecipeResult, Verdict
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
    tuned,
    verdict,
)
from thresher.study.analysis import Analysis

LARGE = 6272
"""From this batch on, the paper reports higher accuracy with filtered than with full data."""
DROP = 0.0512
"""Share dropped with the paper's extractor, ResNet-101 (table I)."""

STUDIES: dict[str, dict[str, Any]] = {
    "smoke": {
        "base": SMOKE,
        "grid": {"batch_size": [64, 256, 480]},
        "steps": pipeline({**SMOKE, "batch_size": 64}, {"drop": DROP}),
        "seeds": 4,
    },
    "gpu": {
        "base": {**GPU, "lr_rule": "none"},
        "grid": {"batch_size": [256, 1024, 2048, 4096, 6272, 10368]},
        "steps": pipeline({**GPU, "model": "resnet34", "batch_size": 256}, {"drop": DROP}),
        "seeds": 4,
    },
    "paper": {
        "base": {**PAPER, "weight_decay": 0.005},
        "grid": {"batch_size": [256, 1024, 2048, 4096, 6272, 8192, 10368]},
        "steps": pipeline({**PAPER, "model": "resnet101", "batch_size": 256}, {"drop": DROP}),
        "seeds": 4,
    },
}

RATES: dict[str, dict[str, list[Any]]] = {
    "gpu": {"batch_size": [1024, 6272, 10368], "lr": [0.05, 0.1, 0.2, 0.4]},
    "paper": {"batch_size": [1024, 6272, 10368], "lr": [0.05, 0.1, 0.2, 0.4]},
}
"""The paper does not give its rate: one for all batches is chosen on validation, on full data."""


def reproduce(preset: str, out: Path) -> RecipeResult:
    study = dict(STUDIES[preset])
    grid = {**study["grid"], "selection": ["full", "random", "network"]}
    if preset in RATES:
        rate = tuned(study["base"], RATES[preset], "lr", out / "rate", preset)
        study["base"] = {**study["base"], "lr": rate}
    analysis = run(
        {
            "title": "Filtered data at large batches (figure 7)",
            "compare": "selection",
            **study,
            "grid": grid,
            "executor": EXECUTORS[preset],
        },
        out / "study",
    )
    batches = grid["batch_size"]
    large = [b for b in batches if b >= LARGE] or batches[-1:]
    rows = [_against_full(analysis, b, b in large) for b in batches]
    rows += [_against_random(analysis, b) for b in batches]
    return RecipeResult(rows, {"report": report_path(out / "study"), "lr": study["base"]["lr"]})


def _against_full(analysis: Analysis, batch: int, large: bool) -> ClaimRow:
    comparison = verdict(analysis, "network", "full", batch_size=batch)
    word = comparison.verdict
    if large:
        paper = "network above full" + (" (77.5 against 75.2)" if batch == LARGE else "")
        return _row(analysis, batch, "full", paper, holds_if_better(word))
    straddles = comparison.low <= 0 <= comparison.high
    holds: Verdict = "yes" if word == "equivalent" else "partly" if straddles else "no"
    return _row(analysis, batch, "full", "network and full equal within error bars", holds)


def _against_random(analysis: Analysis, batch: int) -> ClaimRow:
    word = verdict(analysis, "network", "random", batch_size=batch).verdict
    paper = "network above random everywhere"
    return _row(analysis, batch, "random", paper, holds_if_better(word))


def _row(analysis: Analysis, batch: int, other: str, paper: str, holds: Verdict) -> ClaimRow:
    comparison = verdict(analysis, "network", other, batch_size=batch)
    cells = [cell(analysis, batch_size=batch, selection=arm) for arm in ("network", other)]
    return ClaimRow(
        "O4",
        f"batch {batch:,}: {paper}",
        f"network {mean(cells[0])}, {other} {mean(cells[1])}",
        holds,
        interval(comparison.low, comparison.high, " points"),
        comparison.sentence,
        {"batch_size": batch},
    )


RECIPE = Recipe(
    "ornl-fig7",
    "O4",
    "full, randomly filtered and network-filtered data from small to large batches",
    {name: partial(reproduce, name) for name in STUDIES},
    DATA,
)
