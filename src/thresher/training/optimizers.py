"""The optimizer of a run: torch's fused SGD and AdamW, or LARS and LAMB (see `layerwise`)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from thresher.errors import InvalidValueError, nearest
from thresher.options import option

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from thresher.training.layerwise import ParameterGroup

OptimizerName = Literal["sgd", "nesterov", "lars", "lamb", "adamw"]
OPTIMIZERS = get_args(OptimizerName)


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The optimizer."""

    optimizer: OptimizerName = "sgd"
    """Update rule."""
    momentum: float = option(0.9, ge=0, lt=1)
    """Momentum of sgd, nesterov and lars; decay of the first moment of lamb and adamw."""
    weight_decay: float = option(5e-4, ge=0)
    """Weight decay."""
    decay_norm_bias: bool = True
    """Apply weight decay to biases and norm layers too; lars and lamb never do."""


def make_optimizer(
    model: "nn.Module", config: OptimizerConfig, lr: float, tensor_lr: bool | None = None
) -> "torch.optim.Optimizer":
    """Make an optimizer over the model's parameters; change its rate with `set_rate`.

    With `tensor_lr` (default: on a GPU) the rate is a 0-d tensor, as captured steps need it.
    """
    import torch

    from thresher.training.layerwise import LAMB, LARS

    name, betas = config.optimizer, (config.momentum, 0.999)
    if name not in OPTIMIZERS:
        raise InvalidValueError(f'unknown optimizer "{name}"', nearest(name, OPTIMIZERS))
    groups = parameter_groups(
        model, config.weight_decay, config.decay_norm_bias and name not in ("lars", "lamb")
    )
    if not groups:
        raise InvalidValueError("the model has no parameters to train")
    device = groups[0]["params"][0].device
    if tensor_lr is None:
        tensor_lr = device.type == "cuda"
    rate: Any = torch.tensor(lr, dtype=torch.float32, device=device) if tensor_lr else lr
    if name == "lars":
        return LARS(groups, lr=rate, momentum=config.momentum)
    if name == "lamb":
        return LAMB(groups, lr=rate, betas=betas)
    if name == "adamw":
        capturable = device.type == "cuda"
        return torch.optim.AdamW(groups, lr=rate, betas=betas, fused=True, capturable=capturable)
    nesterov = name == "nesterov"
    if nesterov and config.momentum <= 0:
        raise InvalidValueError("momentum must be greater than 0 for nesterov", "", "momentum")
    return torch.optim.SGD(groups, lr=rate, momentum=config.momentum, nesterov=nesterov, fused=True)


def parameter_groups(
    model: "nn.Module", weight_decay: float, decay_norm_bias: bool
) -> "list[ParameterGroup]":
    """Return weights of two or more dimensions, and biases and norm layers (`adapt` False)."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    weights = [parameter for parameter in trained if parameter.ndim > 1]
    others = [parameter for parameter in trained if parameter.ndim <= 1]
    decay = weight_decay if decay_norm_bias else 0.0
    groups: list[ParameterGroup] = [
        {"params": weights, "weight_decay": weight_decay, "adapt": True},
        {"params": others, "weight_decay": decay, "adapt": False},
    ]
    return [group for group in groups if group["params"]]


def set_rate(optimizer: "torch.optim.Optimizer", rate: "float | Tensor") -> None:
    """Set the learning rate of every group, in place where it is a tensor.

    `rate` may be a 0-d tensor on the same device; then nothing waits for the device.
    """
    for group in optimizer.param_groups:
        if isinstance(group["lr"], float | int):
            group["lr"] = rate
        elif isinstance(rate, float | int):
            group["lr"].fill_(rate)
        else:
            group["lr"].copy_(rate)
