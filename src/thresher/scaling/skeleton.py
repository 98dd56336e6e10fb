"""A profile without a clock: layers, weights and operations counted, for machines far away."""

from typing import Any

import torch
from torch import nn

from thresher.scaling.layers import flops_of
from thresher.scaling.profile import BatchTimes, Layer, Profile

SPREAD = 0.03
"""σ of a step on a machine nobody timed, relative: what cloud and HPC nodes commonly show."""


def skeleton(
    model: nn.Module, name: str, shape: tuple[int, int, int], classes: int, batch_size: int
) -> Profile:
    """Count the leaf modules of `model` on images of `shape`, without computing anything.

    The model and the image live on torch's meta device, so a ResNet-152 at 224×224 costs
    milliseconds and no memory. The times in the profile are zero: only the roofline can use it.
    """
    model = model.to("meta").eval()
    layers: list[Layer] = []
    seen: set[str] = set()

    def note(name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
            numel = float(output[0].numel())
            parameters = sum(p.numel() for p in module.parameters() if p.requires_grad)
            layers.append(
                Layer(
                    name=name,
                    kind=type(module).__name__,
                    # A module that is called twice (a shared ReLU) owns its weights once.
                    parameters=0 if name in seen else parameters,
                    flops=flops_of(module, tuple(output.shape)),
                    activation_bytes=4 * numel,
                    forward_s={batch_size: 0.0},
                    backward_s={batch_size: 0.0},
                )
            )
            seen.add(name)

        return hook

    handles = [
        module.register_forward_hook(note(path))
        for path, module in model.named_modules()
        if next(module.children(), None) is None
    ]
    with torch.no_grad():
        model(torch.empty(1, *shape, device="meta"))
    for handle in handles:
        handle.remove()
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return Profile(
        model=name,
        classes=classes,
        channels=shape[0],
        image_size=shape[1],
        batch_size=batch_size,
        precision="fp32",
        device={"kind": "none", "name": "", "threads": 1, "cores": 1},
        parameters=parameters,
        gradient_bytes=4 * parameters,
        sample_bytes=shape[0] * shape[1] * shape[2],
        layers=layers,
        batches=[BatchTimes(batch_size, 0.0, 0.0, 0.0, 0.0, SPREAD)],
    )
