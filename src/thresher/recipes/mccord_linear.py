"""Claim M3 (McCord & Dash 2021): at the largest batch the linear rule makes no difference."""

from functools import partial
from pathlib import Path

from thresher.recipes.base import ClaimRow, Recipe, RecipeResult, Verdict
from thresher.recipes.support.mccord import BASES, BATCHES, DATA, definition
from thresher.recipes.support.studies import (
    cell,
    compare,
    interval,
    mean,
    report_path,
    run,
    significant,
)


def reproduce(preset: str, out: Path) -> RecipeResult:
    size = BATCHES[preset][-1]
    grid = {"batch_size": [size], "lr_rule": ["none", "linear"]}
    analysis = run(definition(preset, "Linear scaling against none", "lr_rule", grid), out)
    linear, none = (cell(analysis, batch_size=size, lr_rule=rule) for rule in ("linear", "none"))
    difference = compare(linear, none)
    holds: Verdict = "yes" if difference.p_equivalent < 0.05 else "partly"
    if significant(difference):
        holds = "no"
    row = ClaimRow(
        "M3",
        f"batch {size:,}: linear scaling against none, no significant difference",
        f"linear {mean(linear)}, none {mean(none)}",
        holds,
        interval(*difference.interval, " points"),
        "no significant difference, but too few runs to exclude a small one"
        if holds == "partly"
        else "",
    )
    return RecipeResult([row], {"report": report_path(out)})


RECIPE = Recipe(
    "mccord-linear",
    "M3",
    "linear scaling against none at the largest batch",
    {preset: partial(reproduce, preset) for preset in BASES},
    DATA,
)
