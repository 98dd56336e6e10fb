"""Copy images of equal size from several memory-mapped buffers, in any order.

Several buffers are covered by one numpy view whose rows overlap (row i begins at byte i), so that
a single index operation copies images from all of them. Large batches are divided among threads.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

THREADS = min(4, os.cpu_count() or 1)
THREADED_FROM = 1 << 20
"""Bytes per batch from which several threads are faster than one."""
STEP = 256 << 10
"""Bytes copied at a time through a temporary array, so that it stays in the cache."""
_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def run_in_threads(
    work: Callable[[int, int], None], n: int, least: int = 1, threads: int = THREADS
) -> None:
    """Call `work(begin, end)` for parts of range(n), of at least `least` rows, in threads."""
    parts = min(threads, max(1, n // max(least, 1)))
    if parts <= 1:
        work(0, n)
        return
    # A forked child (a DataLoader worker) inherits the pool but not its threads.
    key = os.getpid(), threads
    pool = _pools.get(key)
    if pool is None:
        pool = _pools.setdefault(key, ThreadPoolExecutor(threads, "thresher-gather"))
    bounds = [n * part // parts for part in range(parts + 1)]
    others = [pool.submit(work, *bounds[p : p + 2]) for p in range(1, parts)]
    work(*bounds[:2])
    for other in others:
        other.result()


class Gather:
    """Rows of several arrays (n, …) uint8, addressed by their position in the concatenation.

    Uses 8 bytes per row if there are several arrays. `width` is the bytes per row.
    """

    def __init__(self, arrays: Sequence[np.ndarray], width: int) -> None:
        self._arrays = [array.reshape(len(array), width) for array in arrays if len(array)]
        self._width = width
        if len(self._arrays) <= 1:
            return
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
        """Copy the rows at `positions`, which are not checked, to `out` (n, width), contiguous."""
        first, n = int(positions[0]), len(positions)
        consecutive = positions[-1] == first + n - 1 and (np.diff(positions) == 1).all()
        if len(self._arrays) == 1 and consecutive:
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
                # "clip" writes directly to `out`; the default mode makes a copy first.
                np.take(array, positions[begin:end], axis=0, out=out[begin:end], mode="clip")

        run_in_threads(copy, len(positions), max(1, THREADED_FROM // 2 // self._width))


class _Memory:
    """Read-only memory at an address as a numpy array whose rows begin one byte apart."""

    def __init__(self, address: int, shape: tuple[int, int]) -> None:
        self.__array_interface__ = {
            "data": (address, True),
            "shape": shape,
            "strides": (1, 1),
            "typestr": "|u1",
            "version": 3,
        }
