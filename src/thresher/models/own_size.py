"""Images that a network takes at their own size: they must be of one size, and it must fit."""

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from thresher.data.images import read_header
from thresher.data.pack import Pack
from thresher.errors import InvalidValueError, first_line
from thresher.models.network import Preprocessing

FIX = "give `image_size`"


def at_own_size(images: Preprocessing, pack: Pack, positions: np.ndarray) -> Preprocessing:
    """Return preprocessing that does not scale the images at these positions of a pack.

    Reads the header of every file if the images are encoded.

    Raises:
        InvalidValueError: The images differ in size, or are smaller than the crop.
    """
    what = f"the model takes images that are not resized, but those of {pack.name}"
    size = pack.image_shape[:2] if pack.image_shape else None
    for position in positions if size is None else ():
        other = read_header(pack.encoded(int(position))).size
        size = size or other
        if other != size:
            raise InvalidValueError(f"{what} differ in size ({_text(size)}, {_text(other)})", FIX)
    if size is None:  # no images
        return images
    if pack.image_shape is None:
        if size[0] != size[1]:  # encoded images are read as squares
            raise InvalidValueError(f"{what} are not square ({_text(size)})", FIX)
        images = replace(images, image_size=size[0])
    if images.crop is not None and images.crop > min(size):
        raise InvalidValueError(
            f"{what} ({_text(size)}) are smaller than its crop of {images.crop}", FIX
        )
    return images if images.crop != images.image_size else replace(images, crop=None)


@torch.inference_mode()
def check_size(model: nn.Module, images: Preprocessing, pack: Pack, name: str) -> None:
    """Run a network once on a black image of the size that it will be given.

    Raises:
        InvalidValueError: The network does not take images of that size.
    """
    size = images.sides(pack)
    if size is None:
        return
    try:
        model.eval()(torch.zeros(1, len(images.mean), *size))
    except InvalidValueError:
        raise
    except (ValueError, RuntimeError) as error:
        reason = first_line(error).rstrip(".")
        raise InvalidValueError(
            f"{name} does not take images of {_text(size)} pixels ({reason})",
            "give another `image_size`" if images.image_size else FIX,
        ) from None


def _text(size: tuple[int, ...]) -> str:
    return "×".join(map(str, size))
