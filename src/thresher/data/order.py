"""The order of samples: a function of (seed, epoch) alone, never of the number of workers."""

import numpy as np


def epoch_order(n: int, seed: int, epoch: int, kept: np.ndarray | None = None) -> np.ndarray:
    """A permutation of 0 … n-1 for one epoch, (n,) int64.

    With `kept`, (n,) bool, the dropped samples are taken out *after* the permutation: filtering
    then leaves the order of the rest as it was, and full and filtered runs stay comparable.
    """
    order = np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(n)
    return order if kept is None else order[kept[order]]


def part(batch: np.ndarray, rank: int, world: int) -> np.ndarray:
    """Rank `rank`'s slice of a global batch; sizes differ by at most one and no sample is lost."""
    size, extra = divmod(len(batch), world)
    begin = rank * size + min(rank, extra)
    return batch[begin : begin + size + (rank < extra)]
