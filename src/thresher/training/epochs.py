"""The epochs of a run: their samples, batches and rates, and how far it is."""

import math
from dataclasses import dataclass, field

import numpy as np

from thresher.data.order import epoch_order
from thresher.errors import ThresherError
from thresher.training.config import TrainConfig
from thresher.training.pruners import DynamicPruner
from thresher.training.record import finite
from thresher.training.resolved import Resolved, schedule, used_samples
from thresher.training.result import Status, TargetReached
from thresher.training.schedules import scaled_rate
from thresher.training.split import TrainingSplit


@dataclass
class Progress:
    """How far a run is."""

    step: int = 0
    """Optimizer steps taken."""
    epoch: int = 0
    offset: int = 0
    """Samples of this epoch's order that were trained on: the exact next sample."""
    samples: int = 0
    skipped: int = 0
    """Samples that the run left out of which this is a branch; its epochs count them."""
    ahead: int = 0
    """The same, whatever the budget counts."""
    seconds: float = 0.0
    """Training time, evaluations not counted."""
    input_wait: float = 0.0
    """Seconds of it for which the device waited for input, from the first batch on."""
    wall: float = 0.0
    epoch_loss: float = 0.0
    """Sum of the losses of this epoch's samples so far."""
    train_loss: float | None = None
    """Mean loss of the last whole epoch."""
    target: TargetReached | None = None
    accuracy: float | None = None
    loss: float | None = None
    """Of the latest evaluation."""
    grown: list[list[int]] = field(default_factory=list)
    """[first epoch, global batch] of each growth of the batch by the noise scale."""
    rate: float | None = None
    """Learning rate of the last step; a gradient that is still under way is applied with it."""
    ended: Status | None = None
    """How the run ended, in a checkpoint that is kept after its end."""

    @property
    def place(self) -> int:
        """Where the run is in its epochs, in samples."""
        return self.samples + self.skipped

    @property
    def input_wait_share(self) -> float | None:
        return finite(self.input_wait / self.seconds) if self.seconds else None

    @property
    def images_per_s(self) -> float | None:
        return finite(self.samples / self.seconds) if self.seconds else None


def _epochs(config: TrainConfig, resolved: Resolved) -> float:
    """Return the epochs of a run; with another budget, those that it would last without a pruner.

    With `drop_last` they are whole batches, too.
    """
    if config.budget == "epochs" and not config.drop_last:
        return config.epochs
    return resolved.total_samples / resolved.used


class EpochSamples:
    """Draws the order of each epoch; with a pruner, over the samples that it chooses."""

    def __init__(
        self,
        config: TrainConfig,
        split: TrainingSplit,
        pruner: DynamicPruner | None,
        resolved: Resolved,
    ) -> None:
        self.split, self.pruner, self.seed = split, pruner, config.seed
        self.chosen: tuple[np.ndarray, np.ndarray] | None = None
        """A pruner's choice for this epoch: (n,) bool and (n,) float32 over `split.train`."""
        self.mean_weight = 1.0
        """Mean weight of the losses of this epoch's samples."""
        if pruner is not None:
            kept = split.train[split.kept]
            epochs = math.ceil(_epochs(config, resolved))
            pruner.begin(kept, epochs, config.seed, resolved.global_batch)

    def order(self, epoch: int) -> np.ndarray:
        """Return the samples of an epoch in order, as rows of the loader, (n,) int64."""
        kept = self.split.kept
        if self.pruner is not None:
            if self.chosen is None:
                rows, n = np.flatnonzero(kept), len(kept)
                self.chosen = (np.zeros(n, bool), np.zeros(n, np.float32))
                self.chosen[0][rows], self.chosen[1][rows] = self.pruner.choose(epoch)
            kept = self.chosen[0]
        order = epoch_order(len(kept), self.seed, epoch, kept)
        if not len(order):
            raise ThresherError(f"the pruner left no sample for epoch {epoch}", "prune less")
        if self.chosen is not None:
            self.mean_weight = float(self.chosen[1][order].mean(dtype=np.float64)) or 1.0
        return order

    def end_epoch(self, table: np.ndarray | None) -> None:
        """Tell the pruner the losses of the epoch; `table` is an EpochTable's sum, (6, n)."""
        self.chosen = None
        if self.pruner is not None and table is not None:
            (rows,) = np.nonzero(table[0] > 0)
            self.pruner.observe(self.split.train[rows], table[1, rows])

    def state(self) -> dict[str, np.ndarray]:
        if self.pruner is None:
            return {}
        state = {f"state.{name}": value for name, value in self.pruner.state().items()}
        if self.chosen is not None:
            state["chosen"], state["weight"] = self.chosen
        return state

    def restore(self, state: dict[str, np.ndarray]) -> None:
        if self.pruner is None:
            return
        prefix = "state."
        self.pruner.restore({n[len(prefix) :]: a for n, a in state.items() if n.startswith(prefix)})
        if "chosen" in state:
            self.chosen = (state["chosen"], state["weight"])


