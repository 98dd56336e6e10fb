"""Layer-wise adaptive optimizers: LARS and LAMB.

Both work on lists of tensors, never wait for the device, and take a rate that is a tensor, so that
a CUDA graph can hold the step and the rate can be set between replays.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

ParameterGroup = dict[str, Any]
"""Parameters and settings of torch's optimizers."""


class LARS(torch.optim.Optimizer):
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
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust": trust,
            "adapt": True,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = _closure_loss(closure)
        for group in self.param_groups:
            params, grads = _with_gradient(group)
            if not params:
                continue
            update = _decayed(grads, params, group["weight_decay"])
            if group["adapt"]:
                norms = torch.stack(torch._foreach_norm(params))
                below = torch.stack(torch._foreach_norm(grads)) + group["weight_decay"] * norms
                scales = _ratio(group["trust"] * norms, below)
                update = list(torch._foreach_mul(update, scales))
            buffers = [self._buffer(parameter, "momentum_buffer") for parameter in params]
            torch._foreach_mul_(buffers, group["momentum"])
            torch._foreach_add_(buffers, update)
            _descend(params, buffers, group["lr"])
        return loss

    def _buffer(self, parameter: Tensor, name: str) -> Tensor:
        return _buffer(self.state[parameter], parameter, name)


class LAMB(torch.optim.Optimizer):
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
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "bias_correction": bias_correction,
            "adapt": True,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = _closure_loss(closure)
        for group in self.param_groups:
            params, grads = _with_gradient(group)
            if not params:
                continue
            beta1, beta2 = group["betas"]
            first = [_buffer(self.state[parameter], parameter, "exp_avg") for parameter in params]
            second = [_buffer(self.state[p], p, "exp_avg_sq") for p in params]
            torch._foreach_lerp_(first, grads, 1 - beta1)
            torch._foreach_mul_(second, beta2)
            torch._foreach_addcmul_(second, grads, grads, value=1 - beta2)
            update = self._direction(group, first, second)
            if group["weight_decay"]:
                torch._foreach_add_(update, params, alpha=group["weight_decay"])
            if group["adapt"]:
                norms = torch.stack(torch._foreach_norm(params))
                below = torch.stack(torch._foreach_norm(update))
                torch._foreach_mul_(update, _ratio(norms, below, group["eps"]))
            _descend(params, update, group["lr"])
        return loss

    def _direction(
        self, group: ParameterGroup, first: list[Tensor], second: list[Tensor]
    ) -> list[Tensor]:
        """Return m̂ / (√v̂ + ε) as new tensors."""
        below = torch._foreach_sqrt(second)
        if not group["bias_correction"]:
            torch._foreach_add_(below, group["eps"])
            return list(torch._foreach_div(first, below))
        step = self._count(group, first[0])
        beta1, beta2 = group["betas"]
        # Cast: on a GPU a list and its scalar must be of one type.
        exact = first[0].dtype
        torch._foreach_div_(below, (1 - beta2**step).sqrt().to(exact))
        torch._foreach_add_(below, group["eps"])
        update = torch._foreach_div(first, below)
        torch._foreach_div_(update, (1 - beta1**step).to(exact))
        return list(update)

    @staticmethod
    def _count(group: ParameterGroup, like: Tensor) -> Tensor:
        """Count steps, this one included, in a tensor: a replayed graph keeps counting."""
        step = group.get("step")
        if step is None:
            group["step"] = step = torch.zeros((), dtype=torch.float64, device=like.device)
        elif step.device != like.device:
            group["step"] = step = step.to(like.device)
        step += 1
        return step


def _closure_loss(closure: Callable[[], Any] | None) -> Any:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _with_gradient(group: ParameterGroup) -> tuple[list[Tensor], list[Tensor]]:
    params = [parameter for parameter in group["params"] if parameter.grad is not None]
    return params, [parameter.grad for parameter in params]


def _buffer(state: ParameterGroup, parameter: Tensor, name: str) -> Tensor:
    if name not in state:
        state[name] = torch.zeros_like(parameter)
    return state[name]


def _decayed(grads: list[Tensor], params: list[Tensor], decay: float) -> list[Tensor]:
    return list(torch._foreach_add(grads, params, alpha=decay)) if decay else grads


def _ratio(above: Tensor, below: Tensor, eps: float = 0.0) -> list[Tensor]:
    """Return above / below per tensor as 0-d tensors, 1 where either is zero."""
    usable = (above > 0) & (below > 0)
    return list(torch.where(usable, above / (below + eps), 1.0).unbind())


def _descend(params: list[Tensor], update: list[Tensor], lr: float | Tensor) -> None:
    """Subtract lr · update in place; the rate is a number or a 0-d tensor."""
    if isinstance(lr, Tensor):
        torch._foreach_sub_(params, torch._foreach_mul(update, lr.to(update[0].dtype)))
    else:
        torch._foreach_add_(params, update, alpha=-lr)
