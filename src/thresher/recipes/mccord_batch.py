"""Claim M1 (McCord & Dash 2021): accuracy falls as the batch grows."""

import itertools
from pathlib import Path

from thresher.recipes.base import ClaimRow, RecipeResult
from thresher.recipes.support import mccord, studies


def reproduce(preset: str, out: Path) -> RecipeResult:
    batches = mccord.BATCHES[preset]
    title, grid = "Accuracy against batch size", {"batch_size": batches}
    analysis = mccord.run(preset, out, title, "batch_size", grid)
    rows = []
    for smaller, larger in itertools.pairwise(batches):
        before, after = (studies.cell(analysis, batch_size=b) for b in (smaller, larger))
        loss = studies.compare(before, after)
        rows.append(
            ClaimRow(
                "M1",
                f"accuracy falls from batch {smaller:,} to {larger:,}",
                f"{studies.mean(before)} to {studies.mean(after)}",
                studies.holds_if_positive(loss),
                studies.interval(*loss.interval, " points lost"),
            )
        )
    return studies.result(rows, out)


RECIPE = studies.study_recipe(
    "mccord-batch",
    "M1",
    "accuracy falls as the batch grows",
    reproduce,
    mccord.paper(
        {preset: {"batch_size": batches} for preset, batches in mccord.BATCHES.items()},
        {"batch_size": mccord.LARGE_BATCHES},
    ),
    mccord.DATA,
)
