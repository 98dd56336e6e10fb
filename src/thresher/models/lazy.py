"""Lazy layers (`nn.LazyConv2d`, …), whose sizes follow from the first images they see."""

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from thresher.errors import InvalidValueError, first_line


def materialise(model: nn.Module, name: str, shape: tuple[int, int, int] | None) -> None:
    """Give lazy layers their sizes and first weights: pass two made images of `shape` through.

    Otherwise they would draw their weights in the first training step, whatever the seed. Other
    layers stay as they are. `name` is for messages.

    Raises:
        InvalidValueError: There are lazy layers, and no `shape`, or images of it do not pass
            through all of them.
    """
    lazy = [layer for layer in model.modules() if _is_lazy(layer)]
    if not lazy:
        return
    if shape is None:
        raise InvalidValueError(
            f'model "{name}" has lazy layers, and the size of the images is not known here',
            "give its layers their sizes",
        )
    kept = [(buffer, buffer.clone()) for buffer in model.buffers() if not is_lazy(buffer)]
    training = model.training
    with torch.no_grad():
        try:
            model.train()(torch.zeros(2, *shape))
        except (RuntimeError, ValueError) as error:
            raise failed_on(shape, name, error) from error
        for buffer, before in kept:
            buffer.copy_(before)
    model.train(training)
    for layer in lazy:
        if isinstance(layer, _NormBase):
            layer.reset_running_stats()
    unused = next((path for path, layer in model.named_modules() if _is_lazy(layer)), None)
    if unused is not None:
        raise InvalidValueError(
            f'no image passes through the lazy layer "{unused}" of model "{name}"',
            "give it its size, or leave it out",
        )


def failed_on(shape: tuple[int, int, int], name: str, error: Exception) -> InvalidValueError:
    """Return the refusal of a model whose forward pass raised `error`."""
    what = f'model "{name}" fails on images of {"×".join(map(str, shape))}: {first_line(error)}'
    return InvalidValueError(what, "THRESHER_DEBUG=1 shows where")


def _is_lazy(layer: nn.Module) -> bool:
    own = [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]
    return any(is_lazy(tensor) for tensor in own)
