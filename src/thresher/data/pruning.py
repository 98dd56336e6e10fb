"""What prunes while training: a protocol that `train` calls and `select` implements."""

from typing import Protocol

import numpy as np


class DynamicPruner(Protocol):
    """Chooses each epoch's samples from what it has seen of their losses.

    `positions` below are positions in the pack. Every rank calls with the same arguments (losses
    are gathered before), so that every rank makes the same choice.
    """

    def begin(self, positions: np.ndarray, epochs: int, seed: int) -> None:
        """The training samples of this run, ascending, and how many epochs there will be."""

    def choose(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Which samples this epoch trains on: (n,) bool over `positions`; and (n,) float32, the
        weight that each one's loss gets (1 where nothing is pruned)."""

    def observe(self, positions: np.ndarray, losses: np.ndarray) -> None:
        """The unweighted losses of a batch, as seen in training."""

    def state(self) -> dict[str, np.ndarray]:
        """What a checkpoint must hold to go on exactly."""

    def restore(self, state: dict[str, np.ndarray]) -> None: ...
