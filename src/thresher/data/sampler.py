"""The order of an epoch as a sampler for torch's DataLoader, on any number of workers."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import distributed
from torch.utils.data import DistributedSampler

from thresher.data.order import epoch_order
from thresher.errors import InvalidValueError


class EpochSampler:
    """Yields the kept samples of an epoch in the order of `thresher train`; see `set_epoch`.

    Rank r takes the samples r, r + world, … of the order, so the workers' batches of step k
    together are batch k of the order, whatever their number. If the samples do not divide evenly,
    the first ones are repeated, as in torch's DistributedSampler: every rank takes as many steps.

    Args:
        positions: (n,) index in the data set of each training sample in pack order; -1 for samples
            that are left out.
        seed: Seed of the order.
        rank: Number of this worker; default: that of the torch.distributed group when an epoch
            begins.
        world: Number of workers; default: that of the group then, or 1.
    """

    def __init__(
        self,
        positions: np.ndarray,
        seed: int = 0,
        rank: int | None = None,
        world: int | None = None,
    ) -> None:
        if (rank is None) != (world is None):
            raise InvalidValueError("rank and world must be given together")
        if rank is not None and world is not None and not 0 <= rank < world:
            raise InvalidValueError(f"rank must be in [0, {world}), got {rank}", "", "rank")
        self._given = None if rank is None or world is None else (rank, world)
        self.positions, self.seed, self.epoch = positions, seed, 0
        self.count = int((positions >= 0).sum())
        if not self.count:
            raise InvalidValueError("the selection keeps no sample of the data set", "keep some")

    @property
    def rank(self) -> int:
        """Number of this worker."""
        return (self._given or process_rank())[0]

    @property
    def world(self) -> int:
        """Number of workers; they may join after the sampler was made."""
        return (self._given or process_rank())[1]

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0; call it before each."""
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-self.count // self.world)

    def __iter__(self) -> Iterator[int]:
        kept = self.positions >= 0
        order = self.positions[epoch_order(len(kept), self.seed, self.epoch, kept)]
        return iter(np.resize(order, len(self) * self.world)[self.rank :: self.world].tolist())


class DistributedEpochSampler(EpochSampler, DistributedSampler[Any]):  # type: ignore[override]
    """An `EpochSampler` that divides the samples among the workers.

    Lightning divides those of any other sampler again, so that a part of them would be left out.
    """

    shuffle, drop_last = True, False

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        """Number of workers, as torch calls it."""
        return self.world


def process_rank() -> tuple[int, int]:
    """Return rank and world size in the torch.distributed group; (0, 1) without one."""
    if not distributed.is_available() or not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()
