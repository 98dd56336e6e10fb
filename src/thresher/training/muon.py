"""Muon: momentum whose update is orthogonalised, for the filters of a network."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from thresher.training.layerwise import LayerWise, ParameterGroup

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic iteration; they drive singular values towards 1 quickly rather than exactly."""
ITERATIONS = 3
TINY = 1e-12


class Muon(LayerWise):
    """Nesterov momentum on all parameters; orthogonalised for groups with `adapt` True.

    Jordan et al. 2024, https://kellerjordan.github.io/posts/muon. The update of a weight of two or
    more dimensions is flattened to a matrix (outputs × the rest) and replaced by a matrix with the
    same singular vectors and singular values near 1. Convolution filters are rescaled to the norm
    √outputs before each step: they are followed by batch norm, and their norm would only change
    the effective rate. Groups with `adapt` False (biases, norm layers, the head) take Nesterov SGD
    steps.

    It never waits for the device and takes a rate that is a tensor, so that a CUDA graph can hold
    the step. Memory: a momentum buffer per tensor, and temporaries of the size of each weight.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor,
        momentum: float = 0.6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "adapt": True}
        )

    def update(
        self, group: ParameterGroup, params: list[Tensor], grads: list[Tensor]
    ) -> list[Tensor]:
        momentum, decay, adapt = group["momentum"], group["weight_decay"], group["adapt"]
        if decay and not adapt:
            grads = list(torch._foreach_add(grads, params, alpha=decay))
        buffers = self.buffers(params, "momentum_buffer")
        torch._foreach_mul_(buffers, momentum)
        torch._foreach_add_(buffers, grads)
        update = list(torch._foreach_add(grads, buffers, alpha=momentum))
        if not adapt:
            return update
        filters = [parameter for parameter in params if parameter.ndim > 2]
        if filters:
            norms = torch._foreach_norm(filters)
            torch._foreach_clamp_min_(norms, TINY)  # filters may start at zero
            torch._foreach_div_(filters, norms)
            torch._foreach_mul_(filters, [len(weight) ** 0.5 for weight in filters])
        return [orthogonalise(matrix) for matrix in update]


def orthogonalise(weight: Tensor) -> Tensor:
    """Return the matrix nearest to `weight` whose singular values are all about 1.

    Weights of more than two dimensions are flattened to (outputs, rest). On a GPU the iteration
    runs in bfloat16.
    """
    a, b, c = COEFFICIENTS
    matrix = weight.flatten(1)
    x = matrix.bfloat16() if weight.is_cuda and weight.dtype != torch.float64 else matrix
    wide = x.shape[0] <= x.shape[1]
    if not wide:
        x = x.T
    x = x / (x.norm() + 1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x if wide else x.T).to(weight.dtype).view_as(weight)
