"""A convolution whose gradient is as fast as itself on ARM processors.

oneDNN has no fast kernel there for the gradient with respect to the input, and takes more than
twice as long as for the convolution. With stride 1 that gradient is itself a convolution, of the
output's gradient with the kernel turned round: `benchmarks/results/convolution.md`.
"""

import platform
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

ARM = platform.machine().lower() in ("aarch64", "arm64") and torch.backends.mkldnn.is_available()
"""Whether oneDNN computes convolutions here, and on such a processor."""


class Conv2d(nn.Conv2d):
    """`nn.Conv2d`, its values and its parameters; only the way to the gradient may differ."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if ARM and self._turnable and _plain(input):
            made: Tensor = _Turned.apply(input, weight, self.padding)
            return made if bias is None else made + bias[:, None, None]
        return super()._conv_forward(input, weight, bias)

    @property
    def _turnable(self) -> bool:
        """Stride 1, and padding (a pair of numbers) smaller than the kernel."""
        return (
            self.stride == (1, 1)
            and self.dilation == (1, 1)
            and self.groups == 1
            and self.padding_mode == "zeros"
            and not isinstance(self.padding, str)
            and all(p < k for p, k in zip(self.padding, self.kernel_size, strict=True))
        )


def _plain(x: Tensor) -> bool:
    """A tensor that oneDNN takes here, in a pass whose gradient is wanted."""
    return (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and x.dim() == 4
        and x.requires_grad
        and torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


class _Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, padding: tuple[int, int]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.padding = padding
        return functional.conv2d(x, weight, padding=padding)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        beyond = [k - 1 - p for k, p in zip(weight.shape[2:], ctx.padding, strict=True)]
        turned = weight.flip(2, 3).transpose(0, 1).contiguous(memory_format=torch.channels_last)
        to_input = functional.conv2d(gradient, turned, padding=beyond)
        _, to_weight, _ = torch.ops.aten.convolution_backward(
            *(gradient, x, weight, None, [1, 1], ctx.padding, [1, 1]),
            *(False, [0, 0], 1, [False, True, False]),
        )
        return to_input, to_weight, None
