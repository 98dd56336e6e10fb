"""Claims K5 and J1 (Keuper; Jitsev 2021): reading many small files at random is slowest."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np

from thresher.recipes.base import ClaimRow, Recipe, RecipeResult
from thresher.recipes.support import holds, studies
from thresher.recipes.support.differences import PaperSettings
from thresher.study.comparisons import ArmComparison

SIZES: dict[str, tuple[str, int, int]] = {
    "smoke": ("digits", 1500, 3),
    "gpu": ("cifar10", 10_000, 5),
    "paper": ("cifar10", 50_000, 5),
}
"""Data set, images and rounds; the file system measured is that of the output folder."""

WORST = "folder, random"


def reproduce(preset: str, out: Path) -> RecipeResult:
    from thresher.data.pack import Pack
    from thresher.lab.reading import BenchOptions, bench

    name, images, rounds = SIZES[preset]
    pack = Pack.open(name)
    out.mkdir(parents=True, exist_ok=True)
    options = BenchOptions(images=images, rounds=1, seconds=0.3, folder=out)
    results = [bench(pack, options) for _ in range(rounds)]
    rates = {key: [r.rates[key] for r in results] for key in results[0].rates}
    return RecipeResult(rows(rates), {"rounds": [asdict(result) for result in results]})


def rows(rates: Mapping[tuple[str, str], list[float]]) -> list[ClaimRow]:
    """Return the rows from images/s of each round, by container and access.

    Logarithms of the speeds are compared, because the containers differ by orders of magnitude.
    """
    random = [c for c, access in rates if access == "random" and "memory" not in c]
    names = {f"{c}, random": (c, "random") for c in random}
    names["folder, sequential"] = ("folder", "sequential")
    values = {(name,): dict(enumerate(np.log(rates[key]))) for name, key in names.items()}
    pairs = tuple((name, WORST) for name in names if name != WORST)
    analysis = studies.compare_values(values, ("read",), pairs=pairs, margin=math.log(1.05))
    tests = {c.arm: c for c in analysis.verdicts}
    others = [tests[f"{c}, random"] for c in random if c != "folder"]
    medians = {c: float(np.median(rates[c, "random"])) for c in random}
    slowest = min(medians, key=lambda c: medians[c])
    pack, sequence = tests["pack, random"], tests["folder, sequential"]
    return [
        ClaimRow(
            "K5",
            "many small files at random are the worst pattern",
            f"slowest at random: {slowest} ({medians[slowest]:,.0f} images/s)",
            holds.if_all(map(holds.if_better, others)),
        ),
        ClaimRow(
            "K5",
            "one large binary with fixed offsets cures it",
            f"a pack reads {math.exp(pack.difference):.0f}× the images/s of a folder",
            holds.decided(pack.adjusted_low > math.log(2), pack.adjusted_high < math.log(2)),
            _times(pack),
            "yes needs at least twice the speed",
        ),
        ClaimRow(
            "J1",
            "containers should be read in sequence",
            f"a folder in sequence is {math.exp(sequence.difference):.2f}× as fast as at random",
            holds.if_better(sequence),
            _times(sequence),
            "files were in the page cache: a cold, shared file system would show more",
        ),
    ]


def _times(comparison: ArmComparison) -> str:
    """Return the corrected interval of a ratio; empty if it is not finite."""
    low, high = comparison.adjusted_low, comparison.adjusted_high
    if not math.isfinite(high - low):
        return ""
    digits = 2 if high < math.log(10) else 0
    return f"{math.exp(low):,.{digits}f} … {math.exp(high):,.{digits}f}×"


RECIPE = Recipe(
    "keuper-io",
    "K5",
    "reading many small files at random against one binary with fixed offsets",
    {name: partial(reproduce, name) for name in SIZES},
    {name: data for name, (data, _, _) in SIZES.items()},
    PaperSettings(
        {"file_system": "Lustre, and a local SSD"},
        {
            name: {"data": data, "images": images, "file_system": "of the output folder, cached"}
            for name, (data, images, _) in SIZES.items()
        },
    ),
)
