"""The gradient noise scale (McCandlish et al. 2018): up to which batch size training gains.

From the squared norms of the gradient of a small batch b and of a big one B:

    |G|² = (B·|g_B|² − b·|g_b|²) / (B − b)      S = (|g_b|² − |g_B|²) / (1/b − 1/B)

Each is a noisy estimate; their means over many steps give B_noise = S / |G|². For a batch of two
equal halves, |G|² is the scalar product of their gradients.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from thresher.device_check import wide

WINDOW = 100
"""Measurements that count: with one in ten steps, those of the last 1,000."""


def gradients_of(model: nn.Module) -> list[Tensor]:
    """Return the gradients that a network holds."""
    return [p.grad for p in model.parameters() if p.grad is not None]


def squared_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the squared norm of a whole gradient, 0-d float64."""
    return wide(torch.stack(list(torch._foreach_norm(list(gradients))))).square().sum()


def mean_small(first: int, second: int) -> float:
    """Return the size b for which the mean squared norm of two parts is |G|² + S/b."""
    return 2 / (1 / first + 1 / second)


@dataclass
class NoiseEstimate:
    """The last `WINDOW` measurements.

    The noise scale grows during training while |G|² falls, so that sums over a whole run would
    mostly describe its beginning.
    """

    measured: int = 0
    """Measurements so far, also those that have left the window."""
    noise: list[float] = field(default_factory=list)
    signal: list[float] = field(default_factory=list)

    def add(self, g_small: float, small: float, g_big: float, big: float) -> None:
        """Take the squared norms of the gradients of a batch of `small` and of `big` samples.

        Norms that are not finite do not count: a gradient scaler begins with scales that overflow,
        and skips those steps.
        """
        if not (math.isfinite(g_small) and math.isfinite(g_big)):
            return
        signal = (big * g_big - small * g_small) / (big - small)
        noise = (g_small - g_big) / (1 / small - 1 / big)
        self.signal = [*self.signal, signal][-WINDOW:]
        self.noise = [*self.noise, noise][-WINDOW:]
        self.measured += 1

    @property
    def value(self) -> float | None:
        """The noise scale, in samples; None before there is a sound estimate."""
        noise, signal = math.fsum(self.noise), math.fsum(self.signal)
        if signal <= 0 or noise <= 0:
            return None
        value = noise / signal
        return value if math.isfinite(value) else None

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> "NoiseEstimate":
        """Return the estimate of a checkpoint; older ones hold sums, which count as one value."""
        measured, noise, signal = int(state["measured"]), state["noise"], state["signal"]
        if isinstance(noise, list):
            return cls(measured, list(noise), list(signal))
        return cls(measured, [noise / measured], [signal / measured]) if measured else cls()
