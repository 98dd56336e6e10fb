"""Batch sizes, and how a global batch is cut into workers' parts and those into pieces.

With `ghost:N` batch norm every cut falls between groups of N samples (`align`), so that the groups
do not depend on the number of workers and pieces.
"""

from dataclasses import dataclass
from math import ceil
from typing import Literal

from thresher.data.order import bounds
from thresher.options import option


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """Batch size and length of a run."""

    epochs: float = option(10.0, gt=0)
    """Passes over the training samples (see `budget`)."""
    budget: Literal["epochs", "samples", "steps"] = "epochs"
    """What `epochs` keeps equal between full and filtered data: passes, samples or steps."""
    batch_size: int = option(128, ge=1)
    """Global batch size; with weak `scaling`, that of each worker."""
    drop_last: bool = False
    """Leave out the samples at the end of an epoch that do not fill a batch, so that every batch
    has the same size. They are others in each epoch. With `budget` steps, full and filtered runs
    then also train on equally many samples."""
    scaling: Literal["strong", "weak"] = "strong"
    """strong: the workers share the batch; weak: the batch grows with the workers."""
    batch_schedule: str | None = None
    """Change the batch between epochs: double@10,20 doubles it at epochs 10 and 20, 0:64,10:256
    gives batches by first epoch, as does a CSV file with the columns epoch and batch; noise doubles
    it whenever it is far below the gradient noise scale. The rate follows `lr_rule`."""
    max_batch: int | None = option(None, ge=1)
    """The largest batch of `batch_schedule` noise (default: 16 times the first)."""
    micro_batch: int | Literal["auto"] | None = option(None, ge=1, changes_result=False)
    """Most samples on a device at once; larger parts are accumulated. auto: as many as fit."""


def slices(n: int, count: int, align: int = 1) -> list[tuple[int, int]]:
    """Cut 0 … n into `count` consecutive slices, as even as `align` allows; some may be empty."""
    return [bounds(n, k, count, align) for k in range(count)]


def largest_part(n: int, world: int, align: int = 1) -> int:
    """Return the samples of the worker that gets most of a batch of `n`."""
    return max(end - begin for begin, end in slices(n, world, align))


def piece_count(n: int, world: int, micro: int | None, align: int = 1) -> int:
    """Return how many pieces of at most `micro` samples each worker cuts its part of `n` into.

    The count is the same on every worker, since they step together.
    """
    part = largest_part(n, world, align)
    if micro is None or part <= micro:
        return 1
    return ceil(ceil(part / align) / max(1, micro // align))
