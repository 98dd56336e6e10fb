"""Compare a training step with one on the CPU, on a device that Thresher is not tested on."""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from thresher.device_check import check_agreement, is_tested
from thresher.training.optimizers import make_optimizer, set_rate
from thresher.training.step import Step
from thresher.training.undo import buffers_kept

SAMPLES = 64
CPU = torch.device("cpu")


def check_step(step: Step, count: int) -> None:
    """Raise InvalidValueError unless gradients and update of a step agree with those of the CPU.

    `count` is the size of a batch. The step is undone afterwards.
    """
    device = step.group.device
    if is_tested(device):
        return
    part = step.data.first_part(min(count, step.micro or count, SAMPLES), step.align)
    images, labels, _ = step.data.inputs(part, slice(0, len(part.rows)))
    ours, theirs = step.model, copy.deepcopy(step.model).to(CPU)
    batch = (images.cpu(), labels.cpu())
    modes = {module: module.training for module in ours.modules()}
    first = _gradients(theirs, *batch, seed=1)
    if not all(map(torch.equal, first, _gradients(theirs, *batch, seed=2))):
        # Random numbers of a device, as for dropout, are not those of the CPU.
        ours.eval()
        first = _gradients(theirs.eval(), *batch, seed=1)
    with step.undone():
        gradients = _gradients(ours, images, labels, seed=1)
        for module, mode in modes.items():
            module.training = mode
        check_agreement("gradients", device, gradients, first)
        # Gradients of the device for both, as some optimizers divide by their size.
        optimizer = make_optimizer(theirs, step.config, 0.0)
        rate = step.optimizer.param_groups[0]["lr"] / step.optimizer.param_groups[0]["lr_factor"]
        set_rate(optimizer, rate)
        before = [p.detach().clone() for p in _trained(theirs)]
        for model, chosen in ((ours, step.optimizer), (theirs, optimizer)):
            for parameter, gradient in zip(_trained(model), gradients, strict=True):
                parameter.grad = gradient.to(parameter.device)
            chosen.step()
        changes = [
            [p.detach().cpu() - old for p, old in zip(_trained(model), before, strict=True)]
            for model in (ours, theirs)
        ]
        check_agreement("updates of weights", device, *changes)


def _gradients(model: nn.Module, images: Tensor, labels: Tensor, seed: int) -> list[Tensor]:
    torch.manual_seed(seed)
    with buffers_kept(model):
        loss = F.cross_entropy(model(images).float(), labels)
        gradients = torch.autograd.grad(loss, _trained(model), allow_unused=True)
    pairs = zip(gradients, _trained(model), strict=True)
    return [torch.zeros_like(p) if gradient is None else gradient for gradient, p in pairs]


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
