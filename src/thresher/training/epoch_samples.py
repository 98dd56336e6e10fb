"""Which samples each epoch trains on: those of the selection, less what a pruner leaves out."""

import math

import numpy as np

from thresher.data.order import epoch_order
from thresher.errors import ThresherError
from thresher.training.config import TrainConfig
from thresher.training.pruners import DynamicPruner
from thresher.training.split import TrainingSplit


class EpochSamples:
    """Draws the order of each epoch; with a pruner, over the samples that it chooses."""

    def __init__(
        self, config: TrainConfig, split: TrainingSplit, pruner: DynamicPruner | None
    ) -> None:
        self.split, self.pruner, self.seed = split, pruner, config.seed
        self.chosen: tuple[np.ndarray, np.ndarray] | None = None
        """A pruner's choice for this epoch: (n,) bool and (n,) float32 over `split.train`."""
        if pruner is not None:
            pruner.begin(split.train[split.kept], math.ceil(config.epochs), config.seed)

    def order(self, epoch: int) -> np.ndarray:
        """Return the samples of an epoch in order, as rows of the loader, (n,) int64."""
        kept = self.split.kept
        if self.pruner is not None:
            kept = self._choice(self.pruner, epoch)[0]
        order = epoch_order(len(kept), self.seed, epoch, kept)
        if not len(order):
            raise ThresherError(f"the pruner left no sample for epoch {epoch}", "prune less")
        return order

    def weights(self) -> np.ndarray | None:
        """Return the loss weights of this epoch, (n,) float32 over `split.train`."""
        return None if self.chosen is None else self.chosen[1]

    def _choice(self, pruner: DynamicPruner, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        if self.chosen is None:
            mask, weights = pruner.choose(epoch)
            n = len(self.split.kept)
            (rows,) = np.nonzero(self.split.kept)
            chosen, weight = np.zeros(n, bool), np.zeros(n, np.float32)
            chosen[rows], weight[rows] = mask, weights
            self.chosen = (chosen, weight)
        return self.chosen

    def end_epoch(self, table: np.ndarray | None) -> None:
        """Tell the pruner the losses of the epoch; `table` is an EpochTable's sum, (4, n)."""
        self.chosen = None
        if self.pruner is not None and table is not None:
            (rows,) = np.nonzero(table[0] > 0)
            self.pruner.observe(self.split.train[rows], table[1, rows])

    def state(self) -> dict[str, np.ndarray]:
        """Return what a checkpoint must hold."""
        if self.pruner is None:
            return {}
        state = {f"state.{name}": value for name, value in self.pruner.state().items()}
        if self.chosen is not None:
            state["chosen"], state["weight"] = self.chosen
        return state

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Set the state that `state` returned."""
        if self.pruner is None:
            return
        prefix = "state."
        self.pruner.restore(
            {n.removeprefix(prefix): a for n, a in state.items() if n.startswith(prefix)}
        )
        if "chosen" in state:
            self.chosen = (state["chosen"], state["weight"])
