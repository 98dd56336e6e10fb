"""The order of samples: a function of (seed, epoch), independent of the number of workers."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def epoch_order(n: int, seed: int, epoch: int, kept: "np.ndarray | None" = None) -> "np.ndarray":
    """Return a permutation of the `n` samples, or of the `kept` ones, int64.

    Samples are removed after the permutation, so that filtering does not change the order of the
    rest, and full and filtered runs stay comparable.
    """
    import numpy as np

    order = np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(n)
    return order if kept is None else order[kept[order]]


def part(batch: "np.ndarray", rank: int, world: int, align: int = 1) -> "np.ndarray":
    """Return a worker's part of a global batch; the parts cover the batch without overlap.

    Sizes differ by at most `align`. Parts begin at multiples of `align`, so that each group of
    `ghost:N` batch norm is within one worker.
    """
    begin, end = bounds(len(batch), rank, world, align)
    return batch[begin:end]


def bounds(n: int, rank: int, world: int, align: int = 1) -> tuple[int, int]:
    """Return begin and end of a worker's part of a batch of `n` samples, as in `part`."""
    groups = -(-n // align)
    size, extra = divmod(groups, world)
    begin = rank * size + min(rank, extra)
    end = begin + size + (rank < extra)
    return min(begin * align, n), min(end * align, n)
