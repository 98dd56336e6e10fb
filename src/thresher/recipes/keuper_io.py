"""Claims K5 and J1 (Keuper; Jitsev 2021): reading many small files at random is slowest."""

from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np

from thresher.recipes.base import ClaimRow, Recipe, RecipeResult
from thresher.recipes.support.differences import PaperSettings

SIZES: dict[str, tuple[str, int, int]] = {
    "smoke": ("digits", 1500, 3),
    "gpu": ("cifar10", 10_000, 5),
    "paper": ("cifar10", 50_000, 5),
}
"""Data set, images and rounds; the file system measured is that of the output folder."""


def reproduce(preset: str, out: Path) -> RecipeResult:
    from thresher.data.pack import Pack
    from thresher.lab.reading import BenchOptions, bench

    name, images, rounds = SIZES[preset]
    pack = Pack.open(name)
    out.mkdir(parents=True, exist_ok=True)
    options = BenchOptions(images=images, rounds=1, seconds=0.3, folder=out)
    results = [bench(pack, options) for _ in range(rounds)]
    rates = {key: np.array([r.rates[key] for r in results]) for key in results[0].rates}
    random = {c: r for (c, access), r in rates.items() if access == "random" and "memory" not in c}
    medians = {container: float(np.median(values)) for container, values in random.items()}
    worst = min(medians, key=lambda c: medians[c])
    ratio = random["pack"] / random["folder"]
    folder_ratio = rates["folder", "sequential"] / rates["folder", "random"]
    rows = [
        ClaimRow(
            "K5",
            "many small files at random are the worst pattern",
            f"slowest at random: {worst} ({medians[worst]:,.0f} images/s)",
            "yes" if worst == "folder" else "no",
        ),
        ClaimRow(
            "K5",
            "one large binary with fixed offsets cures it",
            f"a pack reads {np.median(ratio):.0f}× the images/s of a folder",
            "yes" if ratio.min() > 2 else "no",
            f"{ratio.min():.0f} … {ratio.max():.0f}× over {rounds} rounds",
        ),
        ClaimRow(
            "J1",
            "containers should be read in sequence",
            f"a folder in sequence is {np.median(folder_ratio):.2f}× as fast as at random",
            "yes" if folder_ratio.min() > 1.05 else "no",
            f"{folder_ratio.min():.2f} … {folder_ratio.max():.2f}×",
            "files were in the page cache: a cold, shared file system would show more",
        ),
    ]
    return RecipeResult(rows, {"rounds": [asdict(result) for result in results]})


RECIPE = Recipe(
    "keuper-io",
    "K5",
    "reading many small files at random against one binary with fixed offsets",
    {name: partial(reproduce, name) for name in SIZES},
    {name: data for name, (data, _, _) in SIZES.items()},
    PaperSettings(
        {"data": "ImageNet", "file_system": "shared, cold"},
        {
            name: {"data": data, "images": images, "file_system": "of the output folder, cached"}
            for name, (data, images, _) in SIZES.items()
        },
    ),
)
