"""Networks by name: ours, timm's, torchvision's, or any function of the user's own."""

import importlib
import inspect
import os
import sys
from pathlib import Path
from typing import Any

from torch import nn

from thresher.errors import ThresherError, nearest
from thresher.models import convnets, resnet, weights

BUILT_IN = (*resnet.NAMES, *convnets.NAMES)
FOREIGN = ("timm:NAME", "torchvision:NAME", "package.module:function")


def build(
    name: str, classes: int, channels: int = 3, weights: str | Path | None = None
) -> nn.Module:
    """The network `name` with a head for `classes`, on the CPU, for images of `channels`.

    Built-in names are `BUILT_IN`; `timm:NAME` and `torchvision:NAME` ask those libraries;
    `package.module:function` calls `function(classes=…, channels=…)`, leaving out what it does
    not take. `weights` names a safetensors file or a state dict to start from; its head is left
    behind where the classes differ.
    """
    if classes < 1 or channels < 1:
        raise ThresherError(f"a network of {classes} classes and {channels} channels has no use")
    model = _build(name, classes, channels)
    if weights is not None:
        load_weights(model, name, Path(weights))
    return model


def load_weights(model: nn.Module, name: str, file: Path) -> list[str]:
    """Load `file` into `model`; returns the names of the head's tensors that were left out."""
    return weights.load_into(model, file, name)


def check(name: str) -> None:
    """Refuse a name that cannot be a network, without building one (or importing its library)."""
    if name not in BUILT_IN and not _foreign(name):
        known = (*BUILT_IN, *FOREIGN)
        raise ThresherError(f'there is no model "{name}"', nearest(name, known))


def _foreign(name: str) -> bool:
    module, colon, function = name.partition(":")
    return bool(colon and module and function)


def _build(name: str, classes: int, channels: int) -> nn.Module:
    check(name)
    if name in resnet.NAMES:
        return resnet.resnet(name, classes, channels)
    if name in convnets.NAMES:
        return convnets.convnet(name, classes, channels)
    library, _, inner = name.partition(":")
    if library == "timm":
        return _timm(inner, classes, channels)
    if library == "torchvision":
        return _torchvision(inner, classes, channels)
    return _own(library, inner, classes, channels)


def _library(name: str) -> Any:
    """Import timm or torchvision; either may be missing, or unfit for the torch that is here."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            raise ThresherError(
                f"the models of {name} need {name}, which is not installed", f"pip install {name}"
            ) from None
        raise ThresherError(f"{name} cannot be imported: {_first_line(error)}") from error
    except Exception as error:
        # A CPU build of torch beside torchvision fails with a RuntimeError about operators.
        raise ThresherError(
            f"{name} is installed but cannot be imported beside this torch ({_first_line(error)})",
            f"install the {name} that was built for it",
        ) from error


def _timm(name: str, classes: int, channels: int) -> nn.Module:
    timm = _library("timm")
    if not timm.is_model(name):
        raise ThresherError(f'timm has no model "{name}"', nearest(name, timm.list_models()))
    return timm.create_model(name, pretrained=False, num_classes=classes, in_chans=channels)


def _torchvision(name: str, classes: int, channels: int) -> nn.Module:
    _library("torchvision")
    models = importlib.import_module("torchvision.models")
    known = models.list_models(module=models)
    if name not in known:
        raise ThresherError(f'torchvision has no model "{name}"', nearest(name, known))
    model = models.get_model(name, weights=None, num_classes=classes)
    if channels != 3:
        _replace_stem(model, name, channels)
    return model


def _replace_stem(model: nn.Module, name: str, channels: int) -> None:
    """Give the first convolution another number of input channels."""
    for path, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            kept = ("out_channels", "kernel_size", "stride", "padding", "dilation")
            options: dict[str, Any] = {key: getattr(module, key) for key in kept}
            stem = nn.Conv2d(channels, **options, bias=module.bias is not None)
            parent, _, leaf = path.rpartition(".")
            setattr(model.get_submodule(parent), leaf, stem)
            return
    raise ThresherError(f"{name} has no convolution to give {channels} channels to")


def _own(module_name: str, function_name: str, classes: int, channels: int) -> nn.Module:
    # The installed script, unlike `python -m`, does not look in the folder one stands in.
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    name = f"{module_name}:{function_name}"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ThresherError(
            f'the model "{name}" cannot be imported: there is no module "{error.name}"',
            "give package.module:function, importable from here",
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        callables = [key for key, value in vars(module).items() if callable(value)]
        raise ThresherError(
            f'the module {module_name} has no function "{function_name}"',
            nearest(function_name, callables),
        )
    offered = {"classes": classes, "channels": channels}
    taken = inspect.signature(function).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in taken.values()):
        offered = {key: value for key, value in offered.items() if key in taken}
    model = function(**offered)
    if not isinstance(model, nn.Module):
        raise ThresherError(
            f'"{name}" gave a {type(model).__name__}', "it must return a torch.nn.Module"
        )
    return model


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
