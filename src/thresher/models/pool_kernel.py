# Triton reads annotations as code: its kernels carry none.
# mypy: disable-error-code="no-untyped-def"
"""Max-pooling of images with channels last: a kernel forward and one backward.

Forward, each result also keeps at which pixel of its window it was, in a byte. Backward, each pixel
adds up the gradients of the windows in which it was the largest, in a fixed order.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

_BLOCK = 1024


@dataclass(frozen=True)
class Window:
    """The windows, which are square."""

    side: int
    stride: int
    padding: int

    def count(self, pixels: int) -> int:
        """Return how many windows there are along a side of so many pixels."""
        return (pixels + 2 * self.padding - self.side) // self.stride + 1


class MaxPool(torch.autograd.Function):
    """The largest value of each window of x (n, channels, height, width), channels last."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, window: Window) -> Tensor:
        n, channels, height, width = x.shape
        shape = (n, channels, window.count(height), window.count(width))
        last = torch.channels_last
        y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=last)
        at = torch.empty(shape, dtype=torch.uint8, device=x.device, memory_format=last)
        _launch(_pool, (x, y, at), shape, x.shape, window)
        ctx.save_for_backward(at)
        ctx.window, ctx.shape = window, x.shape
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (at,), last = ctx.saved_tensors, torch.channels_last
        slope = gradients[0].contiguous(memory_format=last)
        dx = torch.empty(ctx.shape, dtype=slope.dtype, device=slope.device, memory_format=last)
        _launch(_spread, (slope, at, dx), ctx.shape, ctx.shape, ctx.window)
        return dx, None


def _launch(
    kernel: Any, tensors: tuple[Tensor, ...], written: Any, images: Any, window: Window
) -> None:
    """Launch a kernel with a program for each row of pixels of what is written, or a part of it."""
    n, channels, rows, columns = written
    height, width = images[2:]
    block = min(_BLOCK, triton.next_power_of_2(columns * channels))
    counts = (window.count(height), window.count(width))
    kernel[n * rows, triton.cdiv(columns * channels, block)](
        *tensors, channels, height, width, *counts,
        window.side, window.stride, window.padding, block,
    )  # fmt: skip


@triton.jit
def _pool(
    x, y, at,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The largest value of the windows of a row, and where it is, as torch has it."""
    image, row = tl.program_id(0) // ROWS, tl.program_id(0) % ROWS
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = i < COLUMNS * CHANNELS
    column, channel = i // CHANNELS, i % CHANNELS
    from_image = x + image.to(tl.int64) * (HEIGHT * WIDTH * CHANNELS)
    top, left = row * STRIDE - PADDING, column * STRIDE - PADDING
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    # If all values are -inf, it is the first pixel of the image in the window.
    place = tl.maximum(-top, 0) * SIDE + tl.maximum(-left, 0)
    for a in tl.static_range(SIDE):
        for b in tl.static_range(SIDE):
            h, w = top + a, left + b
            inside = here & (h >= 0) & (h < HEIGHT) & (w >= 0) & (w < WIDTH)
            value = tl.load(from_image + (h * WIDTH + w) * CHANNELS + channel, inside, 0.0)
            value = value.to(tl.float32)
            larger = inside & ((value > best) | (value != value))
            best = tl.where(larger, value, best)
            place = tl.where(larger, a * SIDE + b, place)
    out = tl.program_id(0).to(tl.int64) * (COLUMNS * CHANNELS) + i
    tl.store(y + out, best.to(y.dtype.element_ty), here)
    tl.store(at + out, place.to(tl.uint8), here)


@triton.jit
def _spread(
    slope, at, dx,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of a row of pixels."""
    image, h = tl.program_id(0) // HEIGHT, tl.program_id(0) % HEIGHT
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = i < WIDTH * CHANNELS
    w, channel = i // CHANNELS, i % CHANNELS
    of_image = image.to(tl.int64) * (ROWS * COLUMNS * CHANNELS)
    total = tl.zeros((BLOCK,), tl.float32)
    most: tl.constexpr = (SIDE + STRIDE - 1) // STRIDE
    for down in tl.static_range(most):
        row = (h + PADDING) // STRIDE - (most - 1 - down)
        a = h + PADDING - row * STRIDE
        for right in tl.static_range(most):
            column = (w + PADDING) // STRIDE - (most - 1 - right)
            b = w + PADDING - column * STRIDE
            inside = here & (row >= 0) & (row < ROWS) & (a < SIDE)
            inside = inside & (column >= 0) & (column < COLUMNS) & (b < SIDE)
            window = of_image + (row * COLUMNS + column) * CHANNELS + channel
            place = tl.load(at + window, inside, 255).to(tl.int32)
            value = tl.load(slope + window, inside & (place == a * SIDE + b), 0.0)
            total += value.to(tl.float32)
    out = tl.program_id(0).to(tl.int64) * (WIDTH * CHANNELS) + i
    tl.store(dx + out, total.to(dx.dtype.element_ty), here)
