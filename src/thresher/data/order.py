"""The order of samples: a function of (seed, epoch) alone, never of the number of workers."""

import numpy as np


def epoch_order(n: int, seed: int, epoch: int, kept: np.ndarray | None = None) -> np.ndarray:
    """A permutation of 0 … n-1 for one epoch, (n,) int64.

    With `kept`, (n,) bool, the dropped samples are taken out *after* the permutation: filtering
    then leaves the order of the rest as it was, and full and filtered runs stay comparable.
    """
    order = np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(n)
    return order if kept is None else order[kept[order]]


def part(batch: np.ndarray, rank: int, world: int, align: int = 1) -> np.ndarray:
    """Rank `rank`'s slice of a global batch; no sample is lost or repeated.

    Sizes differ by at most one; with `align` N, slices begin at multiples of N (the groups of
    `ghost:N` batch norm then lie within one worker each) and sizes differ by at most N.
    """
    begin, end = bounds(len(batch), rank, world, align)
    return batch[begin:end]


def bounds(n: int, rank: int, world: int, align: int = 1) -> tuple[int, int]:
    """Begin and end of rank `rank`'s slice of a batch of n, as `part` cuts it."""
    groups = -(-n // align)
    size, extra = divmod(groups, world)
    begin = rank * size + min(rank, extra)
    end = begin + size + (rank < extra)
    return min(begin * align, n), min(end * align, n)
