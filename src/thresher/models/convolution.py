"""A convolution with a fast gradient on ARM processors.

oneDNN has no fast ARM kernel for the gradient with respect to the input; it takes more than twice
as long as the convolution. With stride 1 that gradient is itself a convolution, of the output's
gradient with the rotated kernel: see `benchmarks/results/convolution.md`.
"""

import platform
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

ARM = platform.machine().lower() in ("aarch64", "arm64") and torch.backends.mkldnn.is_available()
"""Whether this is an ARM processor on which oneDNN computes convolutions."""


class Conv2d(nn.Conv2d):
    """`nn.Conv2d` with the same values and parameters; only the gradient's algorithm may differ."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if ARM and self._supported and _on_cpu_with_gradient(input):
            output: Tensor = _FastGradient.apply(input, weight, self.padding)
            return output if bias is None else output + bias[:, None, None]
        return super()._conv_forward(input, weight, bias)

    @property
    def _supported(self) -> bool:
        """Whether the stride is 1 and the padding (a pair of numbers) smaller than the kernel."""
        return (
            self.stride == (1, 1)
            and self.dilation == (1, 1)
            and self.groups == 1
            and self.padding_mode == "zeros"
            and not isinstance(self.padding, str)
            and all(p < k for p, k in zip(self.padding, self.kernel_size, strict=True))
        )


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
    def forward(ctx: Any, x: Tensor, weight: Tensor, padding: tuple[int, int]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.padding = padding
        return functional.conv2d(x, weight, padding=padding)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        padding = [k - 1 - p for k, p in zip(weight.shape[2:], ctx.padding, strict=True)]
        rotated = weight.flip(2, 3).transpose(0, 1).contiguous(memory_format=torch.channels_last)
        to_input = functional.conv2d(gradient, rotated, padding=padding)
        _, to_weight, _ = torch.ops.aten.convolution_backward(
            *(gradient, x, weight, None, [1, 1], ctx.padding, [1, 1]),
            *(False, [0, 0], 1, [False, True, False]),
        )
        return to_input, to_weight, None
