"""Networks by name: built in, from other packages, from timm or torchvision, or any function."""

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thresher.data.digest import file_sha256
from thresher.errors import InvalidValueError, MissingDependencyError, first_line, nearest
from thresher.models.embed_config import EFFICIENTNET, HUGGING_FACE
from thresher.paths import as_path
from thresher.plugins import Registry, module_file

if TYPE_CHECKING:
    from torch import nn

_RESNETS = (
    *("tiny", "resnet20", "resnet56", "resnet110"),
    *("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"),
    *("resnet18-cifar", "resnet34-cifar", "resnet50-cifar", "resnet101-cifar", "resnet152-cifar"),
)
MODELS = Registry(
    "model",
    "thresher.models",
    {
        **{name: f"thresher.models.resnet:{name.replace('-', '_')}" for name in _RESNETS},
        "alexnet-small": "thresher.models.convnets:AlexNetSmall",
        "googlenet-small": "thresher.models.convnets:GoogLeNetSmall",
        "fast-cifar": "thresher.models.fast_cifar:FastCifar",
    },
)
"""Classes or functions that are called as `model(classes=…, channels=…)`."""
_DIGESTS: dict[str, tuple[Any, str]] = {}
"""By module: how it was imported, and the digest of its file at that time."""


def build(
    name: str,
    classes: int,
    channels: int = 3,
    weights: str | Path | None = None,
    sides: tuple[int, int] | None = None,
) -> "nn.Module":
    """Build a network on the CPU.

    Args:
        name: A name in `MODELS`, `timm:NAME`, `torchvision:NAME`, or `package.module:function`.
            The function must take `classes` and may take `channels`.
        classes: Number of classes.
        channels: Number of channels of the images.
        weights: Safetensors file or state dict to start from; its head is not loaded if the number
            of classes differs.
        sides: Height and width of the images, which only a network with lazy layers needs.

    Raises:
        InvalidValueError: The name is unknown, or the function does not build a network.
        MissingDependencyError: timm or torchvision is not installed.

    Example:
        >>> model = build("tiny", classes=10, channels=1)
        >>> sum(parameter.numel() for parameter in model.parameters())
        75002
    """
    # Not at the top: a study checks the names of its networks without torch.
    from thresher.models.lazy import materialise
    from thresher.models.weights import load_into

    if classes < 1 or channels < 1:
        raise InvalidValueError(
            f"classes and channels must be at least 1, got {classes} and {channels}"
        )
    check(name)
    source, _, inner = name.partition(":")
    if source in _LIBRARIES:
        model = _LIBRARIES[source](inner, classes, channels)
    else:
        function = MODELS.load(name)
        source_digest(name)  # now, because the file may be changed before a run is written
        model = _call(function, name, classes, channels)
    materialise(model, name, (channels, *sides) if sides else None)
    if weights is not None:
        load_into(model, as_path(weights, "weights"), name)
    return model


def check(name: str) -> None:
    """Refuse an unknown name, without building a network or importing its library."""
    if name.startswith(HUGGING_FACE) or name == EFFICIENTNET:
        raise InvalidValueError(
            f'model "{name}" computes features and cannot be trained', "use it in `thresher embed`"
        )
    source, _, inner = name.partition(":")
    if not (inner and source in _LIBRARIES) and name not in MODELS:
        known = [*MODELS.names(), *(f"{key}:NAME" for key in _LIBRARIES), "package.module:function"]
        raise InvalidValueError(f'unknown model "{name}"', nearest(name, known))


def source_file(name: str) -> Path | None:
    """Return the file of a model that is given as `package.module:function`; None for others."""
    module, _, function = name.partition(":")
    if not function or module in _LIBRARIES or name in MODELS.names():
        return None
    return module_file(name)


def source_digest(name: str) -> str | None:
    """Return the SHA-256 of `source_file` as this process imported it; None for other models.

    A file that is changed after it was imported has no effect until the module is reloaded.
    """
    file = source_file(name)
    if file is None or not file.is_file():
        return None
    module = name.partition(":")[0]
    imported = getattr(sys.modules.get(module), "__spec__", None)
    if imported is None:
        return file_sha256(file)
    if module not in _DIGESTS or _DIGESTS[module][0] is not imported:
        _DIGESTS[module] = imported, file_sha256(file)
    return _DIGESTS[module][1]


def _call(function: Callable[..., Any], name: str, classes: int, channels: int) -> "nn.Module":
    from torch import nn

    fix = "a model is a function of (classes, channels) or (classes) that returns a torch Module"
    try:
        signature = inspect.signature(function)
        kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
        arguments = {"classes": classes}
        if "channels" in kinds or inspect.Parameter.VAR_KEYWORD in kinds.values():
            arguments["channels"] = channels
        signature.bind(**arguments)
    except (TypeError, ValueError) as error:
        raise InvalidValueError(f'"{name}" is not a model ({first_line(error)})', fix) from None
    try:
        model = function(**arguments)
    except TypeError as error:
        raise InvalidValueError(f'model "{name}" failed: {first_line(error)}', fix) from error
    if not isinstance(model, nn.Module):
        raise InvalidValueError(f'model "{name}" returned {type(model).__name__}', fix)
    return model


def import_library(name: str) -> Any:
    """Import timm or torchvision, or raise MissingDependencyError."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise MissingDependencyError(f"cannot import {name}: {first_line(error)}") from error
        raise MissingDependencyError(
            f"models of {name} need {name}, which is not installed", f"pip install {name}"
        ) from None
    except Exception as error:
        # torchvision with a CPU build of torch fails with a RuntimeError about operators.
        raise MissingDependencyError(
            f"{name} is installed but cannot be imported with this torch ({first_line(error)})",
            f"install the {name} that was built for it",
        ) from error


def _timm(name: str, classes: int, channels: int) -> "nn.Module":
    timm = import_library("timm")
    if not timm.is_model(name):
        raise InvalidValueError(f'timm has no model "{name}"', nearest(name, timm.list_models()))
    return timm.create_model(name, pretrained=False, num_classes=classes, in_chans=channels)


def _torchvision(name: str, classes: int, channels: int) -> "nn.Module":
    import_library("torchvision")
    models = importlib.import_module("torchvision.models")
    known = models.list_models(module=models)
    if name not in known:
        raise InvalidValueError(f'torchvision has no model "{name}"', nearest(name, known))
    model = models.get_model(name, weights=None, num_classes=classes)
    if channels != 3:
        _replace_stem(model, name, channels)
    return model


_LIBRARIES = {"timm": _timm, "torchvision": _torchvision}


def _replace_stem(model: "nn.Module", name: str, channels: int) -> None:
    from torch import nn

    for path, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            kept = ("out_channels", "kernel_size", "stride", "padding", "dilation")
            options: Any = {key: getattr(module, key) for key in kept}
            stem = nn.Conv2d(channels, **options, bias=module.bias is not None)
            parent, _, leaf = path.rpartition(".")
            setattr(model.get_submodule(parent), leaf, stem)
            return
    raise InvalidValueError(f"{name} has no convolution whose input channels can be {channels}")
