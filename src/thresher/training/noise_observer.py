"""Observe the gradient noise scale of training steps.

Both norms are free in data-parallel training: before and after the reduction.
"""

import math

import torch
from torch import Tensor

from thresher.data.order import bounds
from thresher.distributed.group import Group
from thresher.errors import InvalidValueError
from thresher.training.batch_growth import EVERY
from thresher.training.batches import slices
from thresher.training.device_data import Part
from thresher.training.noise_estimate import NoiseEstimate, gradients_of, mean_small, squared_norm
from thresher.training.step import Step


class NoiseObserver:
    """Observes steps; measurements of an epoch are on the device, sums of the run on the host.

    The small batch is each worker's part. On one worker it is the first of several pieces, or else
    either half of the batch, run once more beside the step, which does not change. The halves are
    compared with their own mean, not with the gradient of the step: batch norm normalises each half
    by its own statistics, so that the gradient of the whole batch has another expectation.

    With `halves` they are compared on any number of workers and pieces, so that the value does not
    depend on those. That costs an additional pass, and an exchange, in the steps that are observed.
    """

    def __init__(self, group: Group, halves: bool = False) -> None:
        self.group, self.halves = group, halves
        self.estimate = NoiseEstimate()
        self._small: tuple[Tensor, float] | None = None
        self._halves: tuple[Tensor, float, Tensor, float] | None = None
        self._pairs: list[tuple[Tensor, float, Tensor, float]] = []

    @classmethod
    def observing(cls, step: Step, halves: bool = False) -> "NoiseObserver":
        """Return an observer of `step`, whose exchange must allow it."""
        if not step.group.alone and not step.exchange.observable:
            raise InvalidValueError(
                "`noise_scale` is measured only where DDP reduces the gradients",
                "leave it out, or `average_every`, `delay` and `engine`",
            )
        return cls(step.group, halves)

    def is_due(self, step: int) -> bool:
        return step % EVERY == 0

    def before_step(self, step: Step, part: Part, count: int) -> None:
        n = len(part.rows)
        if self.halves or (self.group.alone and step.pieces(count) == 1):
            self._compare_halves(step, part, count)
        elif not self.group.alone:
            # Weighted by samples, uneven parts are on average those of count / (parts with any):
            # Σ n/count · (|G|² + S/n). `settle` takes the mean over the workers.
            parts = min(self.group.world, math.ceil(count / step.align))
            scale = self.group.world * count / n * _unscaled(step) if n else 0.0
            step.exchange.observe(lambda norm: self.small(norm * scale, count / parts))

    def _compare_halves(self, step: Step, part: Part, count: int) -> None:
        half = slices(count, 2, step.align)[0][1]
        if not 0 < half < count:
            return
        begin, end = bounds(count, self.group.rank, self.group.world, step.align)
        middle = min(max(half, begin), end) - begin
        pieces = step.pieces(count)
        step.probe(part, slice(0, middle), half, pieces)
        first = self._summed(gradients_of(step.model))
        step.probe(part, slice(middle, end - begin), count - half, pieces)
        second = self._summed(gradients_of(step.model))
        scale = _unscaled(step)
        small = (squared_norm(first) + squared_norm(second)) / 2 * scale
        means = [torch.lerp(b, a, half / count) for a, b in zip(first, second, strict=True)]
        big = squared_norm(means) * scale
        self._halves = (small, mean_small(half, count - half), big, count)

    def _summed(self, gradients: list[Tensor]) -> list[Tensor]:
        """Return the sum over the workers."""
        if self.group.alone:
            return gradients
        return [self.group.all_reduce_sum(torch.cat([g.flatten() for g in gradients]))]

    def after_first_piece(self, step: Step, samples: int, count: int) -> None:
        if self.group.alone and samples and not self.halves:
            scale = (count / samples) ** 2 * _unscaled(step)
            self.small(squared_norm(gradients_of(step.model)) * scale, samples)

    def after_gradients(self, step: Step, count: int) -> None:
        # Only now: a step that ran out of memory is repeated from `before_step`.
        if self._halves is not None:
            self._pairs.append(self._halves)
            self._halves = None
        elif self._small is not None:
            self.big(squared_norm(gradients_of(step.model)), count)

    def small(self, norm: Tensor, batch: float) -> None:
        self._small = (norm, batch)

    def big(self, norm: Tensor, batch: float) -> None:
        """Take that of the global batch; with the small one before it, it is a measurement."""
        if self._small is not None and self._small[1] < batch:
            self._pairs.append((*self._small, norm, batch))
        self._small = None

    def settle(self) -> None:
        """Add the measurements to the sums; every rank calls it (waits for the device)."""
        if not self._pairs:
            return
        small = torch.stack([pair[0] for pair in self._pairs])
        if not self.group.alone:
            self.group.all_reduce_sum(small)
            small /= self.group.world
        big = torch.stack([pair[2] for pair in self._pairs])
        rows = zip(small.tolist(), big.tolist(), self._pairs, strict=True)
        for g_small, g_big, (_, b, _, batch) in rows:
            self.estimate.add(g_small, b, g_big, batch)
        self._pairs.clear()


def _unscaled(step: Step) -> float:
    """Return the factor that removes fp16's loss scale from a squared norm."""
    return 1.0 / step.scaler.get_scale() ** 2