@dataclass(frozen=True)
class EpochPlan:
    """The batches of an epoch that are still to come."""

    order: np.ndarray
    """The samples of the whole epoch in order, as rows of the loader, (n,) int64."""
    cuts: list[tuple[int, int]]
    """Begin and end of each batch in `order`."""
    rates: list[float]
    """Learning rate of each batch."""


class EpochPlanner:
    """Cuts epochs into batches until the budget of the run is used up."""

    def __init__(self, config: TrainConfig, resolved: Resolved, pruned: bool) -> None:
        self.resolved = resolved
        self.schedule = schedule(config, resolved)
        self.peaks = {
            batch: scaled_rate(config.lr_rule, config.lr, batch, resolved.base_batch).peak_lr
            for batch in resolved.batches
        }
        """Peak learning rate by global batch."""
        # A pruner makes epochs shorter; a budget of epochs then does not fix the samples.
        by_epochs = pruned and config.budget == "epochs"
        self.epochs = _epochs(config, resolved) if by_epochs else None
        self.known_epochs = self.epochs if pruned else _epochs(config, resolved)
        """Epochs of the run; None if they depend on a pruner."""
        self.by_steps = config.budget == "steps"
        self.drop_last = config.drop_last
        self.pruned = pruned

    def batch(self, done: Progress) -> int:
        """Return the global batch of this epoch."""
        return done.grown[-1][1] if done.grown else self.resolved.batch_at(done.epoch)

    def is_over(self, done: Progress) -> bool:
        """Return whether the budget is used up."""
        if self.epochs is not None:
            return done.epoch >= self.epochs
        if self.by_steps:
            return done.step >= self.resolved.total_steps
        return done.place >= self.resolved.total_samples

    def plan(self, order: np.ndarray, done: Progress) -> EpochPlan:
        """Cut what is left of an epoch; the budget may end within it."""
        batch = self.batch(done)
        size = end = used_samples(len(order), batch, self.drop_last)
        if self.epochs is not None:
            least = min(batch, size) if self.drop_last else 1
            end = max(least, round(min(1.0, self.epochs - done.epoch) * end))
        elif not self.by_steps:
            end = min(end, done.offset + self.resolved.total_samples - done.place)
        end = used_samples(end, batch, self.drop_last)
        cuts = [(b, min(b + batch, end)) for b in range(done.offset, end, batch)]
        if self.by_steps:
            cuts = cuts[: self.resolved.total_steps - done.step]
        rates = [
            self.peaks[batch]
            * self.schedule.factor(self._seen(done, number, begin, size), end - begin)
            for number, (begin, end) in enumerate(cuts)
        ]
        return EpochPlan(order, cuts, rates)

    def _seen(self, done: Progress, number: int, begin: int, epoch_size: int) -> float:
        """Return where on the schedule, in samples, the batch `number` from now is.

        A pruned run is as far on it as it has used up its budget.
        """
        if self.epochs is not None:
            whole = self.resolved.samples_per_epoch
            return done.epoch * whole + begin * whole / epoch_size
        if self.pruned and self.by_steps:
            return (done.step + number) / self.resolved.total_steps * self.resolved.total_samples
        return done.place + begin - done.offset
