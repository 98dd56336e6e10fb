"""Convolutions faster than torch's: small images, first layers, gradients on ARM processors.

Where one pixel comes out, as in the last layers of a network for large images that is given small
ones, the kernel lies on the image only once, and only a part of it: one matrix product, where
cuDNN also multiplies the padding.

Tensor cores want many channels, and an image has three. The first layer of a ResNet, 7×7 with
stride 2, is a convolution with stride 1 of 2×2 blocks of pixels, each with the channels of its four
pixels: see `benchmarks/results/stem_convolution.md`.

oneDNN has no fast ARM kernels for the gradients of a convolution; they take two to ten times as
long as the convolution. The gradient with respect to the weights is a matrix product with the
windows of the input. The gradient with respect to the input is, with stride 1, a convolution of
the output's gradient with the rotated kernel, and with larger strides a matrix product whose
windows are summed: see `benchmarks/results/convolution.md`.
"""

import platform
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

ARM = platform.machine().lower() in ("aarch64", "arm64") and torch.backends.mkldnn.is_available()
"""Whether this is an ARM processor on which oneDNN computes convolutions."""
WINDOW_VALUES = 2**20
"""Values of the input's windows that are held at a time (4 MiB): fewer keep several threads less
busy, more gain nothing."""

BLOCK_CHANNELS = 16
"""Channels of a block of pixels, filled up with zeros: tensor cores take them in multiples of 8."""
BLOCK_PIXELS = 1 << 19
"""Pixels of all images from which blocks are faster by a sixth and more."""

Pair = tuple[int, int]


class Conv2d(nn.Conv2d):
    """`nn.Conv2d` with the same values and parameters; only the algorithm may differ."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self._supported and self._gives_one_pixel(input):
            return _one_pixel(input, weight, bias, self._pads)
        if self._supported and self._reads_images(input):
            dtype = _half(input)
            return _in_blocks(input.to(dtype), weight.to(dtype), bias, self._pads)
        if ARM and self._supported and _on_cpu_with_gradient(input):
            output: Tensor = _FastGradient.apply(input, weight, self.stride, self.padding)
            return output if bias is None else output + bias[:, None, None]
        return super()._conv_forward(input, weight, bias)

    @property
    def _supported(self) -> bool:
        """Whether it is plain and the padding (a pair of numbers) is smaller than the kernel."""
        return (
            self.dilation == (1, 1)
            and self.groups == 1
            and self.padding_mode == "zeros"
            and not isinstance(self.padding, str)
            and all(p < k for p, k in zip(self.padding, self.kernel_size, strict=True))
        )

    @property
    def _pads(self) -> Pair:
        top, left = (int(p) for p in self.padding)
        return top, left

    def _gives_one_pixel(self, x: Tensor) -> bool:
        if x.dim() != 4 or x.numel() == 0:
            return False
        sizes = zip(x.shape[2:], self.kernel_size, self._pads, self.stride, strict=True)
        return all(0 <= n + 2 * p - k < s for n, k, p, s in sizes)

    def _reads_images(self, x: Tensor) -> bool:
        """Return whether this is a first layer of the kind that was measured, on many images."""
        return (
            x.device.type == "cuda"
            and x.dim() == 4
            and not x.requires_grad
            and (self.kernel_size, self.stride) == ((7, 7), (2, 2))
            and 4 * self.in_channels <= BLOCK_CHANNELS
            and x.numel() >= BLOCK_PIXELS * self.in_channels
            and _half(x) is not None
        )


def _half(x: Tensor) -> torch.dtype | None:
    """Return the type of two bytes in which a convolution of x on a GPU computes, if it does."""
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    return dtype if dtype in (torch.bfloat16, torch.float16) else None


def _in_blocks(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair) -> Tensor:
    """Return a convolution with stride 2 and an odd kernel, as one of 2×2 blocks of pixels."""
    top, left = padding
    image = functional.pad(x, (left, left + x.shape[3] % 2, top, top + x.shape[2] % 2))
    kernel = functional.pad(weight, (0, 1, 0, 1))
    image, kernel = functional.pixel_unshuffle(image, 2), functional.pixel_unshuffle(kernel, 2)
    zeros = (0, 0, 0, 0, 0, BLOCK_CHANNELS - image.shape[1])
    image, kernel = functional.pad(image, zeros), functional.pad(kernel, zeros)
    last = torch.channels_last
    return functional.conv2d(
        image.contiguous(memory_format=last), kernel.contiguous(memory_format=last), bias
    )


def _one_pixel(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair) -> Tensor:
    """Return a convolution whose output has one pixel: x and the kernel where they overlap."""
    h, w = (min(n, k - p) for n, k, p in zip(x.shape[2:], weight.shape[2:], padding, strict=True))
    top, left = padding
    part = _Part.apply(weight, (slice(top, top + h), slice(left, left + w))).permute(0, 2, 3, 1)
    pixels = x[:, :, :h, :w].permute(0, 2, 3, 1)
    y = functional.linear(pixels.flatten(1), part.flatten(1), bias)
    return y[:, None, None].permute(0, 3, 1, 2)  # channels last


class _Part(torch.autograd.Function):
    """A part of each kernel; torch would fill the gradient with zeros once for each dimension."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, where: tuple[slice, slice]) -> Tensor:
        ctx.shape, ctx.where = weight.shape, where
        return weight[:, :, *where]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        whole = gradients[0].new_zeros(ctx.shape)
        whole[:, :, *ctx.where] = gradients[0]
        return whole, None


