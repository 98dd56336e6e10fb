# Triton reads annotations as code: its kernels carry none.
# mypy: disable-error-code="no-untyped-def"
"""The state of t-SNE's descent, and its step as three Triton kernels around two FFTs.

The kernels compute the same as `repulsion.field` and `tsne._step`, without intermediate arrays. One
program sums a row's neighbours in a fixed order, so the result is deterministic.
"""

from dataclasses import dataclass

import torch

from thresher.select.affinities import Affinities
from thresher.select.repulsion import FIXED_POINT, Grid

try:
    import triton
    import triton.language as tl

    AVAILABLE = True
except ImportError:  # torch without CUDA comes without Triton
    AVAILABLE = False

BLOCK = 128


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
    """The affinities and the scratch arrays of the kernels."""

    def __init__(self, p: Affinities) -> None:
        self.p = p
        device = p.value.device
        self.force = torch.empty(p.n, 2, device=device)
        self.phi = torch.empty(p.n, device=device)
        self.moved = torch.empty(p.n, 2, device=device)

    def step(self, state: DescentState, grid: Grid) -> None:
        """Do one step of the descent."""
        place = grid.place(state.y)
        grid.charge.zero_()
        self.spread(state.y, grid, place)
        potential, constant = grid.convolve(place[1])
        self.read(state.y, grid, place, potential)
        n = self.p.n
        state.z.copy_(self.phi.double().sum() + constant * float(n) ** 2 - n)
        self.move(state)
        state.y.copy_(self.moved)

    def spread(self, y: torch.Tensor, grid: Grid, place: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Add the charges of the points `y` to a grid at origin and spacing `place`."""
        n = self.p.n
        _spread[(triton.cdiv(n, BLOCK),)](y, *place, grid.charge, n, grid.size, FIXED_POINT, BLOCK)

    def read(
        self,
        y: torch.Tensor,
        grid: Grid,
        place: tuple[torch.Tensor, torch.Tensor],
        potential: torch.Tensor,
    ) -> None:
        """Read `force` and `phi` of the points `y` from the potential on the grid."""
        n = self.p.n
        _read[(triton.cdiv(n, BLOCK),)](
            y, *place, potential, self.force, self.phi, n, grid.size, BLOCK
        )

    def move(self, state: DescentState) -> None:
        """Compute the points after the step, `moved`."""
        _move[(self.p.n,)](
            state.y,
            self.moved,
            state.update,
            state.gains,
            self.force,
            self.p.row_start,
            self.p.column,
            self.p.value,
            state.exaggeration,
            state.rate,
            state.z,
            BLOCK,
            num_warps=1,
        )


def start_driver() -> None:
    """Let Triton build what it needs to launch kernels; once, before several threads do."""
    triton.runtime.driver.active.get_current_device()


if AVAILABLE:

    @triton.jit
    def _weights(t):
        u = 1.0 - t
        return (
            u * u * u / 6.0,
            (4.0 - 6.0 * t * t + 3.0 * t * t * t) / 6.0,
            (4.0 - 6.0 * u * u + 3.0 * u * u * u) / 6.0,
            t * t * t / 6.0,
        )

    @triton.jit
    def _slopes(t):
        u = 1.0 - t
        return (
            -u * u / 2.0,
            (3.0 * t * t - 4.0 * t) / 2.0,
            (4.0 * u - 3.0 * u * u) / 2.0,
            t * t / 2.0,
        )

    @triton.jit
    def _spread(y, origin, spacing, charge, n, size, fixed_point, block: tl.constexpr):
        i = tl.program_id(0) * block + tl.arange(0, block)
        here = i < n
        h = tl.load(spacing)
        px = (tl.load(y + 2 * i, mask=here, other=0.0) - tl.load(origin)) / h
        py = (tl.load(y + 2 * i + 1, mask=here, other=0.0) - tl.load(origin + 1)) / h
        cx = tl.floor(px)
        cy = tl.floor(py)
        wx = _weights(px - cx)
        wy = _weights(py - cy)
        corner = (cx.to(tl.int32) - 1) * size + cy.to(tl.int32) - 1
        for a in tl.static_range(4):
            for b in tl.static_range(4):
                amount = wx[a] * wy[b] * fixed_point
                amount = tl.floor(amount + 0.5).to(tl.int64)
                tl.atomic_add(charge + corner + a * size + b, amount, mask=here, sem="relaxed")

    @triton.jit
    def _read(y, origin, spacing, potential, force, phi, n, size, block: tl.constexpr):
        i = tl.program_id(0) * block + tl.arange(0, block)
        here = i < n
        h = tl.load(spacing)
        px = (tl.load(y + 2 * i, mask=here, other=0.0) - tl.load(origin)) / h
        py = (tl.load(y + 2 * i + 1, mask=here, other=0.0) - tl.load(origin + 1)) / h
        cx = tl.floor(px)
        cy = tl.floor(py)
        wx = _weights(px - cx)
        wy = _weights(py - cy)
        sx = _slopes(px - cx)
        sy = _slopes(py - cy)
        corner = (cx.to(tl.int32) - 1) * size + cy.to(tl.int32) - 1
        total = tl.zeros((block,), tl.float32)
        dx = tl.zeros((block,), tl.float32)
        dy = tl.zeros((block,), tl.float32)
        for a in tl.static_range(4):
            for b in tl.static_range(4):
                value = tl.load(potential + corner + a * size + b, mask=here, other=0.0)
                total += value * wx[a] * wy[b]
                dx += value * sx[a] * wy[b]
                dy += value * wx[a] * sy[b]
        scale = -0.5 / h
        tl.store(phi + i, total, mask=here)
        tl.store(force + 2 * i, dx * scale, mask=here)
        tl.store(force + 2 * i + 1, dy * scale, mask=here)

    @triton.jit
    def _one_axis(update, gain, gradient, rate):
        flipped = (update > 0) != (gradient > 0)
        gain = tl.where(flipped, gain + 0.2, gain * 0.8 + 0.01)
        return 0.8 * update - rate * gain * gradient, gain

    @triton.jit
    def _move(
        y,
        moved,
        update,
        gains,
        force,
        row_start,
        column,
        value,
        exaggeration,
        rate,
        z,
        block: tl.constexpr,
    ):
        i = tl.program_id(0)
        x0 = tl.load(y + 2 * i)
        x1 = tl.load(y + 2 * i + 1)
        begin = tl.load(row_start + i)
        end = tl.load(row_start + i + 1)
        pull0 = tl.zeros((block,), tl.float32)
        pull1 = tl.zeros((block,), tl.float32)
        for at in range(begin, end, block):
            e = at + tl.arange(0, block)
            here = e < end
            j = tl.load(column + e, mask=here, other=0)
            p = tl.load(value + e, mask=here, other=0.0)
            d0 = x0 - tl.load(y + 2 * j, mask=here, other=0.0)
            d1 = x1 - tl.load(y + 2 * j + 1, mask=here, other=0.0)
            q = p / (1.0 + d0 * d0 + d1 * d1)
            pull0 += q * d0
            pull1 += q * d1
        more = tl.load(exaggeration)
        normaliser = tl.load(z)
        speed = tl.load(rate)
        g0 = more * tl.sum(pull0, 0) - tl.load(force + 2 * i) / normaliser
        g1 = more * tl.sum(pull1, 0) - tl.load(force + 2 * i + 1) / normaliser
        u0, gain0 = _one_axis(tl.load(update + 2 * i), tl.load(gains + 2 * i), g0, speed)
        u1, gain1 = _one_axis(tl.load(update + 2 * i + 1), tl.load(gains + 2 * i + 1), g1, speed)
        norm = tl.sqrt(u0 * u0 + u1 * u1)
        short = 5.0 / tl.maximum(norm, 5.0)
        u0 *= short
        u1 *= short
        tl.store(update + 2 * i, u0)
        tl.store(update + 2 * i + 1, u1)
        tl.store(gains + 2 * i, gain0)
        tl.store(gains + 2 * i + 1, gain1)
        tl.store(moved + 2 * i, x0 + u0)
        tl.store(moved + 2 * i + 1, x1 + u1)
