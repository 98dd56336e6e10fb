"""The augmentation of a run's images."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from thresher.errors import InvalidValueError
from thresher.options import option

if TYPE_CHECKING:
    import torch

    from thresher.data.augment import Augment
    from thresher.data.pack import Pack


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """Size and augmentation of the images."""

    image_size: int | None = option(None, ge=1)
    """Side in pixels that images of different sizes are decoded to."""
    crop: int | None = option(None, ge=1)
    """Side of the random crop in pixels; by default that of the image."""
    crop_padding: int | None = option(None, ge=0)
    """Pixels of padding around the random crop; by default an eighth of the side; 0: none."""
    flip: bool | None = None
    """Mirror half of the images; by default only color images."""
    flip_mode: Literal["random", "alternate"] = "random"
    """Mirror each image at random, or in every second epoch."""
    padding_mode: Literal["black", "reflect"] = "black"
    """What `crop_padding` adds around an image."""
    cutout: int | None = option(None, ge=1)
    """Side in pixels of a square to blank out in each image."""
    views: Literal["one", "flip", "shift"] = "one"
    """Evaluate each image once, averaged with its mirror image, or also shifted by a pixel."""


def make_augment(config: AugmentConfig, pack: "Pack", dtype: "torch.dtype") -> "Augment":
    """Return the augmentation for the images of `pack`; refuse one that they are too small for."""
    from thresher.data.augment import Augment

    size = pack.image_shape[:2] if pack.image_shape else (config.image_size, config.image_size)
    height, width = size
    if height is None or width is None:
        raise InvalidValueError(
            f"image_size is required: the images of {pack.name} differ in size", "", "image_size"
        )
    padding = config.crop_padding
    augment = Augment(
        mean=pack.mean.tolist(),
        std=pack.std.tolist(),
        crop_padding=min(height, width) // 8 if padding is None else padding,
        reflect=config.padding_mode == "reflect",
        crop=config.crop,
        flip=len(pack.mean) > 1 if config.flip is None else config.flip,
        alternate=config.flip_mode == "alternate",
        cutout=config.cutout or 0,
        dtype=dtype,
    )
    augment.output_size(height, width)
    return augment
