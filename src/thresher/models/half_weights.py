"""The weights of a built-in network in half precision, all cast together.

Under autocast each layer casts its own weights, and their gradient back: two short kernels per
layer, which count in steps of small batches.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from thresher.models.convolution import Conv2d

LAYERS = (Conv2d, nn.Conv2d, nn.Linear)
"""Layers that do no more with their weights than autocast casts them for."""
FEWEST = 16
"""On an H200 a step of 21 layers took 1 to 6 % less time, one of 8 layers 2 % more
(benchmarks/results/half_weights.md)."""


def pays_off(model: nn.Module) -> bool:
    """Return whether a network is ours (others may use weights in other ways) and deep enough."""
    layers = sum(type(layer) in LAYERS for layer in model.modules())
    return type(model).__module__.startswith(f"{__package__}.") and layers >= FEWEST


def half_forward(model: nn.Module, images: Tensor) -> Tensor:
    """Return `model(images)` under autocast, to the bit, with all weights cast in one go."""
    parameters = {
        f"{name}.{own}": parameter
        for name, layer in model.named_modules()
        if type(layer) in LAYERS
        for own, parameter in layer.named_parameters(recurse=False)
    }
    dtype = torch.get_autocast_dtype(images.device.type)
    cast = _Cast.apply(dtype, *parameters.values())
    logits: Tensor = functional_call(model, dict(zip(parameters, cast, strict=True)), (images,))
    return logits


class _Cast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        return tuple(_copies(weights, dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        copies = iter(_copies([g for g in gradients if g is not None], torch.float32))
        return None, *(None if gradient is None else next(copies) for gradient in gradients)


def _copies(tensors: Any, dtype: torch.dtype) -> list[Tensor]:
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    if copies:
        torch._foreach_copy_(copies, list(tensors))
    return copies
