"""Observe the gradient noise scale of training steps.

Both norms are free in data-parallel training: before and after the reduction.
"""

import torch
from torch import Tensor, nn

from thresher.distributed.group import Group
from thresher.errors import InvalidValueError
from thresher.training.batches import slices
from thresher.training.device_data import Part
from thresher.training.noise_estimate import NoiseEstimate, squared_norm
from thresher.training.step import Step

EVERY = 10
"""Steps between measurements."""


class NoiseObserver:
    """Observes steps; measurements of an epoch are on the device, sums of the run on the host.

    The small batch is each worker's part. On one worker it is the first of several pieces, or else
    the first half of the batch, run once more beside the step, which it does not change.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self.estimate = NoiseEstimate()
        self._small: tuple[Tensor, float] | None = None
        self._pairs: list[tuple[Tensor, float, Tensor, float]] = []

    @classmethod
    def observing(cls, step: Step) -> "NoiseObserver":
        """Return an observer of `step`, whose exchange must allow it."""
        if not step.group.alone and not step.exchange.observable:
            raise InvalidValueError(
                "`noise_scale` is measured only where DDP reduces the gradients",
                "leave it out, or `average_every`, `delay` and `engine`",
            )
        return cls(step.group)

    def is_due(self, step: int) -> bool:
        return step % EVERY == 0

    def before_step(self, step: Step, part: Part, count: int) -> None:
        n = len(part.rows)
        if not self.group.alone:
            scale = (count / n) ** 2 * _unscaled(step) if n else 0.0
            batch = count / self.group.world
            step.exchange.observe(lambda norm: self.small(norm * scale, batch))
        elif step.pieces(count) == 1:
            half = slices(n, 2, step.align)[0][1]
            if 0 < half < n:
                step.probe(part, half)
                self.small(_squared_norm(step.model) * _unscaled(step), half)

    def after_first_piece(self, step: Step, samples: int, count: int) -> None:
        if self.group.alone and samples:
            scale = (count / samples) ** 2 * _unscaled(step)
            self.small(_squared_norm(step.model) * scale, samples)

    def after_gradients(self, step: Step, count: int) -> None:
        self.big(_squared_norm(step.model), count)

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

    @property
    def value(self) -> float | None:
        """The suggested batch size; None before there is a sound estimate."""
        return self.estimate.value

    def state(self) -> dict[str, float]:
        return dict(vars(self.estimate))

    def restore(self, state: dict[str, float]) -> None:
        self.estimate = NoiseEstimate(int(state["measured"]), state["noise"], state["signal"])


def _unscaled(step: Step) -> float:
    """Return the factor that removes fp16's loss scale from a squared norm."""
    return 1.0 / step.scaler.get_scale() ** 2


def _squared_norm(model: nn.Module) -> Tensor:
    return squared_norm([p.grad for p in model.parameters() if p.grad is not None])
