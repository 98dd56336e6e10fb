"""The preprocessing that timm and torchvision give for their pretrained networks."""

import importlib
import logging
import math
from typing import Any, get_args

from thresher.data.images import Resample
from thresher.data.pack import Pack
from thresher.errors import InvalidValueError
from thresher.models import registry
from thresher.models.network import Preprocessing

logger = logging.getLogger(__name__)


def preprocessing_of(name: str, pack: Pack) -> Preprocessing:
    """Return what belongs to the network `name`: that of its library, or the pack's statistics.

    Networks of timm and torchvision are given images as their libraries prepare them for the
    published weights. Images that are not RGB, and other networks, are normalised as the pack is.
    """
    library, _, inner = name.partition(":")
    channels = pack.image_shape[2] if pack.image_shape else 3
    if library not in _LIBRARIES or channels != 3:
        return Preprocessing.of_pack(pack)
    images = _LIBRARIES[library](inner)
    if images is None:
        logger.warning(
            "%s has no published weights of %s: images are normalised by the statistics of %s",
            *(library, inner, pack.name),
        )
        return Preprocessing.of_pack(pack)
    logger.info(
        "images are prepared as %s does it: %s, crop %s, mean %s, std %s",
        *(library, images.image_size, images.crop, images.mean, images.std),
    )
    return images


def _timm(name: str) -> Preprocessing | None:
    timm = registry.library("timm")
    config = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
    if config is None:
        return None
    data = importlib.import_module("timm.data")
    values = data.resolve_data_config(pretrained_cfg=config.to_dict())
    side = int(values["input_size"][-1])
    return Preprocessing(
        mean=tuple(map(float, values["mean"])),
        std=tuple(map(float, values["std"])),
        crop=side,
        image_size=math.floor(side / float(values["crop_pct"])),
        resample=_resample(values["interpolation"]),
    )


def _torchvision(name: str) -> Preprocessing | None:
    registry.library("torchvision")
    models = importlib.import_module("torchvision.models")
    if name not in models.list_models(module=models) or not list(models.get_model_weights(name)):
        return None
    images: Any = models.get_model_weights(name).DEFAULT.transforms()
    return Preprocessing(
        mean=tuple(map(float, images.mean)),
        std=tuple(map(float, images.std)),
        crop=int(images.crop_size[0]),
        image_size=int(images.resize_size[0]),
        resample=_resample(images.interpolation.value),
    )


def _resample(name: str) -> Resample:
    if name not in get_args(Resample):
        what = f"images are scaled by {name}, which is not supported"
        raise InvalidValueError(what, "give `image_size`, `mean` and `std` yourself")
    return name  # type: ignore[return-value]


_LIBRARIES = {"timm": _timm, "torchvision": _torchvision}
