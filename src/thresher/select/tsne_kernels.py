"""The state of t-SNE's descent, and its step as three CUDA kernels around two FFTs."""

from dataclasses import dataclass

import torch

from thresher.select.affinities import Affinities
from thresher.select.cuda_source import TSNE
from thresher.select.repulsion import FIXED_POINT, Grid

WARP = 32
"""Threads that sum up the neighbours of a point."""


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


class Kernels:
    """The affinities and the scratch arrays of the kernels, which are in tsne_kernels.cu."""

    def __init__(self, p: Affinities) -> None:
        self.p = p
        device = p.value.device
        self.force = torch.empty(p.n, 2, device=device)
        self.phi = torch.empty(p.n, device=device)
        self.moved = torch.empty(p.n, 2, device=device)

    def step(self, state: DescentState, grid: Grid) -> None:
        """Do one step of the descent."""
        n, place = self.p.n, grid.place(state.y)
        grid.charge.zero_()
        TSNE.launch("spread_charges", n, state.y, *place, grid.charge, n, grid.size, FIXED_POINT)
        potential, constant = grid.convolve(place[1])
        read = (potential, self.force, self.phi)
        TSNE.launch("read_field", n, state.y, *place, *read, n, grid.size)
        state.z.copy_(self.phi.double().sum() + constant * float(n) ** 2 - n)
        changed = (self.moved, state.update, state.gains)
        p, scalars = self.p, (state.exaggeration, state.rate, state.z)
        given = (self.force, p.row_start, p.column, p.value, *scalars)
        TSNE.launch("move_points", WARP * n, state.y, *changed, *given, n)
        state.y.copy_(self.moved)