def _on_cpu_with_gradient(x: Tensor) -> bool:
    """Return whether oneDNN computes on `x` in a pass that needs gradients."""
    return (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and x.dim() == 4
        and x.requires_grad
        and torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


class _FastGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.padding = stride, padding
        return functional.conv2d(x, weight, stride=stride, padding=padding)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        if ctx.stride == (1, 1):
            to_input = _convolved(gradient, weight, ctx.padding)
        else:
            to_input = _summed(gradient, weight, x.shape[2:], ctx.stride, ctx.padding)
        return to_input, _to_weight(gradient, x, weight, ctx.stride, ctx.padding), None, None


def _convolved(gradient: Tensor, weight: Tensor, padding: Pair) -> Tensor:
    """Return the gradient with respect to the input of a convolution with stride 1."""
    rest = [k - 1 - p for k, p in zip(weight.shape[2:], padding, strict=True)]
    rotated = weight.flip(2, 3).transpose(0, 1).contiguous(memory_format=torch.channels_last)
    return functional.conv2d(gradient, rotated, padding=rest)


def _summed(
    gradient: Tensor, weight: Tensor, size: torch.Size, stride: Pair, padding: Pair
) -> Tensor:
    """Return the gradient with respect to an input of `size` (h, w): of each window, summed."""
    (n, outputs, rows, columns), (_, inputs, height, width) = gradient.shape, weight.shape
    kernels = weight.permute(0, 2, 3, 1).reshape(outputs, -1)
    windows = gradient.permute(0, 2, 3, 1).reshape(-1, outputs) @ kernels
    windows = windows.view(n, rows, columns, height, width, inputs)
    (h, w), (top, left) = size, padding
    padded = gradient.new_zeros(n, h + 2 * top, w + 2 * left, inputs)
    for row in range(height):
        for column in range(width):
            down = slice(row, row + stride[0] * rows, stride[0])
            right = slice(column, column + stride[1] * columns, stride[1])
            padded[:, down, right] += windows[:, :, :, row, column]
    return padded[:, top : top + h, left : left + w].permute(0, 3, 1, 2)


def _to_weight(gradient: Tensor, x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """Return the gradient with respect to the weights, some images at a time."""
    outputs, inputs, height, width = weight.shape
    (top, left), pixels = padding, gradient.permute(0, 2, 3, 1)
    padded = functional.pad(x.permute(0, 2, 3, 1), (0, 0, left, left, top, top))
    windows = padded.unfold(1, height, stride[0]).unfold(2, width, stride[1])
    windows = windows.permute(0, 1, 2, 4, 5, 3)  # image, row, column, window's row, column, channel
    images = max(1, WINDOW_VALUES // max(1, windows[:1].numel()))
    total = gradient.new_zeros(outputs, height * width * inputs)
    for some, of_some in zip(windows.split(images), pixels.split(images), strict=True):
        flat = some.reshape(-1, height * width * inputs)
        total.addmm_(of_some.reshape(-1, outputs).t(), flat)
    return total.view(outputs, height, width, inputs).permute(0, 3, 1, 2)
