"""Claim O4 (Gahlot et al. 2020, figure 7): filtered data at large batches."""

from functools import partial
from pathlib import Path
from typing import Any

from thresher.recipes.base import Recipe, RecipeResult, row
from thresher.recipes.studies import (
    DATA,
    EXECUTORS,
    GPU,
    PAPER,
    SMOKE,
    cell,
    mean,
    pipeline,
    run,
    span,
    tuned,
    verdict,
)

LARGE = 6272
"""From this batch on, the paper finds the filtered data better than the full."""
DROP = 0.0512
"""Share that the paper's extractor, ResNet-101, dropped (table I)."""

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
"""The paper does not say its rate: one for all batches is chosen on validation, on full data."""


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
    report = out / "study" / "report" / "index.html"
    return RecipeResult(rows, {"report": str(report), "lr": study["base"]["lr"]})


def _against_full(analysis: Any, batch: int, large: bool) -> dict[str, Any]:
    found = verdict(analysis, "network", "full", batch_size=batch)
    word = found["verdict"]
    if large:
        paper = "network above full" + (" (77.5 against 75.2)" if batch == LARGE else "")
        holds = {"better": "yes", "not enough runs": "not enough runs"}.get(word, "no")
    else:
        paper = "network and full equal within error bars"
        straddles = found["low"] <= 0 <= found["high"]
        holds = "yes" if word == "equivalent" else "partly" if straddles else "no"
    return _line(analysis, batch, "full", paper, holds, found)


def _against_random(analysis: Any, batch: int) -> dict[str, Any]:
    found = verdict(analysis, "network", "random", batch_size=batch)
    holds = {"better": "yes", "not enough runs": "not enough runs"}.get(found["verdict"], "no")
    return _line(analysis, batch, "random", "network above random everywhere", holds, found)


def _line(
    analysis: Any, batch: int, other: str, paper: str, holds: str, found: dict[str, Any]
) -> dict[str, Any]:
    cells = [cell(analysis, batch_size=batch, selection=arm) for arm in ("network", other)]
    return row(
        "O4",
        f"batch {batch:,}: {paper}",
        f"network {mean(cells[0])}, {other} {mean(cells[1])}",
        holds,
        span(found["low"], found["high"], " points"),
        found["sentence"],
        batch_size=batch,
    )


RECIPE = Recipe(
    "ornl-fig7",
    "O4",
    "full, randomly filtered and network-filtered data from small to large batches",
    {name: partial(reproduce, name) for name in STUDIES},
    DATA,
)
