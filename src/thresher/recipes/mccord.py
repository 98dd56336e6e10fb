"""Claims M1–M3 (McCord & Dash 2021): batch, warm-up and the linear rule at very large batches.

The paper trains ResNet-50 on ImageNet for 90 epochs with the rate divided by ten at epochs 30, 60
and 90. The gpu preset asks the same questions of ResNet-18 on CIFAR-10, whose 50,000 images allow
the same batches; `paper` wants a pack of ImageNet under the name `imagenet` in the cache.
"""

import itertools
from functools import partial
from pathlib import Path
from typing import Any

from thresher.recipes.base import Recipe, RecipeResult, row
from thresher.recipes.studies import (
    EXECUTORS,
    GPU,
    SMOKE,
    cell,
    compare,
    mean,
    run,
    significant,
    span,
)

SCHEDULE = {"schedule": "step", "lr_rule": "linear"}
BASES: dict[str, dict[str, Any]] = {
    "smoke": {**SMOKE, **SCHEDULE, "lr": 0.05, "base_batch": 32, "step_epochs": [4.0, 8.0]},
    "gpu": {
        **GPU,
        **SCHEDULE,
        "epochs": 90,
        "lr": 0.0125,
        "base_batch": 64,
        "step_epochs": [30.0, 60.0],
    },
    "paper": {
        "data": "imagenet",
        "model": "resnet50",
        "image_size": 224,
        "epochs": 90,
        **SCHEDULE,
        "lr": 0.0125,
        "base_batch": 32,
        "warmup_epochs": 5,
        "step_epochs": [30.0, 60.0, 90.0],
        "precision": "fp16",
        "micro_batch": "auto",
    },
}
BATCHES = {
    "smoke": [64, 256, 480],
    "gpu": [3840, 7680, 15360, 23040, 30720],
    "paper": [3840, 7680, 15360, 23040, 30720],
}
WARMUPS = {"smoke": [0, 2, 4], "gpu": [0, 5, 10, 20], "paper": [0, 5, 10, 20]}
SEEDS = {"smoke": 3, "gpu": 4, "paper": 4}


def _content(preset: str, title: str, compared: str, grid: dict[str, Any]) -> dict[str, Any]:
    return {
        "title": title,
        "compare": compared,
        "base": {k: v for k, v in BASES[preset].items() if k not in grid},
        "grid": grid,
        "seeds": SEEDS[preset],
        "executor": EXECUTORS[preset],
    }


def batch(preset: str, out: Path) -> RecipeResult:
    """M1: accuracy falls as the batch grows."""
    batches = BATCHES[preset]
    grid = {"batch_size": batches}
    analysis = run(_content(preset, "Accuracy against batch size", "batch_size", grid), out)
    rows = []
    for smaller, larger in itertools.pairwise(batches):
        cells = [cell(analysis, batch_size=b) for b in (smaller, larger)]
        fall = compare(cells[0], cells[1])
        holds = "not enough runs" if not significant(fall) else "yes" if fall.mean > 0 else "no"
        rows.append(
            row(
                "M1",
                f"accuracy falls from batch {smaller:,} to {larger:,}",
                f"{mean(cells[0])} to {mean(cells[1])}",
                holds,
                span(*fall.interval, " points lost"),
            )
        )
    return RecipeResult(rows, {"report": str(out / "report" / "index.html")})


def warmup(preset: str, out: Path) -> RecipeResult:
    """M2: no warm-up is worst, the best grows with the batch, too much hurts."""
    sizes = [BATCHES[preset][1], BATCHES[preset][-1]]
    grid = {"batch_size": sizes, "warmup_epochs": WARMUPS[preset]}
    analysis = run(_content(preset, "Accuracy against warm-up", "warmup_epochs", grid), out)
    rows, best = [], {}
    for size in sizes:
        cells = {w: cell(analysis, batch_size=size, warmup_epochs=w) for w in WARMUPS[preset]}
        best[size] = max(cells, key=lambda w: cells[w]["mean"])
        gain = compare(cells[best[size]], cells[0])
        worst = min(cells, key=lambda w: cells[w]["mean"])
        holds = "no" if worst != 0 else "yes" if significant(gain) else "not enough runs"
        rows.append(
            row(
                "M2",
                f"batch {size:,}: no warm-up is worst",
                ", ".join(f"{w} epochs {c['mean']:.1f}" for w, c in cells.items()),
                holds,
                span(*gain.interval, " points, best over none"),
            )
        )
    small, large = (best[size] for size in sizes)
    rows.append(
        row(
            "M2",
            "the larger batch wants the longer warm-up (5 at 7,680, 10 at 30,720)",
            f"best {small} at {sizes[0]:,}, {large} at {sizes[1]:,}",
            "yes" if large > small else "no",
        )
    )
    return RecipeResult(rows, {"report": str(out / "report" / "index.html")})


def linear(preset: str, out: Path) -> RecipeResult:
    """M3: at the largest batch the linear rule makes no significant difference."""
    size = BATCHES[preset][-1]
    grid = {"batch_size": [size], "lr_rule": ["none", "linear"]}
    analysis = run(_content(preset, "Linear scaling against none", "lr_rule", grid), out)
    cells = [cell(analysis, batch_size=size, lr_rule=rule) for rule in ("linear", "none")]
    found = compare(cells[0], cells[1])
    holds = "no" if significant(found) else "yes" if found.p_equivalent < 0.05 else "partly"
    line = row(
        "M3",
        f"batch {size:,}: linear scaling against none, no significant difference",
        f"linear {mean(cells[0])}, none {mean(cells[1])}",
        holds,
        span(*found.interval, " points"),
        "no difference was seen, but these runs could have missed a small one"
        if holds == "partly"
        else "",
    )
    return RecipeResult([line], {"report": str(out / "report" / "index.html")})


RECIPES = [
    Recipe(
        name,
        claim,
        title,
        {preset: partial(function, preset) for preset in BASES},
        {preset: base["data"] for preset, base in BASES.items()},
    )
    for name, claim, title, function in (
        ("mccord-batch", "M1", "accuracy falls as the batch grows", batch),
        ("mccord-warmup", "M2", "warm-up of 0, 5, 10, 20 epochs at two batches", warmup),
        ("mccord-linear", "M3", "linear scaling against none at the largest batch", linear),
    )
]
