# Triton reads annotations as code: its kernels carry none.
# mypy: disable-error-code="no-untyped-def"
"""Ghost batch norm on a GPU: every value is read twice and written once in each pass.

Written with torch's operations, as on a CPU, it takes about six times as much memory traffic, most
of it for values of twice the size. Sums are formed in a fixed order, so results repeat bit by bit.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

TILE, COLUMNS = 2048, 64
"""Values that a program loads together, and most columns of them; a column is a channel, a row a
pixel of an image."""
_PROGRAMS = 128
"""Programs that sum up a group, about: eight groups fill a GPU."""
_LEAST_TILES = 4
"""Tiles for a program, at least."""


class GhostNormalise(torch.autograd.Function):
    """Normalise x (n, channels, …) for each `size` consecutive samples; the last may be fewer.

    Returns y, and the mean and biased variance of each group and channel (groups, channels).
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, size: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows = _rows(x)
        plan = _Plan(rows, size * rows.shape[0] // max(1, len(x)))
        mean, var = plan.moments(rows)
        y = _channels_last(x)
        _apply[plan.tiles](
            *(rows, _rows(y), mean, var, _or(weight, mean), _or(bias, mean), plan.rows),
            *(plan.per_group, plan.channels, eps, weight is not None, bias is not None, *plan.tile),
        )
        ctx.save_for_backward(x, weight, mean, var)
        ctx.plan, ctx.eps, ctx.has_bias = plan, eps, bias is not None
        ctx.mark_non_differentiable(mean, var)
        return y, mean, var

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, var = ctx.saved_tensors
        plan, rows, slope = ctx.plan, _rows(x), _rows(gradients[0])
        sums = plan.gradient_sums(slope, rows, mean)
        dx = _channels_last(x)
        _input_gradient[plan.tiles](
            *(slope, rows, _rows(dx), mean, var, sums, _or(weight, mean), plan.rows),
            *(plan.per_group, plan.groups, plan.channels, ctx.eps, weight is not None, *plan.tile),
        )
        d_weight = None
        if weight is not None:
            d_weight = (sums[1] * torch.rsqrt(var + ctx.eps)).sum(0).to(weight.dtype)
        d_bias = sums[0].sum(0).to(x.dtype if weight is None else weight.dtype)
        return dx, d_weight, d_bias if ctx.has_bias else None, None, None


def _rows(x: Tensor) -> Tensor:
    """Return x (n, channels, …) as (n · pixels, channels), a view if channels are last."""
    return x.movedim(1, -1).contiguous().view(-1, x.shape[1])


def _channels_last(x: Tensor) -> Tensor:
    """Return memory for a tensor like x with channels last.

    It is not a view: what follows may change the output of a Function in place only then.
    """
    strides = torch.empty(x.movedim(1, -1).shape, device="meta").movedim(-1, 1).stride()
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device)


def _or(given: Tensor | None, other: Tensor) -> Tensor:
    """Return a pointer to pass on; the kernel does not read `other`."""
    return other if given is None else given


