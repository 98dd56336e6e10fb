"""The optimisers by name: torch's fused SGD and AdamW; LARS and LAMB of our own.

Ours work on lists of tensors, never wait for the device, and take a rate that is a tensor, so
that a CUDA graph can hold the step and the rate can be set between replays.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from thresher.errors import ThresherError, nearest

OPTIMIZERS = ("sgd", "nesterov", "lars", "lamb", "adamw")


def make(
    name: str,
    model: nn.Module,
    lr: float,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    decay_norm_bias: bool = True,
    trust: float = 0.001,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float | None = None,
    tensor_lr: bool | None = None,
) -> torch.optim.Optimizer:
    """The optimiser `name` over the model's parameters.

    decay_norm_bias=False leaves weight decay off biases and norm layers (everything of one
    dimension); LARS and LAMB neither decay nor adapt those in any case. trust is LARS's η.
    tensor_lr: keep the rate as a 0-d tensor on the parameters' device (default: on a GPU);
    change it with `set_rate`.
    """
    if name not in OPTIMIZERS:
        raise ThresherError(f'there is no optimizer "{name}"', nearest(name, OPTIMIZERS))
    adaptive = name in ("lars", "lamb")
    groups = parameter_groups(model, weight_decay, decay_norm_bias and not adaptive)
    if not groups:
        raise ThresherError("the model has no parameters to train")
    device = groups[0]["params"][0].device
    if tensor_lr is None:
        tensor_lr = device.type == "cuda"
    rate: Any = torch.tensor(lr, dtype=torch.float32, device=device) if tensor_lr else lr
    if name == "lars":
        return LARS(groups, lr=rate, momentum=momentum, trust=trust)
    if name == "lamb":
        return LAMB(groups, lr=rate, betas=betas, eps=1e-6 if eps is None else eps)
    if name == "adamw":
        capturable = device.type == "cuda"
        eps = 1e-8 if eps is None else eps
        return torch.optim.AdamW(
            groups, lr=rate, betas=betas, eps=eps, fused=True, capturable=capturable
        )
    nesterov = name == "nesterov"
    if nesterov and momentum <= 0:
        raise ThresherError("nesterov needs a momentum above 0", "give one, or take sgd")
    return torch.optim.SGD(groups, lr=rate, momentum=momentum, nesterov=nesterov, fused=True)


def parameter_groups(
    model: nn.Module, weight_decay: float, decay_norm_bias: bool
) -> list[dict[str, Any]]:
    """Two groups: weights of two dimensions and more; biases and norm layers (`adapt` False)."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    weights = [parameter for parameter in trained if parameter.ndim > 1]
    others = [parameter for parameter in trained if parameter.ndim <= 1]
    decay = weight_decay if decay_norm_bias else 0.0
    groups: list[dict[str, Any]] = [
        {"params": weights, "weight_decay": weight_decay, "adapt": True},
        {"params": others, "weight_decay": decay, "adapt": False},
    ]
    return [group for group in groups if group["params"]]


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every group, in place where it is a tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


class LARS(torch.optim.Optimizer):
    """SGD whose rate is scaled per tensor by λ = η‖w‖ / (‖∇‖ + wd‖w‖).

    You, Gitman and Ginsburg 2017, https://arxiv.org/abs/1708.03888. Groups with `adapt` False
    take plain SGD steps. Holds one momentum buffer per tensor, and one temporary in a step.
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
        loss = _evaluated(closure)
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
    `adapt` False take plain AdamW steps. Holds two moments per tensor, and two temporaries.
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
        loss = _evaluated(closure)
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
        self, group: dict[str, Any], first: list[Tensor], second: list[Tensor]
    ) -> list[Tensor]:
        """m̂ / (√v̂ + ε), as new tensors."""
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
    def _count(group: dict[str, Any], like: Tensor) -> Tensor:
        """Steps taken, this one included: a tensor, so that a replayed graph goes on counting."""
        step = group.get("step")
        if step is None:
            group["step"] = step = torch.zeros((), dtype=torch.float64, device=like.device)
        elif step.device != like.device:
            group["step"] = step = step.to(like.device)
        step += 1
        return step


def _evaluated(closure: Callable[[], Any] | None) -> Any:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _with_gradient(group: dict[str, Any]) -> tuple[list[Tensor], list[Tensor]]:
    params = [parameter for parameter in group["params"] if parameter.grad is not None]
    return params, [parameter.grad for parameter in params]


def _buffer(state: dict[str, Any], parameter: Tensor, name: str) -> Tensor:
    if name not in state:
        state[name] = torch.zeros_like(parameter)
    return state[name]


def _decayed(grads: list[Tensor], params: list[Tensor], decay: float) -> list[Tensor]:
    return list(torch._foreach_add(grads, params, alpha=decay)) if decay else grads


def _ratio(above: Tensor, below: Tensor, eps: float = 0.0) -> list[Tensor]:
    """above / below per tensor, 1 where either is zero, as 0-d tensors."""
    usable = (above > 0) & (below > 0)
    return list(torch.where(usable, above / (below + eps), 1.0).unbind())


def _descend(params: list[Tensor], update: list[Tensor], lr: float | Tensor) -> None:
    """params -= lr · update, for a rate that is a number or a 0-d tensor."""
    if isinstance(lr, Tensor):
        torch._foreach_sub_(params, torch._foreach_mul(update, lr.to(update[0].dtype)))
    else:
        torch._foreach_add_(params, update, alpha=-lr)
