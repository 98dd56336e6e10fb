"""Claim M2 (McCord & Dash 2021): no warm-up is worst, and larger batches need a longer one."""

from pathlib import Path

from thresher.recipes.base import ClaimRow, RecipeResult
from thresher.recipes.support import mccord, studies

WARMUPS = {"smoke": [0, 2, 4], "gpu": [0, 5, 10, 20], "paper": [0, 5, 10, 20]}


def reproduce(preset: str, out: Path) -> RecipeResult:
    sizes = [mccord.BATCHES[preset][1], mccord.BATCHES[preset][-1]]
    epochs = WARMUPS[preset]
    grid = {"batch_size": sizes, "warmup_epochs": epochs}
    analysis = mccord.run(preset, out, "Accuracy against warm-up", "warmup_epochs", grid)
    rows, best = [], {}
    for size in sizes:
        cells = {w: studies.cell(analysis, batch_size=size, warmup_epochs=w) for w in epochs}
        best[size] = max(cells, key=lambda w: cells[w].mean or 0.0)
        gain = studies.compare(cells[best[size]], cells[0])
        worst = min(cells, key=lambda w: cells[w].mean or 0.0)
        rows.append(
            ClaimRow(
                "M2",
                f"batch {size:,}: no warm-up is worst",
                ", ".join(f"{w} epochs {c.mean:.1f}" for w, c in cells.items()),
                "no" if worst != 0 else "yes" if studies.significant(gain) else "not enough runs",
                studies.interval(*gain.interval, " points, best over none"),
            )
        )
    small, large = (best[size] for size in sizes)
    rows.append(
        ClaimRow(
            "M2",
            "the larger batch needs the longer warm-up (5 at 7,680, 10 at 30,720)",
            f"best {small} at {sizes[0]:,}, {large} at {sizes[1]:,}",
            "yes" if large > small else "no",
        )
    )
    return studies.result(rows, out)


RECIPE = studies.study_recipe(
    "mccord-warmup",
    "M2",
    "warm-up of 0, 5, 10, 20 epochs at two batches",
    reproduce,
    mccord.paper(
        {
            p: {"batch_size": [b[1], b[-1]], "warmup_epochs": WARMUPS[p]}
            for p, b in mccord.BATCHES.items()
        },
        {"batch_size": [7680, 30720], "warmup_epochs": WARMUPS["paper"]},
    ),
    mccord.DATA,
)
