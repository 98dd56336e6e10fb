"""How a global batch is cut: into workers' parts, and those into pieces run one after another.

With `ghost:N` batch norm every cut falls between groups of N samples, so that the groups are the
same whatever the number of workers and pieces.
"""

from itertools import pairwise
from math import ceil

import numpy as np


def bounds(n: int, count: int, group: int | None = None) -> list[tuple[int, int]]:
    """`count` consecutive slices of 0 … n, as even as whole groups allow; some may be empty."""
    unit = group or 1
    units = ceil(n / unit)
    size, extra = divmod(units, count)
    cuts = [min((size * k + min(k, extra)) * unit, n) for k in range(count + 1)]
    return list(pairwise(cuts))


def part(batch: np.ndarray, rank: int, world: int, group: int | None = None) -> np.ndarray:
    """The samples of `batch` that worker `rank` takes."""
    begin, end = bounds(len(batch), world, group)[rank]
    return batch[begin:end]


def largest_part(n: int, world: int, group: int | None = None) -> int:
    return max(end - begin for begin, end in bounds(n, world, group))


def piece_count(n: int, world: int, micro: int, group: int | None = None) -> int:
    """How many pieces each worker cuts its part of a batch of `n` into, so that none has more than
    `micro` samples (0: no limit). It is the same on every worker, since they step together."""
    whole = largest_part(n, world, group)
    if not micro or whole <= micro:
        return 1
    unit = group or 1
    return ceil(ceil(whole / unit) / max(1, micro // unit))
