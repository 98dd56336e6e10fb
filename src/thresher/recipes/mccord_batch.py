"""Claim M1 (McCord & Dash 2021): accuracy falls as the batch grows."""

import itertools
from functools import partial
from pathlib import Path

from thresher.recipes.base import ClaimRow, Recipe, RecipeResult
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
    batches = BATCHES[preset]
    grid = {"batch_size": batches}
    analysis = run(definition(preset, "Accuracy against batch size", "batch_size", grid), out)
    rows = []
    for smaller, larger in itertools.pairwise(batches):
        cells = [cell(analysis, batch_size=b) for b in (smaller, larger)]
        loss = compare(cells[0], cells[1])
        rows.append(
            ClaimRow(
                "M1",
                f"accuracy falls from batch {smaller:,} to {larger:,}",
                f"{mean(cells[0])} to {mean(cells[1])}",
                "not enough runs" if not significant(loss) else "yes" if loss.mean > 0 else "no",
                interval(*loss.interval, " points lost"),
            )
        )
    return RecipeResult(rows, {"report": report_path(out)})


RECIPE = Recipe(
    "mccord-batch",
    "M1",
    "accuracy falls as the batch grows",
    {preset: partial(reproduce, preset) for preset in BASES},
    DATA,
)
