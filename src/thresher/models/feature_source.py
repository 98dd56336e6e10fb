"""Where the features of a network come from: the input of its head, its output, or a layer."""

import logging
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from thresher.errors import InvalidValueError, nearest
from thresher.models.weights import find_head, has_usual_name

logger = logging.getLogger(__name__)

OUTPUT = "output"
CHOICE = 'give `features_from`: "output", or the name of the layer whose output to use'


@dataclass(frozen=True)
class FeatureSource:
    """A place in a network."""

    layer: str | None = None
    """Name of a layer; None for the network itself."""
    is_head: bool = False
    """Whether features are the input of the layer, and the network's output is its logits."""
    width: int = 0
    """Number of features."""
    classes: int = 0
    """Number of logits; 0 without a head."""

    def __str__(self) -> str:
        if self.layer is None:
            return "its output"
        return f'the {"input" if self.is_head else "output"} of layer "{self.layer}"'

    def run(self, model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return features (n, d) and the output of the model for images (n, …)."""
        if self.layer is None:
            output = model(x)
            return _vectors(output, x, str(self)), output
        inputs, outputs, result = _watch(model, self.layer, x)
        seen = inputs if self.is_head else outputs
        if len(seen) != 1:
            raise InvalidValueError(
                f'layer "{self.layer}" runs {len(seen)} times in {type(model).__name__}', CHOICE
            )
        return _vectors(seen[0], x, str(self)), result


@torch.inference_mode()
def find_features(
    model: nn.Module, x: Tensor, classes: int | None = None, features_from: str | None = None
) -> FeatureSource:
    """Find the features of a network by running it once, and log where they are.

    Args:
        model: The network.
        x: (n, channels, height, width), some images.
        classes: Number of classes that the network was built for.
        features_from: "output", or the name of the layer whose output are the features.

    Raises:
        InvalidValueError: The network has no features of one vector per image, or it is not clear
            which they are.
    """
    if features_from is None:
        source = _found(model, x, classes)
    else:
        names = [name for name, _ in model.named_modules() if name]
        if features_from not in (OUTPUT, *names):
            raise InvalidValueError(
                f'features_from: {type(model).__name__} has no layer "{features_from}"',
                nearest(features_from, names),
                "features_from",
            )
        source = FeatureSource(None if features_from == OUTPUT else features_from)
        source = replace(source, width=source.run(model, x)[0].shape[1])
    logger.info("Features of %s: %s", type(model).__name__, source)
    return source


def check_trained(model: nn.Module, features_from: str) -> None:
    """Refuse features that depend on a head which the file of weights did not have."""
    head = find_head(model)
    if head is not None and (
        features_from == OUTPUT or f"{head[0]}.".startswith(f"{features_from}.")
    ):
        raise InvalidValueError(
            f'features_from: the weights have no layer "{head[0]}" of this size, so its output '
            "would be random",
            "leave it out for the input of that layer, or name another layer",
            "features_from",
        )


def _found(model: nn.Module, x: Tensor, classes: int | None) -> FeatureSource:
    name, head = type(model).__name__, find_head(model)
    if head is None:
        output = model(x)
        if not isinstance(output, Tensor) or output.ndim != 2:
            raise InvalidValueError(
                f"{name} has no linear layer, so it has no penultimate features", CHOICE
            )
        return _output(output, x, name, classes)
    layer = head[0]
    inputs, outputs, output = _watch(model, layer, x)
    if len(inputs) != 1:
        raise InvalidValueError(
            f'the last linear layer of {name} ("{layer}") is not its head',
            f"register the head last, or {CHOICE}",
        )
    shape = output.shape if isinstance(output, Tensor) else None
    if inputs[0].ndim == 2 and len(inputs[0]) == len(x) and outputs[0].shape == shape:
        if classes is None or head[1].out_features == classes or has_usual_name(layer):
            return FeatureSource(layer, True, inputs[0].shape[1], outputs[0].shape[1])
        raise InvalidValueError(
            f'the output of {name} may be features or the logits of layer "{layer}", which has '
            f"{head[1].out_features} outputs for {classes} classes",
            CHOICE,
        )
    # A linear layer inside the network, such as one that runs on every token of a transformer.
    return _output(output, x, name, classes)


def _output(output: Any, x: Tensor, name: str, classes: int | None) -> FeatureSource:
    """Return the output of a network as features, unless it may be logits."""
    width = _vectors(output, x, "its output").shape[1]
    if width == classes:
        raise InvalidValueError(
            f"the {classes} outputs of {name} may be features or the logits of the classes", CHOICE
        )
    return FeatureSource(width=width)


def _watch(model: nn.Module, layer: str, x: Tensor) -> tuple[list[Any], list[Any], Any]:
    """Run the model; return the inputs and outputs of a layer, and the output of the model."""
    inputs: list[Any] = []
    outputs: list[Any] = []

    def hook(_module: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        inputs.append(given[0] if given else None)
        outputs.append(output)

    handle = model.get_submodule(layer).register_forward_hook(hook)
    try:
        return inputs, outputs, model(x)
    finally:
        handle.remove()


def _vectors(value: Any, x: Tensor, where: str) -> Tensor:
    """Return features as (n, d); maps of channels are averaged over their positions."""
    if isinstance(value, Tensor) and value.ndim == 4:
        value = value.mean((2, 3))
    if not isinstance(value, Tensor) or value.ndim != 2 or len(value) != len(x):
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise InvalidValueError(
            f"features must be one vector per image, but {where} is {shape} for {len(x)} images",
            CHOICE,
        )
    return value
