"""Random gathers of equal-sized images out of several memory-mapped buffers.

One buffer: `np.take` straight into the result. Several: their addresses are laid under one numpy
view whose rows overlap (row i begins at byte i), so that a single fancy index copies images from
all of them. Large batches are shared out among threads; numpy lets go of the interpreter's lock.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

THREADS = min(4, os.cpu_count() or 1)
SHARED_FROM = 1 << 20
"""Bytes below which a batch is not worth a second thread."""
STEP = 256 << 10
"""Bytes copied at a time where a copy goes through a temporary: it stays in the cache."""
_pools: dict[int, ThreadPoolExecutor] = {}


def run_in_threads(work: Callable[[int, int], None], n: int, least: int = 1) -> None:
    """Call `work(begin, end)` on parts of 0 … n-1 in threads; parts have at least `least`."""
    parts = min(THREADS, max(1, n // max(least, 1)))
    if parts <= 1:
        work(0, n)
        return
    # A forked child (a DataLoader's worker) has its parent's pool but not its threads.
    pool = _pools.get(os.getpid())
    if pool is None:
        pool = _pools.setdefault(os.getpid(), ThreadPoolExecutor(THREADS, "thresher-gather"))
    bounds = [n * part // parts for part in range(parts + 1)]
    others = [pool.submit(work, *bounds[p : p + 2]) for p in range(1, parts)]
    work(*bounds[:2])
    for other in others:
        other.result()


class Gather:
    """Rows of equal width in `arrays`, each (n, …) uint8 and contiguous, as one long column.

    Holds 8 bytes per row where there are several arrays. Positions must have been checked.
    """

    def __init__(self, arrays: Sequence[np.ndarray], width: int) -> None:
        self._arrays = [array.reshape(len(array), width) for array in arrays if len(array)]
        self._width = width
        if len(self._arrays) > 1:
            self._lay_under_one_view()

    def _lay_under_one_view(self) -> None:
        begins = [array.__array_interface__["data"][0] for array in self._arrays]
        base = min(begins)
        offsets = [
            begin - base + self._width * np.arange(len(array), dtype=np.int64)
            for begin, array in zip(begins, self._arrays, strict=True)
        ]
        self._offsets = np.concatenate(offsets)
        rows = int(self._offsets.max()) + 1
        self._view = np.asarray(_Memory(base, (rows, self._width)))

    def into(self, positions: np.ndarray, out: np.ndarray) -> None:
        """Copy the rows at `positions` to `out`, (len(positions), width) uint8, contiguous."""
        first, n = int(positions[0]), len(positions)
        if len(self._arrays) == 1 and positions[-1] == first + n - 1 and _ascending(positions):
            np.copyto(out, self._arrays[0][first : first + n])
            return
        if len(self._arrays) > 1:
            rows = self._offsets[positions]
            step = max(1, STEP // self._width)

            def copy(begin: int, end: int) -> None:
                for at in range(begin, end, step):
                    till = min(at + step, end)
                    out[at:till] = self._view[rows[at:till]]
        else:

            def copy(begin: int, end: int) -> None:
                (array,) = self._arrays
                # "clip" writes straight into `out`; the default mode would go through a copy.
                np.take(array, positions[begin:end], axis=0, out=out[begin:end], mode="clip")

        run_in_threads(copy, len(positions), max(1, SHARED_FROM // 2 // self._width))


def _ascending(positions: np.ndarray) -> bool:
    return bool((positions[1:] == positions[:-1] + 1).all())


class _Memory:
    """Read-only memory at an address, for numpy; rows begin one byte after another."""

    def __init__(self, address: int, shape: tuple[int, int]) -> None:
        self.__array_interface__ = {
            "data": (address, True),
            "shape": shape,
            "strides": (1, 1),
            "typestr": "|u1",
            "version": 3,
        }
