# Triton reads annotations as code: its kernels carry none.
# mypy: disable-error-code="no-untyped-def"
"""Batch norm of a layer with few rows in one kernel forward and one backward.

In small images most layers of a ResNet have few rows, which are the pixels of all images. The
three kernels of `norm_kernel` then take longer to start than to compute.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from thresher.models.norm_parts import jit, scaled, slope_before_relu

WHOLE_ROWS = 1024
"""Most rows of such a layer: a program reads them in four tiles, one after the other."""
_TILE = (256, 16)
"""Rows and columns that a program loads together; it reads all rows of its columns."""
_WARPS = 8


def normalise_whole(
    values: tuple[Tensor, Tensor, Tensor],
    affine: tuple[Tensor, Tensor],
    running: nn.modules.batchnorm._BatchNorm,
    given: tuple[Any, ...],
) -> tuple[Tensor, Tensor]:
    """Write y; return mean and biased variance, (1, channels) float32; move those of `running`.

    Args:
        values: x, y and what is added, (rows, channels).
        affine: Weight and bias, (channels,).
        running: The layer.
        given: eps, and whether there is a weight, a bias, something to add and a ReLU.
    """
    rows, channels = values[0].shape
    mean, var = torch.empty((2, 1, channels), dtype=torch.float32, device=values[0].device)
    moved = (running.running_mean, running.running_var, running.num_batches_tracked)
    _normalise[triton.cdiv(channels, _TILE[1]),](
        *(*values, mean, var, *affine, *moved, running.momentum, rows, channels, *given, *_TILE),
        num_warps=_WARPS,
    )
    return mean, var


def gradient_whole(
    values: tuple[Tensor, ...], affine: tuple[Tensor, ...], given: tuple[Any, ...]
) -> tuple[Tensor, Tensor]:
    """Write the gradients of x and of what was added; return those of weight and bias.

    Args:
        values: dy, x, y, and where both gradients are written, (rows, channels).
        affine: Mean, variance, weight and bias.
        given: eps, and whether there is a weight, a bias and a ReLU, and whether y is given.
    """
    rows, channels = values[0].shape
    sums = torch.empty((2, channels), dtype=torch.float32, device=values[0].device)
    _gradient[triton.cdiv(channels, _TILE[1]),](
        *(*values, *affine, *sums, rows, channels, *given, *_TILE), num_warps=_WARPS
    )
    return sums[1], sums[0]


@jit
def _normalise(
    x, y, added, mean, var, weight, bias, running_mean, running_var, tracked, momentum,
    rows, channels, eps,
    WEIGHTED: tl.constexpr, BIASED: tl.constexpr, ADDED: tl.constexpr, RELU: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Mean and variance of some columns, from sums about the mean of the first tile, then y."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    real = column < channels
    row = tl.arange(0, ROWS)
    at = row[:, None] * channels + column[None, :]
    tile = tl.load(x + at, (row < rows)[:, None] & real[None, :], 0.0).to(tl.float32)
    first = tl.sum(tile, 0) / tl.minimum(rows, ROWS).to(tl.float32)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    square = tl.zeros((ROWS, COLUMNS), tl.float32)
    for begin in range(0, rows, ROWS):
        row = begin + tl.arange(0, ROWS)
        here = (row < rows)[:, None] & real[None, :]
        at = row[:, None] * channels + column[None, :]
        away = tl.load(x + at, here, 0.0).to(tl.float32) - first[None, :]
        away = tl.where(here, away, 0.0)
        total += away
        square += away * away
    change = tl.sum(total, 0) / rows.to(tl.float32)
    centre = first + change
    squares = tl.sum(square, 0) - change * tl.sum(total, 0)
    squares = tl.where(squares < 0.0, 0.0, squares)  # and nan stays nan
    variance = squares / rows.to(tl.float32)
    tl.store(mean + column, centre, real)
    tl.store(var + column, variance, real)
    old = tl.load(running_mean + column, real, 0.0)
    tl.store(running_mean + column, old + momentum * (centre - old), real)
    unbiased = squares / tl.maximum(rows - 1, 1).to(tl.float32)
    old = tl.load(running_var + column, real, 0.0)
    tl.store(running_var + column, old + momentum * (unbiased - old), real)
    if tl.program_id(0) == 0:
        tl.store(tracked, tl.load(tracked) + 1)
    scale = tl.rsqrt(variance + eps)[None, :]
    for begin in range(0, rows, ROWS):
        row = begin + tl.arange(0, ROWS)
        here = (row < rows)[:, None] & real[None, :]
        at = row[:, None] * channels + column[None, :]
        value = (tl.load(x + at, here, 0.0).to(tl.float32) - centre[None, :]) * scale
        value = scaled(value, weight, bias, column, real, WEIGHTED, BIASED)
        if ADDED:
            value += tl.load(added + at, here, 0.0).to(tl.float32)
        if RELU:
            value = tl.where(value < 0.0, 0.0, value)  # and nan stays nan
        tl.store(y + at, value.to(y.dtype.element_ty), here)


@jit
def _gradient(
    slope, x, y, dx, d_added, mean, var, weight, bias, sums, products, rows, channels, eps,
    WEIGHTED: tl.constexpr, BIASED: tl.constexpr, RELU: tl.constexpr, SEEN: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sums of dy and dy · x̂ of some columns, then dx; see `norm_kernel._input_gradient`."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    real = column < channels
    centre = tl.load(mean + column, real, 0.0)[None, :]
    scale = tl.rsqrt(tl.load(var + column, real, 1.0) + eps)[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    product = tl.zeros((ROWS, COLUMNS), tl.float32)
    for begin in range(0, rows, ROWS):
        row = begin + tl.arange(0, ROWS)
        here = (row < rows)[:, None] & real[None, :]
        at = row[:, None] * channels + column[None, :]
        normal = (tl.load(x + at, here, 0.0).to(tl.float32) - centre) * scale
        dy = slope_before_relu(
            slope, y, normal, at, here, weight, bias, column, real, WEIGHTED, BIASED, RELU, SEEN
        )
        total += dy
        product += dy * normal
    one, other = tl.sum(total, 0), tl.sum(product, 0)
    tl.store(sums + column, one, real)
    tl.store(products + column, other, real)
    one = (one / rows.to(tl.float32))[None, :]
    other = (other / rows.to(tl.float32))[None, :]
    if WEIGHTED:
        factor = scale * tl.load(weight + column, real, 0.0).to(tl.float32)[None, :]
    else:
        factor = scale
    for begin in range(0, rows, ROWS):
        row = begin + tl.arange(0, ROWS)
        here = (row < rows)[:, None] & real[None, :]
        at = row[:, None] * channels + column[None, :]
        normal = (tl.load(x + at, here, 0.0).to(tl.float32) - centre) * scale
        dy = slope_before_relu(
            slope, y, normal, at, here, weight, bias, column, real, WEIGHTED, BIASED, RELU, SEEN
        )
        if SEEN:
            tl.store(d_added + at, dy.to(d_added.dtype.element_ty), here)
        out = (dy - one - normal * other) * factor
        tl.store(dx + at, out.to(dx.dtype.element_ty), here)
