"""The optimizer of a run: torch's fused SGD and AdamW, or LARS, LAMB and Muon."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from thresher.errors import InvalidValueError, nearest
from thresher.options import option

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from thresher.training.layerwise import ParameterGroup

OptimizerName = Literal["sgd", "nesterov", "lars", "lamb", "adamw", "muon"]
OPTIMIZERS = get_args(OptimizerName)


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The optimizer."""

    optimizer: OptimizerName = "sgd"
    """Update rule."""
    momentum: float = option(0.9, ge=0, lt=1)
    """Momentum of sgd, nesterov, lars and muon; decay of the first moment of lamb and adamw."""
    weight_decay: float = option(5e-4, ge=0)
    """Weight decay; muon applies it to biases, norm layers and the head only."""
    decay_norm_bias: bool = True
    """Apply weight decay to biases and norm layers too; lars and lamb never do."""
    bias_lr: float = option(1.0, ge=0)
    """Factor on the learning rate of biases and norm layers."""
    head_lr: float = option(1.0, ge=0)
    """Factor on the learning rate of the head, the last linear layer; its bias has both factors."""


def make_optimizer(
    model: "nn.Module", config: OptimizerConfig, lr: float, tensor_lr: bool | None = None
) -> "torch.optim.Optimizer":
    """Make an optimizer over the model's parameters; change its rate with `set_rate`.

    With `tensor_lr` (default: on a GPU) the rate is a 0-d tensor, as captured steps need it.
    """
    import torch

    from thresher.plain_optimizers import SGD, AdamW
    from thresher.training.layerwise import LAMB, LARS
    from thresher.training.muon import Muon

    name, betas = config.optimizer, (config.momentum, 0.999)
    if name not in OPTIMIZERS:
        raise InvalidValueError(f'unknown optimizer "{name}"', nearest(name, OPTIMIZERS))
    groups = parameter_groups(model, config)
    if not groups:
        raise InvalidValueError("the model has no parameters to train")
    device = groups[0]["params"][0].device
    if tensor_lr is None:
        tensor_lr = device.type == "cuda"
    for group in groups:
        group["lr"] = lr * group["lr_factor"]
        if tensor_lr:
            group["lr"] = torch.tensor(group["lr"], dtype=torch.float32, device=device)
    if name == "lars":
        return LARS(groups, lr=lr, momentum=config.momentum)
    if name == "lamb":
        return LAMB(groups, lr=lr, betas=betas)
    if name == "muon":
        return Muon(groups, lr=lr, momentum=config.momentum)
    if name == "adamw":
        capturable = device.type == "cuda"
        return AdamW(groups, lr=lr, betas=betas, fused=True, capturable=capturable)
    nesterov = name == "nesterov"
    if nesterov and config.momentum <= 0:
        raise InvalidValueError("momentum must be greater than 0 for nesterov", "", "momentum")
    made = SGD(groups, lr=lr, momentum=config.momentum, nesterov=nesterov, fused=True)
    if config.momentum:
        # If the first step is skipped, as in fp16 when gradients overflow, torch makes the momenta
        # and leaves their memory as it is.
        for parameter in (p for group in made.param_groups for p in group["params"]):
            made.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return made


def parameter_groups(model: "nn.Module", config: OptimizerConfig) -> "list[ParameterGroup]":
    """Return weights of two or more dimensions, biases and norm layers, and perhaps the head's.

    `adapt` marks what layer-wise optimizers and Muon adapt.
    """
    from thresher.models.weights import find_head

    decay, name = config.weight_decay, config.optimizer
    apart = config.head_lr != 1 or name == "muon"
    head = find_head(model) if apart else None
    in_head = {id(parameter) for parameter in head[1].parameters()} if head else set()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    others = [p for p in trained if p.ndim <= 1 and id(p) not in in_head]
    weights = [p for p in trained if p.ndim > 1 and id(p) not in in_head]
    last = [p for p in trained if id(p) in in_head and p.ndim > 1]
    last_bias = [p for p in trained if id(p) in in_head and p.ndim <= 1]
    decays = config.decay_norm_bias and name not in ("lars", "lamb")
    names = ("params", "weight_decay", "adapt", "lr_factor")
    groups = [
        (weights, decay, True, 1.0),
        (others, decay if decays else 0.0, False, config.bias_lr),
        (last, decay, name != "muon", config.head_lr),
        (last_bias, decay if decays else 0.0, False, config.bias_lr * config.head_lr),
    ]
    return [dict(zip(names, group, strict=True)) for group in groups if group[0]]


def set_rate(optimizer: "torch.optim.Optimizer", rate: "float | Tensor") -> None:
    """Set the learning rate of every group, times its factor, in place where it is a tensor.

    `rate` may be a 0-d tensor on the same device; then nothing waits for the device.
    """
    for group in optimizer.param_groups:
        factor = group.get("lr_factor", 1.0)
        scaled = rate if factor == 1 else rate * factor
        if isinstance(group["lr"], float | int):
            group["lr"] = scaled
        elif isinstance(scaled, float | int):
            group["lr"].fill_(scaled)
        else:
            group["lr"].copy_(scaled)
