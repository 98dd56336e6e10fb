"""Claim M2 (McCord & Dash 2021): no warm-up is worst, and larger batches need a longer one."""

import itertools

from thresher.recipes.base import ClaimRow, Verdict
from thresher.recipes.support import holds, mccord, studies
from thresher.study.analysis import Analysis
from thresher.study.tasks import Values

WARMUPS = {"smoke": [0, 2, 4], "gpu": [0, 5, 10, 20], "paper": [0, 5, 10, 20]}


def definition(preset: str) -> Values:
    """Return the study: at two batch sizes, each warm-up is compared with every shorter one."""
    sizes = [mccord.BATCHES[preset][1], mccord.BATCHES[preset][-1]]
    epochs = WARMUPS[preset]
    pairs = [(longer, shorter) for shorter, longer in itertools.combinations(epochs, 2)]
    grid = {"batch_size": sizes, "warmup_epochs": epochs}
    return {
        **mccord.study(preset, "Accuracy against warm-up", grid),
        "compare": "warmup_epochs",
        "pairs": pairs,
        "primary": studies.in_each_cell(pairs, {"batch_size": sizes}),
    }


def rows(analysis: Analysis) -> list[ClaimRow]:
    sizes = list(dict.fromkeys(c.cell["batch_size"] for c in analysis.cells))
    epochs = list(dict.fromkeys(c.cell["warmup_epochs"] for c in analysis.cells))
    none, *some = epochs
    lines = []
    for size in sizes:
        cells = {w: studies.cell(analysis, batch_size=size, warmup_epochs=w) for w in epochs}
        tests = [studies.verdict(analysis, w, none, batch_size=size) for w in some]
        lines.append(
            ClaimRow(
                "M2",
                f"batch {size:,}: no warm-up is worst",
                ", ".join(f"{w} epochs {studies.mean(c)}" for w, c in cells.items()),
                holds.if_all(map(holds.if_better, tests)),
                ", ".join(f"{c.arm}: {studies.corrected(c)}" for c in tests),
            )
        )
    small, large = sizes[0], sizes[-1]
    best = {s: _best(analysis, s) for s in (small, large)}
    lines.append(
        ClaimRow(
            "M2",
            "the larger batch needs the longer warm-up (5 at 7,680, 10 at 30,720)",
            f"highest mean with {best[small]} at {small:,}, {best[large]} at {large:,}",
            _longer(analysis, small, large, epochs),
            note="yes needs two warm-ups of which the longer is better at the larger batch, and "
            "the shorter is better or equivalent at the smaller one",
        )
    )
    return lines


def _best(analysis: Analysis, size: int) -> object:
    cells = [c for c in analysis.cells if c.cell["batch_size"] == size]
    return max(cells, key=lambda c: c.mean or 0.0).cell["warmup_epochs"]


def _longer(analysis: Analysis, small: int, large: int, epochs: list[int]) -> Verdict:
    """Return whether the preferred warm-up is longer at the larger batch.

    Two corrected verdicts must agree, so the row is as reliable as each of them.
    """
    words = [
        [studies.verdict(analysis, *pair, batch_size=size).verdict for size in (small, large)]
        for pair in itertools.combinations(reversed(epochs), 2)
    ]
    equal = ("worse", "equivalent")
    longer = any(first in equal and second == "better" for first, second in words)
    shorter = any(first == "better" and second in equal for first, second in words)
    same = all(first == second != "not enough runs" for first, second in words)
    return holds.decided(longer, shorter or same)


RECIPE = mccord.recipe(
    "mccord-warmup",
    "M2",
    "warm-up of 0, 5, 10, 20 epochs at two batches",
    definition,
    rows,
    {"batch_size": [7680, 30720], "warmup_epochs": WARMUPS["paper"]},
)
