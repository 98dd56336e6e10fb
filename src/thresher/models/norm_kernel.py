# Triton reads annotations as code: its kernels carry none.
# mypy: disable-error-code="no-untyped-def"
"""Batch norm on a GPU, with the sum and the ReLU that follow it in a ResNet, in few passes.

A pass forward and one backward read every value twice and write it once. Torch's operations take
about six times as much memory traffic for groups, and about twice as much for a whole batch with
ReLU. Sums are formed in a fixed order, so results repeat bit by bit.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from thresher.models.norm_parts import jit, scaled, slope_before_relu
from thresher.models.norm_whole import WHOLE_ROWS, gradient_whole, normalise_whole

TILE, COLUMNS = 2048, 64
"""Values that a program loads together, and most columns of them; a column is a channel, a row a
pixel of an image."""
_PROGRAMS, _LEAST_TILES = 128, 4
"""Programs that sum up a group, about: eight groups fill a GPU. Each has at least so many tiles."""
_PROGRAMS_OF_ALL = 512
"""Programs that sum up a batch which is the only group."""
_FEW, _MANY, _NARROW = 64, 512, 8
"""Programs whose sums are added in one tile of `_NARROW` columns: its height, small or large."""


@dataclass(frozen=True)
class Norm:
    """What to compute."""

    size: int
    """Samples of a group; the last group may have fewer."""
    eps: float
    relu: bool = False
    """Apply a ReLU in the end."""
    running: nn.modules.batchnorm._BatchNorm | None = None
    """Layer whose running statistics are updated, where there is one group."""


class Normalise(torch.autograd.Function):
    """Normalise x (n, channels, …) in groups of samples, add `added` (like x), apply a ReLU.

    Returns y, and the mean and biased variance of each group and channel (groups, channels).
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        added: Tensor | None,
        norm: Norm,
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows = _rows(x)
        plan = _Plan(rows, norm.size * rows.shape[0] // max(1, len(x)), norm.running is not None)
        y = _channels_last(x)
        values = (rows, _rows(y), rows if added is None else _rows(added))
        affine = (_or(weight, rows), _or(bias, rows))
        given = (norm.eps, weight is not None, bias is not None, added is not None, norm.relu)
        if plan.whole and norm.running is not None:
            mean, var = normalise_whole(values, affine, norm.running, given)
        else:
            mean, var = plan.moments(rows, norm.running)
            _apply[plan.grid](
                *(*values, mean, var, *affine, *plan.numbers, plan.tiles, *given, *plan.tile)
            )
        # The sign before the ReLU is that of y, or follows from x without reading y.
        seen = y if norm.relu and added is not None else None
        ctx.save_for_backward(x, weight, bias, mean, var, seen)
        ctx.plan, ctx.norm, ctx.adds = plan, norm, added is not None
        ctx.mark_non_differentiable(mean, var)
        ctx.set_materialize_grads(False)  # two tensors of zeros that nobody reads
        return y, mean, var

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, var, y = ctx.saved_tensors
        plan, norm, rows, slope = ctx.plan, ctx.norm, _rows(x), _rows(gradients[0])
        seen = rows if y is None else _rows(y)
        affine = (mean, var, _or(weight, mean), _or(bias, mean))
        given = (norm.eps, weight is not None, bias is not None, norm.relu, y is not None)
        dx = _channels_last(x)
        d_added = _channels_last(x) if y is not None else dx
        values, written = (slope, rows, seen), (_rows(dx), _rows(d_added))
        if plan.whole:
            d_weight, d_bias = gradient_whole((*values, *written), affine, given)
        else:
            sums, d_weight, d_bias = plan.gradient_sums(values, affine, given)
            _input_gradient[plan.grid](
                *(*values, *written, *affine, sums),
                *(*plan.numbers, plan.tiles, plan.groups, *given, *plan.tile),
            )
        other = (d_added if y is not None else gradients[0]) if ctx.adds else None
        return (
            dx,
            None if weight is None else d_weight.to(weight.dtype),
            None if bias is None else d_bias.to(bias.dtype),
            other,
            None,
        )


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

    def __init__(self, rows: Tensor, per_group: int, alone: bool) -> None:
        (self.rows, self.channels), per_group = rows.shape, max(1, per_group)
        self.whole = alone and self.rows <= WHOLE_ROWS
        self.groups = triton.cdiv(self.rows, per_group)
        columns = min(COLUMNS, triton.next_power_of_2(self.channels))
        height = TILE // columns
        self.tile = (height, columns)
        self.blocks = triton.cdiv(self.channels, columns)
        self.tiles = triton.cdiv(per_group, height)
        self.grid = (self.groups * self.tiles, self.blocks)
        self.numbers = (self.rows, per_group, self.channels)
        # Not by the number of groups: then a group has the same bits on any number of workers.
        wanted = triton.cdiv(_PROGRAMS_OF_ALL if alone else _PROGRAMS, self.blocks)
        most = triton.cdiv(per_group, height * _LEAST_TILES)
        per_split = triton.cdiv(per_group, max(1, min(wanted, most)))
        self.per_split = height * triton.cdiv(per_split, height)
        self.splits = triton.cdiv(per_group, self.per_split)
        self.sum_tile = (_FEW if self.splits <= _FEW else _MANY, _NARROW)
        self.sum_blocks = triton.cdiv(self.channels, _NARROW)

    def moments(
        self, rows: Tensor, running: nn.modules.batchnorm._BatchNorm | None
    ) -> tuple[Tensor, Tensor]:
        """Return mean and biased variance, (groups, channels) float32."""
        parts = self._new(rows, self.groups, self.splits)
        _moments[self.groups, self.splits, self.blocks](
            rows, *parts, *self.numbers, self.per_split, *self.tile
        )
        mean, var = self._new(rows, self.groups)
        moved: tuple[Any, ...] = (mean, var, mean, 0.0)
        if running is not None:
            moved = (running.running_mean, running.running_var, running.num_batches_tracked)
            moved = (*moved, running.momentum)
        _finish_moments[self.groups, self.sum_blocks](
            *(*parts, mean, var, *moved, *self.numbers, self.per_split, self.splits),
            *(running is not None, *self.sum_tile),
        )
        return mean, var

    def gradient_sums(
        self, values: tuple[Tensor, ...], affine: tuple[Tensor, ...], given: tuple[Any, ...]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return Σ dy and Σ dy · x̂, (2, groups, channels), and the gradients of weight and bias."""
        parts = self._new(values[0], self.groups, self.splits)
        _gradient_sums[self.groups, self.splits, self.blocks](
            *(*values, *affine, *parts, *self.numbers, self.per_split, *given, *self.tile)
        )
        sums, total = self._new(values[0], self.groups), self._new(values[0])
        _finish_sums[self.sum_blocks,](
            *(*parts, *sums, *total, *self.numbers, self.per_split, self.groups, self.splits),
            *self.sum_tile,
        )
        return sums, total[1], total[0]

    def _new(self, like: Tensor, *shape: int) -> Tensor:
        return torch.empty((2, *shape, self.channels), dtype=torch.float32, device=like.device)


@jit
def _moments(
    x, means, squares, rows, per_group, channels, per_split,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Mean and sum of squares about it of a split, from sums about the mean of its first tile."""
    group, split = tl.program_id(0), tl.program_id(1)
    first = group * per_group + split * per_split
    end = tl.minimum(tl.minimum(first + per_split, (group + 1) * per_group), rows)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    real = column < channels
    row = first + tl.arange(0, ROWS)
    at = row[:, None].to(tl.int64) * channels + column[None, :]
    tile = tl.load(x + at, (row < end)[:, None] & real[None, :], 0.0).to(tl.float32)
    centre = tl.sum(tile, 0) / tl.maximum(tl.minimum(end - first, ROWS), 1).to(tl.float32)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    square = tl.zeros((ROWS, COLUMNS), tl.float32)
    for begin in range(first, end, ROWS):
        row = begin + tl.arange(0, ROWS)
        here = (row < end)[:, None] & real[None, :]
        at = row[:, None].to(tl.int64) * channels + column[None, :]
        value = tl.load(x + at, here, 0.0).to(tl.float32)
        away = tl.where(here, value - centre[None, :], 0.0)
        total += away
        square += away * away
    change = tl.sum(total, 0) / tl.maximum(end - first, 1).to(tl.float32)
    out = (group * tl.num_programs(1) + split) * channels + column
    tl.store(means + out, centre + change, real)
    rest = tl.sum(square, 0) - change * tl.sum(total, 0)
    tl.store(squares + out, tl.where(rest < 0.0, 0.0, rest), real)  # and nan stays nan


@jit
def _finish_moments(
    means, squares, mean, var, running_mean, running_var, tracked, momentum,
    rows, per_group, channels, per_split, splits,
    RUNNING: tl.constexpr, SPLITS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Mean and variance of a group from those of its splits; move the running statistics."""
    group = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    split = tl.arange(0, SPLITS)
    size = tl.minimum(per_group, rows - group * per_group)
    count = tl.minimum(tl.maximum(size - split * per_split, 0), per_split)
    here = (count > 0)[:, None] & (column < channels)[None, :]
    at = (group * splits + split)[:, None] * channels + column[None, :]
    weight = count.to(tl.float32)[:, None]
    part = tl.load(means + at, here, 0.0)
    centre = tl.sum(part * weight, 0) / size.to(tl.float32)
    away = tl.where(here, part - centre[None, :], 0.0)
    square = tl.sum(tl.load(squares + at, here, 0.0) + away * away * weight, 0)
    out, real = group * channels + column, column < channels
    tl.store(mean + out, centre, real)
    tl.store(var + out, square / size.to(tl.float32), real)
    if RUNNING:
        old = tl.load(running_mean + column, real, 0.0)
        tl.store(running_mean + column, old + momentum * (centre - old), real)
        unbiased = square / tl.maximum(size - 1, 1).to(tl.float32)
        old = tl.load(running_var + column, real, 0.0)
        tl.store(running_var + column, old + momentum * (unbiased - old), real)
        if tl.program_id(1) == 0:
            tl.store(tracked, tl.load(tracked) + 1)


@jit
def _apply(
    x, y, added, mean, var, weight, bias, rows, per_group, channels, tiles, eps,
    WEIGHTED: tl.constexpr, BIASED: tl.constexpr, ADDED: tl.constexpr, RELU: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Normalise a tile."""
    group = tl.program_id(0) // tiles
    row = group * per_group + tl.program_id(0) % tiles * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    real = column < channels
    here = (row < tl.minimum((group + 1) * per_group, rows))[:, None] & real[None, :]
    at = row[:, None].to(tl.int64) * channels + column[None, :]
    of = group * channels + column
    scale = tl.rsqrt(tl.load(var + of, real, 1.0) + eps)
    value = tl.load(x + at, here, 0.0).to(tl.float32) - tl.load(mean + of, real, 0.0)[None, :]
    value = scaled(value * scale[None, :], weight, bias, column, real, WEIGHTED, BIASED)
    if ADDED:
        value += tl.load(added + at, here, 0.0).to(tl.float32)
    if RELU:
        value = tl.where(value < 0.0, 0.0, value)  # and nan stays nan
    tl.store(y + at, value.to(y.dtype.element_ty), here)


@jit
def _gradient_sums(
    slope, x, y, mean, var, weight, bias, sums, products, rows, per_group, channels, per_split, eps,
    WEIGHTED: tl.constexpr, BIASED: tl.constexpr, RELU: tl.constexpr, SEEN: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sums of dy and of dy · x̂ of a split."""
    group, split = tl.program_id(0), tl.program_id(1)
    first = group * per_group + split * per_split
    end = tl.minimum(tl.minimum(first + per_split, (group + 1) * per_group), rows)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    real = column < channels
    centre = tl.load(mean + group * channels + column, real, 0.0)[None, :]
    scale = tl.rsqrt(tl.load(var + group * channels + column, real, 1.0) + eps)[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    product = tl.zeros((ROWS, COLUMNS), tl.float32)
    for begin in range(first, end, ROWS):
        row = begin + tl.arange(0, ROWS)
        here = (row < end)[:, None] & real[None, :]
        at = row[:, None].to(tl.int64) * channels + column[None, :]
        normal = (tl.load(x + at, here, 0.0).to(tl.float32) - centre) * scale
        dy = slope_before_relu(
            slope, y, normal, at, here, weight, bias, column, real, WEIGHTED, BIASED, RELU, SEEN
        )
        total += dy
        product += dy * normal
    out = (group * tl.num_programs(1) + split) * channels + column
    tl.store(sums + out, tl.sum(total, 0), real)
    tl.store(products + out, tl.sum(product, 0), real)


@jit
def _finish_sums(
    part_sums, part_products, sums, products, all_sums, all_products,
    rows, per_group, channels, per_split, groups, splits,
    SPLITS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sums of each group from those of its splits, and of all groups."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    split, real = tl.arange(0, SPLITS), column < channels
    total = tl.zeros((COLUMNS,), tl.float32)
    product = tl.zeros((COLUMNS,), tl.float32)
    for group in range(0, groups):
        size = tl.minimum(per_group, rows - group * per_group)
        here = (split * per_split < size)[:, None] & real[None, :]
        at = (group * splits + split)[:, None] * channels + column[None, :]
        one = tl.sum(tl.load(part_sums + at, here, 0.0), 0)
        other = tl.sum(tl.load(part_products + at, here, 0.0), 0)
        tl.store(sums + group * channels + column, one, real)
        tl.store(products + group * channels + column, other, real)
        total += one
        product += other
    tl.store(all_sums + column, total, real)
    tl.store(all_products + column, product, real)


@jit
def _input_gradient(
    slope, x, y, dx, d_added, mean, var, weight, bias, sums,
    rows, per_group, channels, tiles, groups, eps,
    WEIGHTED: tl.constexpr, BIASED: tl.constexpr, RELU: tl.constexpr, SEEN: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """dx = weight · invstd · (dy - Σdy/m - x̂ · Σ(dy·x̂)/m) of a tile; dy goes to `d_added`."""
    group = tl.program_id(0) // tiles
    row = group * per_group + tl.program_id(0) % tiles * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    real = column < channels
    here = (row < tl.minimum((group + 1) * per_group, rows))[:, None] & real[None, :]
    at = row[:, None].to(tl.int64) * channels + column[None, :]
    of = group * channels + column
    count = tl.minimum(per_group, rows - group * per_group).to(tl.float32)
    scale = tl.rsqrt(tl.load(var + of, real, 1.0) + eps)[None, :]
    normal = tl.load(x + at, here, 0.0).to(tl.float32) - tl.load(mean + of, real, 0.0)[None, :]
    normal *= scale
    dy = slope_before_relu(
        slope, y, normal, at, here, weight, bias, column, real, WEIGHTED, BIASED, RELU, SEEN
    )
    if SEEN:
        tl.store(d_added + at, dy.to(d_added.dtype.element_ty), here)
    total = tl.load(sums + of, real, 0.0)[None, :] / count
    product = tl.load(sums + groups * channels + of, real, 0.0)[None, :] / count
    out = (dy - total - normal * product) * scale
    if WEIGHTED:
        out *= tl.load(weight + column, real, 0.0).to(tl.float32)[None, :]
    tl.store(dx + at, out.to(dx.dtype.element_ty), here)
