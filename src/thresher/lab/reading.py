"""Benchmark of reading speed: images from each container, in sequence and at random.

The reference is a memory copy of the same bytes. Files are read through the system's cache, as in
every epoch after the first; all containers are measured in turns, in the same run.
"""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from thresher.data.export import WRITERS, samples_at
from thresher.data.meta import Shape
from thresher.data.pack import Pack
from thresher.data.sources.encoded import Description
from thresher.lab.readers import READERS, ArrayReader, PackReader, Reader
from thresher.options import option, validate
from thresher.paths import disk_errors, scratch_folder
from thresher.progress import bar
from thresher.stopping import interruptible

REQUIRED_MODULES = {"tfrecord": "tfrecord", "lmdb": "lmdb", "hdf5": "h5py"}
_COPY = ("memory copy", "sequential")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """What to measure, and for how long."""

    images: int = option(10_000, ge=1)
    """Images of the pack to write to each container."""
    batch: int = option(512, ge=1)
    """Images per batch."""
    seconds: float = option(0.5, gt=0, le=3600)
    """Seconds per measurement and round."""
    rounds: int = option(3, ge=1)
    """Rounds over all containers; the best one counts."""
    size: int = option(64, ge=1, le=4096)
    """Side in pixels to which images of unequal size are decoded."""
    folder: Path | None = option(None)
    """Folder for the temporary containers, on the disk to measure; default: the system's."""


@dataclass(frozen=True)
class ReadingSpeed:
    """One row of the benchmark."""

    container: str
    access: str
    """"sequential" or "random"."""
    images_per_s: float
    ratio_to_memory_copy: float


@dataclass(frozen=True)
class BenchResult:
    """Reading speeds of all containers."""

    pack: str
    images: int
    image_shape: Shape
    batch: int
    results: list[ReadingSpeed]
    skipped: dict[str, str]
    """Containers that were not measured, and why."""

    @property
    def rates(self) -> dict[tuple[str, str], float]:
        """Images per second by container and access."""
        return {(row.container, row.access): row.images_per_s for row in self.results}


def bench(pack: Pack, options: BenchOptions | None = None) -> BenchResult:
    """Measure how fast images are read from a pack, a folder of files and each container.

    The containers are written to a temporary folder and removed afterwards.
    """
    options = options or BenchOptions()
    validate(options)
    positions = np.arange(min(options.images, len(pack)))
    raw = pack.image_shape is not None
    shape: Shape = pack.image_shape or (options.size, options.size, 3)
    array = pack.images(positions, size=None if raw else options.size)
    skipped: dict[str, str] = {}
    with (
        disk_errors(options.folder or Path()),
        interruptible(),  # or the containers would stay
        scratch_folder("bench", options.folder) as temporary,
    ):
        readers: dict[str, Reader] = {
            "pack": PackReader(pack, positions, shape, raw),
            "memory (numpy)": ArrayReader(array),
        }
        for name, reader in READERS.items():
            module = REQUIRED_MODULES.get(name)
            if module is not None and find_spec(module) is None:
                skipped[name] = f"{module} is not installed"
                continue
            _logger.info("writing %s images as %s", f"{len(positions):,}", name)
            out = temporary / name
            out.mkdir()
            Description(pack.name, pack.classes, pack.image_shape).write(out)
            WRITERS[name](pack, samples_at(pack, positions), out)
            readers[name] = reader(out, shape, raw)
        rates = _measure(readers, array, options)
    copy = rates[_COPY]
    rows = [ReadingSpeed(*key, round(rate, 1), rate / copy) for key, rate in rates.items()]
    return BenchResult(pack.name, len(positions), shape, options.batch, rows, skipped)


def _measure(
    readers: dict[str, Reader], array: np.ndarray, options: BenchOptions
) -> dict[tuple[str, str], float]:
    tasks = {_COPY: _copied(array, min(options.batch, len(array)))}
    for name, reader in readers.items():
        tasks[name, "sequential"] = _sequential(reader, options.batch)
        if reader.random_batch is not None:
            tasks[name, "random"] = _random(reader.random_batch, options.batch)
    best = dict.fromkeys(tasks, 0.0)
    with bar("measuring", len(tasks) * options.rounds, "runs") as progress:
        for _ in range(options.rounds):
            for key, task in tasks.items():
                progress.note(f"{key[0]}, {key[1]}")
                best[key] = max(best[key], images_per_second(task.__next__, options.seconds))
                progress.advance()
    return best


def images_per_second(task: Callable[[], int], seconds: float) -> float:
    """Call `task`, which returns how many images it read, until `seconds` have passed."""
    task()  # the first call warms caches and allocates
    count, begin = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begin) < seconds or not count:
        count += task()
    return count / elapsed


# Each reads batches for ever and yields their sizes.


def _copied(array: np.ndarray, batch: int) -> Iterator[int]:
    out = np.empty((batch, *array.shape[1:]), np.uint8)
    while True:
        for begin in range(0, len(array) - batch + 1, batch):
            np.copyto(out, array[begin : begin + batch])
            yield batch


def _sequential(reader: Reader, batch: int) -> Iterator[int]:
    while True:
        yield from map(len, reader.batches(batch))


def _random(random_batch: Callable[[int], np.ndarray], batch: int) -> Iterator[int]:
    while True:
        yield len(random_batch(batch))
