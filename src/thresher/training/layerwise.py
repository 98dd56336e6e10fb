"""Layer-wise adaptive optimizers: LARS and LAMB.

Both work on lists of tensors, never wait for the device, and take a rate that is a tensor, so that
a CUDA graph can hold the step and the rate can be set between replays.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from thresher.device_check import host_of
from thresher.plain_optimizers import PlainOptimizer

ParameterGroup = dict[str, Any]
"""Parameters and settings of torch's optimizers."""


class LayerWise(PlainOptimizer):
    """An optimizer whose update is computed on lists of tensors, per group."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [parameter for parameter in group["params"] if parameter.grad is not None]
            if params:
                update = self.update(group, params, [parameter.grad for parameter in params])
                _descend(params, update, group["lr"])
        return loss

    @abstractmethod
    def update(
        self, group: ParameterGroup, params: list[Tensor], grads: list[Tensor]
    ) -> list[Tensor]:
        """Return what is subtracted from the parameters, times the rate."""

    def buffers(self, params: list[Tensor], name: str) -> list[Tensor]:
        """Return the state `name` of each parameter, zero at first."""
        for parameter in params:
            if name not in self.state[parameter]:
                self.state[parameter][name] = torch.zeros_like(parameter)
        return [self.state[parameter][name] for parameter in params]


class LARS(LayerWise):
    """SGD whose rate is scaled per tensor by λ = η‖w‖ / (‖∇‖ + wd‖w‖), with η = `trust`.

    You, Gitman and Ginsburg 2017, https://arxiv.org/abs/1708.03888. Groups with `adapt` False
    take plain SGD steps. Memory: a momentum buffer per tensor, and a temporary in a step.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
    ) -> None:
        moving = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, {**moving, "trust": trust, "adapt": True})

    def update(
        self, group: ParameterGroup, params: list[Tensor], grads: list[Tensor]
    ) -> list[Tensor]:
        update, decay = grads, group["weight_decay"]
        if decay:
            update = list(torch._foreach_add(grads, params, alpha=decay))
        if group["adapt"]:
            norms = torch.stack(torch._foreach_norm(params))
            below = torch.stack(torch._foreach_norm(grads)) + decay * norms
            update = list(torch._foreach_mul(update, _ratio(group["trust"] * norms, below)))
        buffers = self.buffers(params, "momentum_buffer")
        torch._foreach_mul_(buffers, group["momentum"])
        torch._foreach_add_(buffers, update)
        return buffers


class LAMB(LayerWise):
    """AdamW whose update is rescaled per tensor to the norm of its weights.

    You et al. 2020, https://arxiv.org/abs/1904.00962, algorithm 2 with φ(z) = z. Groups with
    `adapt` False take plain AdamW steps. Memory: two moments per tensor, and two temporaries.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        bias_correction: bool = True,
    ) -> None:
        moments = {"lr": lr, "betas": betas, "eps": eps, "bias_correction": bias_correction}
        super().__init__(params, {**moments, "weight_decay": weight_decay, "adapt": True})

    def update(
        self, group: ParameterGroup, params: list[Tensor], grads: list[Tensor]
    ) -> list[Tensor]:
        beta1, beta2 = group["betas"]
        first, second = self.buffers(params, "exp_avg"), self.buffers(params, "exp_avg_sq")
        torch._foreach_lerp_(first, grads, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, grads, grads, value=1 - beta2)
        # m̂ / (√v̂ + ε) as new tensors.
        below = torch._foreach_sqrt(second)
        step = self._count(group, first[0]) if group["bias_correction"] else None
        # Cast: on a GPU a list and its scalar must be of one type.
        if step is not None:
            torch._foreach_div_(below, (1 - beta2**step).sqrt().to(first[0]))
        torch._foreach_add_(below, group["eps"])
        update = list(torch._foreach_div(first, below))
        if step is not None:
            torch._foreach_div_(update, (1 - beta1**step).to(first[0]))
        if group["weight_decay"]:
            torch._foreach_add_(update, params, alpha=group["weight_decay"])
        if group["adapt"]:
            norms = torch.stack(torch._foreach_norm(params))
            sizes = torch.stack(torch._foreach_norm(update))
            torch._foreach_mul_(update, _ratio(norms, sizes, group["eps"]))
        return update

    @staticmethod
    def _count(group: ParameterGroup, like: Tensor) -> Tensor:
        """Count steps, this one included, in a tensor: a replayed graph keeps counting."""
        step = group.get("step")
        if step is None:
            step = torch.zeros((), dtype=torch.float64, device=host_of(like.device))
        group["step"] = step = step.to(host_of(like.device))
        step += 1
        return step


def _ratio(above: Tensor, below: Tensor, eps: float = 0.0) -> list[Tensor]:
    """Return above / below per tensor as 0-d tensors, 1 where either is zero."""
    usable = (above > 0) & (below > 0)
    return list(torch.where(usable, above / (below + eps), 1.0).unbind())


def _descend(params: list[Tensor], update: list[Tensor], lr: float | Tensor) -> None:
    if isinstance(lr, Tensor):
        torch._foreach_sub_(params, torch._foreach_mul(update, lr.to(update[0].dtype)))
    else:
        torch._foreach_add_(params, update, alpha=-lr)
