"""The batches of one epoch: their samples, cuts and rates."""

import math
from dataclasses import dataclass

import numpy as np

from thresher.training.config import TrainConfig
from thresher.training.resolved import Resolved, schedule
from thresher.training.state import Progress


@dataclass(frozen=True)
class EpochPlan:
    """The batches of an epoch that are still to come."""

    order: np.ndarray
    """The samples of the whole epoch in order, as rows of the loader, (n,) int64."""
    cuts: list[tuple[int, int]]
    """Begin and end of each batch in `order`."""
    rates: list[float]
    """Learning rate of each batch."""

    def of_size(self, size: int) -> list[int]:
        """Return the numbers of the batches with `size` samples."""
        return [n for n, (begin, end) in enumerate(self.cuts) if end - begin == size]


class EpochPlanner:
    """Cuts epochs into batches until the budget of the run is used up."""

    def __init__(self, config: TrainConfig, resolved: Resolved, pruned: bool) -> None:
        self.resolved = resolved
        self.schedule = schedule(config, resolved)
        # A pruner makes epochs shorter; a budget of epochs then does not fix the samples.
        self.epochs = math.ceil(config.epochs) if pruned and config.budget == "epochs" else None
        self.by_steps = config.budget == "steps"

    def is_over(self, done: Progress) -> bool:
        """Return whether the budget is used up."""
        if self.epochs is not None:
            return done.epoch >= self.epochs
        if self.by_steps:
            return done.step >= self.resolved.total_steps
        return done.samples >= self.resolved.total_samples

    def plan(self, order: np.ndarray, done: Progress) -> EpochPlan:
        """Cut what is left of an epoch; the budget may end within it."""
        batch, end = self.resolved.global_batch, len(order)
        if self.epochs is None and not self.by_steps:
            end = min(end, done.offset + self.resolved.total_samples - done.samples)
        cuts = [(b, min(b + batch, end)) for b in range(done.offset, end, batch)]
        if self.by_steps:
            cuts = cuts[: self.resolved.total_steps - done.step]
        # By the samples that a run without dynamic pruning would have seen by then.
        share = self.resolved.samples / len(order)
        before = done.epoch * self.resolved.samples
        rates = [
            self.resolved.peak_lr * self.schedule.factor(before + begin * share, end - begin)
            for begin, end in cuts
        ]
        return EpochPlan(order, cuts, rates)
