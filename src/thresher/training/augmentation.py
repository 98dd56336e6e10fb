"""The augmentation of a run's images."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from thresher.errors import InvalidValueError
from thresher.options import Bounds, option

if TYPE_CHECKING:
    import torch

    from thresher.data.augment import Augment
    from thresher.data.crops import ResizedCrop
    from thresher.data.pack import Pack

LARGE = 96
"""Short side in pixels from which images are augmented as ImageNet is."""
Kind = Literal["imagenet", "cifar", "none"]


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """Size and augmentation of the images."""

    augment: Literal["auto", "imagenet", "cifar", "none"] = "auto"
    """imagenet: a random-resized crop, and the centre crop in evaluation. cifar: a random crop with
    padding. Both mirror color images. auto: imagenet for images of different sizes or of at least
    96 pixels."""
    image_size: int | None = option(None, ge=1)
    """Side in pixels that images of different sizes are scaled to."""
    crop_area: float = option(0.08, gt=0, le=1)
    """Smallest share of an image's area in a random-resized crop."""
    crop_ratio: float = option(4 / 3, ge=1)
    """Largest ratio of the sides of a random-resized crop, before it is scaled to a square."""
    crop: int | None = option(None, ge=1)
    """Side of the random crop in pixels; by default that of the image."""
    crop_padding: int | None = option(None, ge=0)
    """Pixels of padding around the random crop; by default an eighth of the side; 0: none."""
    flip: bool | None = None
    """Mirror half of the images; by default only color images."""
    flip_mode: Literal["random", "alternate"] = option("random", only_with={"flip": (None, True)})
    """Mirror each image at random, or in every second epoch."""
    padding_mode: Literal["black", "reflect"] = option(
        "black", only_with={"crop_padding": Bounds(gt=0)}
    )
    """What `crop_padding` adds around an image."""
    cutout: int | None = option(None, ge=1)
    """Side in pixels of a square to blank out in each image."""
    decoder: Literal["auto", "cpu", "gpu"] = "auto"
    """What decodes images that are cropped and scaled anew in every epoch: the CPU, or the GPU with
    nvJPEG (needs torchvision and triton). Pixels differ a little between the two. auto: the GPU
    where that is possible."""
    views: Literal["one", "flip", "shift"] = "one"
    """Evaluate each image once, averaged with its mirror image, or also shifted by a pixel."""


def augment_kind(config: AugmentConfig, pack: "Pack") -> Kind:
    """Return the kind of augmentation; auto depends on the pack and on the other options."""
    padded = config.crop is not None or config.crop_padding is not None
    if config.augment == "imagenet" and padded:
        raise InvalidValueError(
            "`crop` and `crop_padding` do not work with augment imagenet",
            "use `image_size`, `crop_area` and `crop_ratio`, or augment cifar",
        )
    if config.augment != "auto":
        return config.augment
    large = pack.image_shape is None or min(pack.image_shape[:2]) >= LARGE
    return "imagenet" if large and not padded else "cifar"


def resized_crop(config: AugmentConfig, pack: "Pack") -> "ResizedCrop | None":
    """Return the random-resized crop of the images of `pack`; None for the other kinds."""
    from thresher.data.crops import ResizedCrop

    if augment_kind(config, pack) != "imagenet":
        return None
    size = config.image_size or min(image_sides(config, pack))
    return ResizedCrop(size, config.crop_area, config.crop_ratio)


def make_augment(config: AugmentConfig, pack: "Pack", dtype: "torch.dtype") -> "Augment":
    """Return the augmentation for the images of `pack`; refuse one that they are too small for.

    Encoded images are cropped when they are decoded, raw images here.
    """
    from thresher.data.augment import Augment

    height, width = image_sides(config, pack)
    kind = augment_kind(config, pack)
    if kind != "imagenet":
        _check_used(config, f"the images of {pack.name}", kind, (height, width))
    padding = config.crop_padding
    if padding is None:
        padding = min(height, width) // 8 if kind == "cifar" else 0
    colour = len(pack.mean) > 1 and kind != "none"
    augment = Augment(
        mean=pack.mean.tolist(),
        std=pack.std.tolist(),
        crop_padding=padding,
        reflect=config.padding_mode == "reflect",
        crop=config.crop,
        flip=colour if config.flip is None else config.flip,
        alternate=config.flip_mode == "alternate",
        cutout=config.cutout or 0,
        resized=None if pack.image_shape is None else resized_crop(config, pack),
        dtype=dtype,
    )
    augment.output_size(height, width)
    return augment


def _check_used(config: AugmentConfig, images: str, kind: Kind, sides: tuple[int, int]) -> None:
    """Refuse options that have no effect where images are not cropped and scaled."""
    if config.image_size is not None and sides != (config.image_size, config.image_size):
        raise InvalidValueError(
            f"image_size {config.image_size} has no effect with augment {kind}: {images} all have "
            f"{sides[0]}×{sides[1]} pixels",
            "use augment imagenet, or pack them with `resize`",
            "image_size",
        )
    for name in ("crop_area", "crop_ratio"):
        if getattr(config, name) != getattr(AugmentConfig, name):
            what = f"{name} has no effect on {images} with augment {kind}"
            raise InvalidValueError(what, "use augment imagenet", name)


def image_sides(config: AugmentConfig, pack: "Pack") -> tuple[int, int]:
    """Return height and width of the images of `pack`, if encoded as they are decoded."""
    if pack.image_shape is not None:
        return pack.image_shape[0], pack.image_shape[1]
    if config.image_size is None:
        raise InvalidValueError(
            f"image_size is required: the images of {pack.name} differ in size", "", "image_size"
        )
    return config.image_size, config.image_size
