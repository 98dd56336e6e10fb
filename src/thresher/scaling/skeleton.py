"""A profile without times: layers, parameters and operations counted, for machines far away."""

from functools import partial
from typing import Any

import torch
from torch import nn

from thresher.scaling.layers import flops_of, leaf_modules, trainable
from thresher.scaling.profile import BatchTimes, DeviceInfo, Layer, Profile

SPREAD = 0.03
"""Relative σ of a step assumed for a machine that was not timed; common on cloud and HPC nodes."""


def skeleton(
    model: nn.Module, name: str, shape: tuple[int, int, int], classes: int, batch_size: int
) -> Profile:
    """Count the leaf modules of a model without computing anything.

    The model is moved to torch's meta device, so a ResNet-152 at 224×224 takes milliseconds and no
    memory. All times are zero: only the roofline model can use such a profile. `shape` is
    (channels, height, width) of an image.
    """
    model = model.to("meta").eval()
    layers: list[Layer] = []
    seen: set[str] = set()

    def count(name: str, module: nn.Module, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        layers.append(
            Layer(
                name=name,
                kind=type(module).__name__,
                # A module that is called twice (a shared ReLU) has its parameters once.
                parameters=0 if name in seen else trainable(module),
                flops=flops_of(module, tuple(output.shape)),
                activation_bytes=4 * float(output[0].numel()),
                forward_s={batch_size: 0.0},
                backward_s={batch_size: 0.0},
            )
        )
        seen.add(name)

    handles = [m.register_forward_hook(partial(count, name)) for name, m in leaf_modules(model)]
    with torch.no_grad():
        model(torch.empty(1, *shape, device="meta"))
    for handle in handles:
        handle.remove()
    parameters = trainable(model)
    return Profile(
        model=name,
        classes=classes,
        channels=shape[0],
        image_size=shape[1],
        batch_size=batch_size,
        precision="fp32",
        device=DeviceInfo("none", ""),
        parameters=parameters,
        gradient_bytes=4 * parameters,
        sample_bytes=shape[0] * shape[1] * shape[2],
        layers=tuple(layers),
        batches=(BatchTimes(batch_size, 0.0, 0.0, 0.0, 0.0, SPREAD),),
    )
