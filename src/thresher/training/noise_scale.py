"""The gradient noise scale (McCandlish et al. 2018): how large a batch still pays.

From the squared norms of the gradient of a small batch b and of a big one B, both free in
data-parallel training (before and after the reduce):

    |G|² = (B·|g_B|² − b·|g_b|²) / (B − b)      S = (|g_b|² − |g_B|²) / (1/b − 1/B)

Each is a noisy estimate; their means over many steps give B_noise = S / |G|².
"""

from typing import Any

import torch
from torch import Tensor, nn

from thresher.distributed.group import Group

EVERY = 10
"""Steps between measurements."""


def squared_norm(model: nn.Module) -> Tensor:
    """Of the whole gradient, 0-d float64 on the device."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norms = torch._foreach_norm(gradients)
    return torch.stack(list(norms)).double().square().sum()


class NoiseScale:
    """Gathers measurements of one epoch on the device; sums of the run on the host."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.measured = 0
        self.sum_noise = 0.0
        self.sum_signal = 0.0
        self._small: tuple[Tensor, float] | None = None
        self._pairs: list[tuple[Tensor, float, Tensor, float]] = []

    def small(self, norm: Tensor, batch: float) -> None:
        """The squared norm of the mean gradient over `batch` samples."""
        self._small = (norm, batch)

    def big(self, norm: Tensor, batch: float) -> None:
        """The same of the whole batch; with the small one before it, a measurement."""
        if self._small is not None and self._small[1] < batch:
            self._pairs.append((*self._small, norm, batch))
        self._small = None

    def settle(self) -> None:
        """Take the pairs into the sums; every rank calls it (waits for the device)."""
        if not self._pairs:
            return
        small = torch.stack([pair[0] for pair in self._pairs])
        if not self.group.alone:
            self.group.all_reduce_sum(small)
            small /= self.group.world
        big = torch.stack([pair[2] for pair in self._pairs])
        rows = zip(small.tolist(), big.tolist(), self._pairs, strict=True)
        for g_small, g_big, (_, b, _, batch) in rows:
            self.sum_signal += (batch * g_big - b * g_small) / (batch - b)
            self.sum_noise += (g_small - g_big) / (1 / b - 1 / batch)
            self.measured += 1
        self._pairs.clear()

    @property
    def value(self) -> float | None:
        """The batch size that the noise suggests; None before there is a sound estimate."""
        if self.measured == 0 or self.sum_signal <= 0 or self.sum_noise <= 0:
            return None
        value = self.sum_noise / self.sum_signal
        return value if value < float("inf") else None

    def state(self) -> dict[str, Any]:
        return {"measured": self.measured, "noise": self.sum_noise, "signal": self.sum_signal}

    def restore(self, state: dict[str, Any]) -> None:
        self.measured = state["measured"]
        self.sum_noise, self.sum_signal = state["noise"], state["signal"]
