"""`thresher data bench`: how fast images come out of each container, in sequence and at random.

The yardstick is a plain memory copy of the same bytes. Files are read through the system's cache,
as in any epoch but the first; all containers are measured in turns, in the same run.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from thresher.data.export import WRITERS, Sample
from thresher.data.pack import Pack
from thresher.data.sources.description import Description
from thresher.errors import ThresherError
from thresher.lab.readers import READERS, ArrayReader, PackReader, Reader, Shape
from thresher.paths import atomic_file
from thresher.progress import bar, say

NEEDS = {"tfrecord": "tfrecord", "lmdb": "lmdb", "hdf5": "h5py"}


@dataclass(frozen=True)
class BenchOptions:
    images: int = 10_000
    """Images of the pack to put into each container."""
    batch: int = 512
    """Images per batch."""
    seconds: float = 0.5
    """How long each measurement takes, per round."""
    rounds: int = 3
    """Rounds over all containers; the best of them counts."""
    size: int = 64
    """The side that images of unequal size are decoded to."""


def bench(pack: Pack, options: BenchOptions, folder: Path | None = None) -> dict[str, Any]:
    """Rows of container, access, images_per_s and ratio_to_memory_copy, and what was left out.

    Containers are written to a temporary folder (under `folder`), and removed.
    """
    if min(options.images, options.batch, options.rounds, options.size) < 1:
        raise ThresherError("images, batch, rounds and size must be at least 1")
    positions = np.arange(min(options.images, len(pack)))
    raw = pack.image_shape is not None
    shape: Shape = pack.image_shape or (options.size, options.size, 3)
    array = pack.images(positions, size=None if raw else options.size)
    skipped: dict[str, str] = {}
    with TemporaryDirectory(dir=folder, prefix="thresher-bench-") as place:
        readers: dict[str, Reader] = {
            "pack": PackReader(pack, positions, shape, raw),
            "memory (numpy)": ArrayReader(array),
        }
        for name, module in ((name, NEEDS.get(name)) for name in READERS):
            if module is not None and not _installed(module):
                skipped[name] = f"{module} is not installed"
                continue
            _write(pack, positions, Path(place) / name, name)
            readers[name] = READERS[name](Path(place) / name, shape, raw)
        rates = _measure(readers, array, options)
    copy = rates.pop(("memory copy", "sequential"))
    rows = [("memory copy", "sequential", copy), *((*key, rate) for key, rate in rates.items())]
    return {
        "pack": pack.name,
        "images": len(positions),
        "image_shape": list(shape),
        "batch": options.batch,
        "results": [
            {
                "container": container,
                "access": access,
                "images_per_s": round(rate, 1),
                "ratio_to_memory_copy": rate / copy,
            }
            for container, access, rate in rows
        ],
        "skipped": skipped,
    }


def _installed(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None


def _write(pack: Pack, positions: np.ndarray, out: Path, format: str) -> None:
    say(f"writing {len(positions):,} images as {format}")
    ids, splits = pack.ids.take(positions).to_pylist(), pack.splits.take(positions).to_pylist()
    samples = [
        Sample(int(position), ids[n], int(pack.labels[position]), splits[n])
        for n, position in enumerate(positions)
    ]
    out.mkdir()
    Description(pack.name, pack.classes, pack.image_shape).write(out)
    WRITERS[format](pack, samples, out)


def _measure(
    readers: dict[str, Reader], array: np.ndarray, options: BenchOptions
) -> dict[tuple[str, str], float]:
    tasks: dict[tuple[str, str], Callable[[], int]] = {
        ("memory copy", "sequential"): _copier(array, options.batch)
    }
    for name, reader in readers.items():
        tasks[name, "sequential"] = _sequence(reader, options.batch)
        if reader.random_batch is not None:
            tasks[name, "random"] = _jumper(reader.random_batch, options.batch)
    best = dict.fromkeys(tasks, 0.0)
    with bar("measuring", len(tasks) * options.rounds, "runs") as shown:
        for _ in range(options.rounds):
            for key, task in tasks.items():
                shown.note(f"{key[0]}, {key[1]}")
                best[key] = max(best[key], rate(task, options.seconds))
                shown.advance()
    return best


def rate(task: Callable[[], int], seconds: float) -> float:
    """Images per second of a task that gives how many it read, called again until time is up."""
    task()  # the first call warms caches and allocates
    done, begun = 0, time.perf_counter()
    while (spent := time.perf_counter() - begun) < seconds or not done:
        done += task()
    return done / spent


def _copier(array: np.ndarray, batch: int) -> Callable[[], int]:
    batch = min(batch, len(array))
    out = np.empty((batch, *array.shape[1:]), np.uint8)
    state = {"at": 0}

    def copy() -> int:
        at = state["at"] if state["at"] + batch <= len(array) else 0
        np.copyto(out, array[at : at + batch])
        state["at"] = at + batch
        return batch

    return copy


def _sequence(reader: Reader, batch: int) -> Callable[[], int]:
    state = {"batches": reader.batches(batch)}

    def following() -> int:
        found = next(state["batches"], None)
        if found is None:
            state["batches"] = reader.batches(batch)
            found = next(state["batches"])
        return len(found)

    return following


def _jumper(random_batch: Callable[[int], np.ndarray], batch: int) -> Callable[[], int]:
    return lambda: len(random_batch(batch))


def figure(found: dict[str, Any], path: Path) -> None:
    """Bars of images per second, one pair per container; .svg, .png or .pdf by the name."""
    if path.suffix.lower() not in (".svg", ".png", ".pdf"):
        raise ThresherError(f"{path} is not a figure's name", "end it in .svg, .png or .pdf")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rates: dict[str, dict[str, float]] = {}
    for row in found["results"]:
        rates.setdefault(row["container"], {})[row["access"]] = row["images_per_s"]
    names = sorted(rates, key=lambda name: max(rates[name].values()))
    plot, axes = plt.subplots(figsize=(7, 0.9 + 0.5 * len(names)), layout="constrained")
    for offset, (access, colour) in zip(
        (0.2, -0.2), {"sequential": "#4477aa", "random": "#ee7733"}.items(), strict=True
    ):
        values = [rates[name].get(access, 0) for name in names]
        axes.barh(np.arange(len(names)) + offset, values, 0.38, label=access, color=colour)
        for y, value in enumerate(values):
            text = f" {value:,.0f}" if value else " —"
            at = value or min(v for r in rates.values() for v in r.values())
            axes.text(at, y + offset, text, va="center", fontsize=8)
    axes.set_yticks(range(len(names)), names)
    axes.set_xscale("log")
    axes.set_xlabel("images per second")
    axes.margins(x=0.15)
    shape = "×".join(str(side) for side in found["image_shape"])
    axes.set_title(f"{found['pack']}: {found['images']:,} images of {shape}", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    plot.legend(loc="outside lower right", ncols=2, frameon=False)
    with atomic_file(path) as temporary:
        plot.savefig(temporary, format=path.suffix[1:].lower(), dpi=150)
    plt.close(plot)
