"""The order of an epoch as a sampler that trainers take for torch's DistributedSampler."""

from typing import Any

import numpy as np
from torch.utils.data import DistributedSampler

from thresher.data.sampler import EpochSampler


class DistributedEpochSampler(EpochSampler, DistributedSampler[Any]):  # type: ignore[override]
    """An `EpochSampler` that divides the samples among the workers.

    Lightning divides those of any other sampler again, so that a part of them would be left out.
    """

    shuffle, drop_last = True, False

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        """Number of workers, as torch calls it."""
        return self.world


def epoch_sampler(
    positions: np.ndarray, seed: int, rank: int | None, world: int | None
) -> EpochSampler:
    """Return an `EpochSampler`; where it divides the samples, one that says so to trainers."""
    if world == 1:
        return EpochSampler(positions, seed, rank, world)
    return DistributedEpochSampler(positions, seed, rank, world)
