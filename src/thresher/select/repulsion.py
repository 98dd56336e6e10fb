"""The repulsion of t-SNE as a field on a grid: one charge, one convolution, one gradient.

With the potential φ(y) = Σ_j 1/(1 + |y − y_j|²), the normaliser of t-SNE is Z = Σ_i φ(y_i) − n and
the repulsive force is Σ_j (y_i − y_j)/(1 + |y_i − y_j|²)² = −½ ∇φ(y_i): one scalar field gives
both, where FIt-SNE (Linderman et al. 2019) convolves three or four charges.

Points are spread to an equispaced grid with cubic B-splines, convolved by FFT over twice the range
(so that nothing wraps around), and read back with the same splines and their derivatives. Dividing
by the spline's own spectrum on both sides (as smooth particle-mesh Ewald does) makes the kernel
exact on the grid points, and fourth-order accurate between them.

Three things keep it exact in float32 and the same bytes every time:
- the charge is summed in 64-bit integers, in which the order of additions does not matter;
- the kernel has its value at the map's diameter subtracted, so that a map of 1e-4 across, where all
  of the kernel is 1 − 1e-8, loses no digits;
- the grid's spacing follows the map's range on the device: no host synchronisation, and any fixed
  grid size can be captured in a CUDA graph.
"""

import torch

FIXED_POINT = float(1 << 32)
MARGIN = 3
"""Grid points kept free beyond the outermost sample, for the spline's support."""
FEW = 256
"""Points up to which all pairs are summed: few points may drift so far apart that Z is below the
error of a grid."""
SMALLEST_GRID, LARGEST_GRID = 128, 4096
MANY = 10_000
"""Points whose map needs a grid of 512 in any case. On a finer one than needed a step takes a few
microseconds more; to plan FFTs of another size and to capture a step takes a tenth of a second."""
DIGITS = 2.0**-20
"""Finest spacing, as a share of the largest coordinate; float32 has 24 bits."""


class Grid:
    """Buffers and spectrum of a field of `size`² grid points on one device."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.size = size
        self.padded = 2 * size
        offset = torch.arange(self.padded, device=device, dtype=torch.float32)
        offset = torch.minimum(offset, self.padded - offset)
        self.offset2 = offset[:, None] ** 2 + offset[None, :] ** 2
        turn = torch.arange(self.padded, device=device, dtype=torch.float64) / self.padded
        spline = ((2 + torch.cos(2 * torch.pi * turn)) / 3) ** 2
        half = self.padded // 2 + 1
        self.unspread = (1 / (spline[:, None] * spline[None, :half])).float()
        self.charge = torch.zeros(size * size, dtype=torch.int64, device=device)

    def place(self, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return origin (2,) and spacing (0-d) of a grid that holds `y` (n, 2) and its margin."""
        low, high = y.amin(0), y.amax(0)
        span = (high - low).amax().clamp_min(1e-30)
        # Below the digits of the coordinates, points would fall beside the grid.
        digits = torch.maximum(low.abs(), high.abs()).amax() * DIGITS
        spacing = torch.maximum(span / (self.size - 2 * MARGIN - 1), digits)
        return low - MARGIN * spacing, spacing

    def convolve(self, spacing: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the potential (size, size) float32 without a constant, and that constant (0-d)."""
        diameter2 = 2 * (spacing * self.size) ** 2
        d2 = self.offset2 * spacing**2
        # 1/(1+d²) - 1/(1+D²), written without cancellation.
        kernel = (diameter2 - d2) / ((1 + d2) * (1 + diameter2))
        charge = self.charge.view(self.size, self.size).float() / FIXED_POINT
        shape = (self.padded, self.padded)
        spectrum = torch.fft.rfft2(charge, s=shape) * torch.fft.rfft2(kernel) * self.unspread
        potential = torch.fft.irfft2(spectrum, s=shape)[: self.size, : self.size].contiguous()
        return potential, 1 / (1 + diameter2)


def smallest_grid(n: int) -> int:
    """Return the size of the first grid of a map of `n` points."""
    return 4 * SMALLEST_GRID if n > MANY else SMALLEST_GRID


def splines(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cubic B-spline weights (…, 4) around `t` in [0, 1), and their derivatives."""
    u = 1 - t
    weights = [u**3 / 6, (4 - 6 * t**2 + 3 * t**3) / 6, (4 - 6 * u**2 + 3 * u**3) / 6, t**3 / 6]
    slopes = [-(u**2) / 2, (3 * t**2 - 4 * t) / 2, (4 * u - 3 * u**2) / 2, t**2 / 2]
    return torch.stack(weights, -1), torch.stack(slopes, -1)


def field(y: torch.Tensor, grid: Grid) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the repulsive forces (n, 2), not divided by Z, and Z (0-d) of the map `y` (n, 2).

    Plain torch: the reference for the CUDA kernels, and the fallback without NVRTC.
    """
    n = len(y)
    if n <= FEW:
        return _all_pairs(y)
    origin, spacing = grid.place(y)
    position = (y - origin) / spacing
    cell = position.floor()
    weight, slope = splines(position - cell)  # each (n, 2, 4)
    corner = cell.long() - 1
    step = torch.arange(4, device=y.device)
    index = (corner[:, 0, None] + step)[:, :, None] * grid.size
    index = (index + (corner[:, 1, None] + step)[:, None, :]).reshape(n, 16)
    product = weight[:, 0, :, None] * weight[:, 1, None, :]
    grid.charge.zero_()
    grid.charge.scatter_add_(0, index.view(-1), (product * FIXED_POINT).round().long().reshape(-1))
    potential, constant = grid.convolve(spacing)
    around = potential.view(-1).index_select(0, index.view(-1)).view(n, 4, 4)
    phi = (around * product).sum((1, 2))
    dx = (around * (slope[:, 0, :, None] * weight[:, 1, None, :])).sum((1, 2))
    dy = (around * (weight[:, 0, :, None] * slope[:, 1, None, :])).sum((1, 2))
    z = phi.double().sum() + constant * float(n) ** 2 - n
    return torch.stack([dx, dy], 1) * (-0.5 / spacing), z.float()


def _all_pairs(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    apart = y[:, None] - y[None]
    kernel = 1 / (1 + apart.square().sum(-1))
    kernel.fill_diagonal_(0)
    return (kernel.square()[..., None] * apart).sum(1), kernel.sum()
