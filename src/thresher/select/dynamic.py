"""Pruning while training: InfoBatch, and random pruning as its control.

Both keep the protocol `thresher.data.pruning.DynamicPruner`. Choices depend on (seed, epoch) and
on the losses seen, never on ranks or on the order of batches.
"""

from dataclasses import dataclass

import numpy as np

from thresher.errors import ThresherError


@dataclass
class _Epochwise:
    """What both share: positions, losses, and full epochs at the end."""

    ratio: float = 0.5
    """Share pruned among the samples that may be."""
    annealed: float = 0.125
    """Share of the epochs, at the end, that train on everything."""

    def begin(self, positions: np.ndarray, epochs: int, seed: int) -> None:
        if not 0 <= self.ratio < 1 or not 0 <= self.annealed <= 1:
            raise ThresherError(
                f"a pruning ratio of {self.ratio} with {self.annealed} annealed is no choice",
                "the ratio lies in [0, 1), the annealed share in [0, 1]",
            )
        self.positions = np.asarray(positions, np.int64)
        self.epochs, self.seed = epochs, seed
        self.losses = np.full(len(self.positions), np.nan, np.float32)

    def observe(self, positions: np.ndarray, losses: np.ndarray) -> None:
        self.losses[np.searchsorted(self.positions, positions)] = losses

    def state(self) -> dict[str, np.ndarray]:
        return {"losses": self.losses.copy()}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        if state["losses"].shape != self.positions.shape:
            raise ThresherError("the checkpoint's pruner saw other samples", "start a new run")
        self.losses = np.array(state["losses"], np.float32)

    def _full(self, epoch: int) -> bool:
        return epoch >= np.ceil(self.epochs * (1 - self.annealed))

    def _random(self, epoch: int) -> np.ndarray:
        stream = np.random.Philox(key=[self.seed, 0x1F0BA], counter=[0, 0, 0, epoch])
        return np.random.Generator(stream).random(len(self.positions))

    def _everything(self) -> tuple[np.ndarray, np.ndarray]:
        n = len(self.positions)
        return np.ones(n, bool), np.ones(n, np.float32)


@dataclass
class InfoBatch(_Epochwise):
    """InfoBatch (Qin et al. 2024): of the samples whose last loss lies below the mean, a random
    share is left out of the epoch, and the gradients of the rest of them are scaled up by
    1/(1 − ratio), so that the expected gradient is that of the whole set."""

    def choose(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        keep, weight = self._everything()
        seen = np.isfinite(self.losses)
        if self._full(epoch) or not seen.any():
            return keep, weight
        easy = seen & (self.losses < self.losses[seen].mean(dtype=np.float64))
        keep[easy & (self._random(epoch) < self.ratio)] = False
        weight[easy] = 1 / (1 - self.ratio)
        return keep, weight


@dataclass
class DynamicRandom(_Epochwise):
    """Each epoch leaves out another random share of all samples, unweighted: the control."""

    ratio: float = 0.3

    def choose(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        keep, weight = self._everything()
        if not self._full(epoch):
            order = np.argsort(self._random(epoch), kind="stable")
            keep[order[: round(self.ratio * len(order))]] = False
        return keep, weight
