"""State of t-SNE's gradient descent."""

from dataclasses import dataclass

import torch


@dataclass
class DescentState:
    """Map, momentum and gains of the descent, as in openTSNE. All tensors are on one device."""

    y: torch.Tensor
    """(n, 2) float32, the map."""
    update: torch.Tensor
    """(n, 2), the last step."""
    gains: torch.Tensor
    """(n, 2), learning-rate factor of each coordinate."""
    exaggeration: torch.Tensor
    """0-d, factor of the attraction."""
    rate: torch.Tensor
    """0-d, learning rate."""
    z: torch.Tensor
    """0-d, normaliser of the repulsion."""

    @classmethod
    def start(cls, y: torch.Tensor) -> "DescentState":
        """Return the state before the first step, with the map at `y` (n, 2)."""
        zero, one = torch.zeros_like(y), torch.ones_like(y)
        scalars = [torch.ones((), device=y.device) for _ in range(3)]
        return cls(y.clone(), zero, one, *scalars)