class _Plan:
    """How the rows of a layer are divided among programs."""

    def __init__(self, rows: Tensor, per_group: int) -> None:
        (self.rows, self.channels), self.per_group = rows.shape, max(1, per_group)
        self.groups = triton.cdiv(self.rows, self.per_group)
        columns = min(COLUMNS, triton.next_power_of_2(self.channels))
        height = TILE // columns
        self.tile = (height, columns)
        self.blocks = triton.cdiv(self.channels, columns)
        self.tiles = (triton.cdiv(self.rows, height), self.blocks)
        # Not by the number of groups: then a group has the same bits on any number of workers.
        wanted = triton.cdiv(_PROGRAMS, self.blocks)
        most = triton.cdiv(self.per_group, height * _LEAST_TILES)
        per_split = triton.cdiv(self.per_group, max(1, min(wanted, most)))
        self.per_split = height * triton.cdiv(per_split, height)
        self.splits = triton.cdiv(self.per_group, self.per_split)

    def moments(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and biased variance, (groups, channels) float32."""
        shape = (self.groups, self.splits, self.channels)
        parts = torch.empty((2, *shape), dtype=torch.float32, device=rows.device)
        numbers = (self.rows, self.per_group, self.per_split, self.channels)
        _moments[self.groups, self.splits, self.blocks](
            rows, parts[0], parts[1], *numbers, *self.tile
        )
        mean, var = torch.empty((2, *shape[::2]), dtype=torch.float32, device=rows.device)
        _merge[self.groups, self.blocks](
            parts[0], parts[1], mean, var, *numbers, self.splits, self.tile[1]
        )
        return mean, var

    def gradient_sums(self, slope: Tensor, rows: Tensor, mean: Tensor) -> Tensor:
        """Return Σ dy and Σ dy · (x - mean), (2, groups, channels) float32."""
        shape = (2, self.groups, self.splits, self.channels)
        parts = torch.empty(shape, dtype=torch.float32, device=rows.device)
        numbers = (self.rows, self.per_group, self.per_split, self.channels)
        _gradient_sums[self.groups, self.splits, self.blocks](
            slope, rows, mean, parts[0], parts[1], *numbers, *self.tile
        )
        return parts.sum(2)


@triton.jit
def _moments(
    x, means, squares, rows, per_group, per_split, channels,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Mean and sum of squares about it of a split; tiles are merged as Chan et al. (1979) do."""
    group, split = tl.program_id(0), tl.program_id(1)
    first = group * per_group + split * per_split
    end = tl.minimum(tl.minimum(first + per_split, (group + 1) * per_group), rows)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    mean = tl.zeros((COLUMNS,), tl.float32)
    square = tl.zeros((COLUMNS,), tl.float32)
    for begin in range(first, end, ROWS):
        row = begin + tl.arange(0, ROWS)
        here = (row < end)[:, None] & (column < channels)[None, :]
        at = row[:, None].to(tl.int64) * channels + column[None, :]
        value = tl.load(x + at, here, 0.0).to(tl.float32)
        count = tl.minimum(end - begin, ROWS).to(tl.float32)
        before = (begin - first).to(tl.float32)
        part = tl.sum(value, 0) / count
        rest = tl.where(here, value - part[None, :], 0.0)
        change = part - mean
        mean += change * (count / (before + count))
        square += tl.sum(rest * rest, 0) + change * change * (before * count / (before + count))
    out = (group * tl.num_programs(1) + split) * channels + column
    tl.store(means + out, mean, column < channels)
    tl.store(squares + out, square, column < channels)


@triton.jit
def _merge(
    means, squares, mean, var, rows, per_group, per_split, channels, splits, COLUMNS: tl.constexpr
):
    """Mean and variance of a group from those of its splits."""
    group = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    size = tl.minimum(per_group, rows - group * per_group)
    centre = tl.zeros((COLUMNS,), tl.float32)
    square = tl.zeros((COLUMNS,), tl.float32)
    for split in range(0, splits):
        before = split * per_split
        if before < size:
            count = tl.minimum(per_split, size - before).to(tl.float32)
            seen = before.to(tl.float32)
            at = (group * splits + split) * channels + column
            change = tl.load(means + at, column < channels, 0.0) - centre
            centre += change * (count / (seen + count))
            more = tl.load(squares + at, column < channels, 0.0)
            square += more + change * change * (seen * count / (seen + count))
    out = group * channels + column
    tl.store(mean + out, centre, column < channels)
    tl.store(var + out, square / size.to(tl.float32), column < channels)


@triton.jit
def _apply(
    x, y, mean, var, weight, bias, rows, per_group, channels, eps,
    WEIGHTED: tl.constexpr, BIASED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Normalise a tile."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    here = (row < rows)[:, None] & (column < channels)[None, :]
    at = row[:, None].to(tl.int64) * channels + column[None, :]
    of = (row // per_group)[:, None] * channels + column[None, :]
    value = tl.load(x + at, here, 0.0).to(tl.float32) - tl.load(mean + of, here, 0.0)
    value *= tl.rsqrt(tl.load(var + of, here, 1.0) + eps)
    if WEIGHTED:
        value *= tl.load(weight + column, column < channels, 0.0).to(tl.float32)[None, :]
    if BIASED:
        value += tl.load(bias + column, column < channels, 0.0).to(tl.float32)[None, :]
    tl.store(y + at, value.to(y.dtype.element_ty), here)


@triton.jit
def _gradient_sums(
    slope, x, mean, sums, products, rows, per_group, per_split, channels,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sums of dy and of dy · (x - mean) of a split."""
    group, split = tl.program_id(0), tl.program_id(1)
    first = group * per_group + split * per_split
    end = tl.minimum(tl.minimum(first + per_split, (group + 1) * per_group), rows)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    centre = tl.load(mean + group * channels + column, column < channels, 0.0)
    total = tl.zeros((COLUMNS,), tl.float32)
    product = tl.zeros((COLUMNS,), tl.float32)
    for begin in range(first, end, ROWS):
        row = begin + tl.arange(0, ROWS)
        here = (row < end)[:, None] & (column < channels)[None, :]
        at = row[:, None].to(tl.int64) * channels + column[None, :]
        dy = tl.load(slope + at, here, 0.0).to(tl.float32)
        value = tl.load(x + at, here, 0.0).to(tl.float32)
        total += tl.sum(dy, 0)
        product += tl.sum(dy * (value - centre[None, :]), 0)
    out = (group * tl.num_programs(1) + split) * channels + column
    tl.store(sums + out, total, column < channels)
    tl.store(products + out, product, column < channels)


@triton.jit
def _input_gradient(
    slope, x, dx, mean, var, sums, weight, rows, per_group, groups, channels, eps,
    WEIGHTED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """dx = scale · (dy - Σdy/m - (x - mean) · invstd² · Σ(dy·(x - mean))/m) of a tile."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    here = (row < rows)[:, None] & (column < channels)[None, :]
    at = row[:, None].to(tl.int64) * channels + column[None, :]
    group = row // per_group
    of = group[:, None] * channels + column[None, :]
    count = tl.maximum(tl.minimum(per_group, rows - group * per_group), 1).to(tl.float32)[:, None]
    invstd = tl.rsqrt(tl.load(var + of, here, 1.0) + eps)
    value = (tl.load(x + at, here, 0.0).to(tl.float32) - tl.load(mean + of, here, 0.0)) * invstd
    total = tl.load(sums + of, here, 0.0) / count
    product = tl.load(sums + groups * channels + of, here, 0.0) * invstd / count
    out = (tl.load(slope + at, here, 0.0).to(tl.float32) - total - value * product) * invstd
    if WEIGHTED:
        out *= tl.load(weight + column, column < channels, 0.0).to(tl.float32)[None, :]
    tl.store(dx + at, out.to(dx.dtype.element_ty), here)
