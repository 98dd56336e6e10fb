"""The gradient noise scale (McCandlish et al. 2018): up to which batch size training gains.

From the squared norms of the gradient of a small batch b and of a big one B:

    |G|² = (B·|g_B|² − b·|g_b|²) / (B − b)      S = (|g_b|² − |g_B|²) / (1/b − 1/B)

Each is a noisy estimate; their means over many steps give B_noise = S / |G|².
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


def squared_norm(gradients: list[Tensor]) -> Tensor:
    """Return the squared norm of a whole gradient, 0-d float64 on the device."""
    return torch.stack(list(torch._foreach_norm(gradients))).double().square().sum()


@dataclass
class NoiseEstimate:
    """Sums over the measurements of a run."""

    measured: int = 0
    noise: float = 0.0
    signal: float = 0.0

    def add(self, g_small: float, small: float, g_big: float, big: float) -> None:
        """Take the squared norms of the gradients of a batch of `small` and of `big` samples."""
        self.signal += (big * g_big - small * g_small) / (big - small)
        self.noise += (g_small - g_big) / (1 / small - 1 / big)
        self.measured += 1

    @property
    def value(self) -> float | None:
        """The noise scale, in samples; None before there is a sound estimate."""
        if self.measured == 0 or self.signal <= 0 or self.noise <= 0:
            return None
        value = self.noise / self.signal
        return value if math.isfinite(value) else None
