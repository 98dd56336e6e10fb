"""Random-resized crops, the augmentation of ImageNet training, and the centre crop beside them.

A crop is a box (top, left, height, width) in pixels of the original image, scaled to a square.
Boxes are a function of (seed, epoch, key of the sample, size of the image): the batch, the worker
and the device do not change them. Whole batches of pixels are resampled on the device; images that
are decoded one by one are resampled where they are decoded (`images.decode`), to the same pixels
within rounding.
"""

import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thresher.data.hashing import LOW_BITS, Array, hash_bits, low_bits

if TYPE_CHECKING:
    from torch import Tensor

ATTEMPTS = 10
_FIRST_STREAM = 3
_MARGIN = 256 / 224


@dataclass(frozen=True)
class ResizedCrop:
    """Cut out a random part of an image and scale it to `size` × `size` pixels.

    As in Szegedy et al. 2015 (https://arxiv.org/abs/1409.4842): the share of the area is uniform
    in [area, 1], the logarithm of the ratio of the sides is uniform, and the position is uniform.
    A box that does not fit is drawn again, at most ten times; then the largest centred one is used.
    """

    size: int
    area: float = 0.08
    """Smallest share of the image's area."""
    ratio: float = 4 / 3
    """Largest ratio of width to height; the smallest is its inverse."""

    @property
    def short_side(self) -> int:
        """Side that the short side is scaled to before the centre crop of evaluation.

        The margin is the same on both sides, so that scaling and then cropping whole pixels, as
        `embed` does it, gives the same image.
        """
        return self.size + 2 * round(self.size * (_MARGIN - 1) / 2)

    def random_boxes(
        self, keys: Array, epoch: int | Array, seed: int | Array, sizes: Array
    ) -> Array:
        """Return the boxes of training, (n, 4) float64 whole numbers.

        `keys` (n,) come from `sample_keys`, `sizes` (n, 2) are heights and widths; both torch
        tensors or both numpy arrays, of int64.
        """
        xp = _namespace(keys)
        height, width = _double(sizes[:, :1]), _double(sizes[:, 1:])
        like = {"device": keys.device} if hasattr(keys, "device") else {}
        streams = xp.arange(_FIRST_STREAM, _FIRST_STREAM + ATTEMPTS, **like)
        bits = hash_bits(keys[:, None], epoch, seed, streams)
        share = self.area + (1 - self.area) * _fraction(bits)
        ratio = xp.exp((2 * _fraction(bits >> LOW_BITS) - 1) * math.log(self.ratio))
        area = share * height * width
        wide, high = xp.round(xp.sqrt(area * ratio)), xp.round(xp.sqrt(area / ratio))
        fits = (wide >= 1) & (high >= 1) & (wide <= width) & (high <= height)
        # The whole image, cut to the largest or smallest ratio, is the last choice.
        widest = xp.clip(xp.round(height * self.ratio), 1, None)
        highest = xp.clip(xp.round(width * self.ratio), 1, None)
        wide = xp.concatenate([wide, xp.minimum(width, widest)], axis=1)
        high = xp.concatenate([high, xp.minimum(height, highest)], axis=1)
        fits = xp.concatenate([fits, xp.ones_like(fits[:, :1])], axis=1)
        first = xp.argmax(fits * xp.ones_like(streams[:1]), axis=1, keepdims=True)
        take = getattr(xp, "take_along_dim", None) or xp.take_along_axis
        wide, high = take(wide, first, 1), take(high, first, 1)
        bits = hash_bits(keys[:, None], epoch, seed, _FIRST_STREAM + ATTEMPTS)
        top = xp.floor(_fraction(bits) * (height - high + 1))
        left = xp.floor(_fraction(bits >> LOW_BITS) * (width - wide + 1))
        centred = first == ATTEMPTS
        top = xp.where(centred, xp.floor((height - high) / 2), top)
        left = xp.where(centred, xp.floor((width - wide) / 2), left)
        return xp.concatenate([top, left, high, wide], axis=1)

    def centre_boxes(self, sizes: Array) -> Array:
        """Return the boxes of evaluation, (n, 4) float64.

        They are what remains of an image whose short side is scaled to `short_side` and
        whose centre is cut out.
        """
        xp, sizes = _namespace(sizes), _double(sizes)
        side = xp.minimum(sizes[:, :1], sizes[:, 1:]) * self.size / self.short_side
        return xp.concatenate([(sizes - side) / 2, side, side], axis=1)

    def random(
        self, images: "Tensor", keys: "Tensor", epoch: "int | Tensor", seed: "int | Tensor"
    ) -> "Tensor":
        """Return the crops of training of images (n, height, width, channels) uint8."""
        boxes = self.random_boxes(keys, epoch, seed, _sizes(images))
        return resample(images, boxes, self.size, inside=True)

    def centre(self, images: "Tensor") -> "Tensor":
        """Return the crops of evaluation of images (n, height, width, channels) uint8."""
        return resample(images, self.centre_boxes(_sizes(images)), self.size, inside=False)


def resample(images: "Tensor", boxes: "Tensor", size: int, inside: bool) -> "Tensor":
    """Scale the box of each image to (n, size, size, channels) uint8.

    Bilinear with antialiasing, as Pillow does it: a result is the mean of the pixels around it,
    weighted by a triangle as wide as two results. With `inside`, only pixels of the box count.
    """
    import torch

    n, height, width, channels = images.shape
    with torch.autocast(images.device.type, enabled=False):
        down = _weights(boxes[:, 0], boxes[:, 2], size, height, inside)
        across = _weights(boxes[:, 1], boxes[:, 3], size, width, inside)
        rows = torch.bmm(down, images.reshape(n, height, -1).float())
        columns = rows.view(n, size, width, channels).transpose(1, 2).reshape(n, width, -1)
        result = torch.bmm(across, columns).view(n, size, size, channels).transpose(1, 2)
    return result.round_().clamp_(0, 255).to(torch.uint8)


def _weights(begin: "Tensor", length: "Tensor", size: int, count: int, inside: bool) -> "Tensor":
    """Return the weight of each of `count` pixels in each of `size` results, (n, size, count)."""
    import torch

    scale = (length / size)[:, None, None]
    results = torch.arange(size, device=begin.device, dtype=torch.float64) + 0.5
    pixels = torch.arange(count, device=begin.device, dtype=torch.float64) + 0.5
    centres = begin[:, None, None] + results[:, None] * scale
    weights = (1 - (pixels - centres).abs() / scale.clamp(min=1)).clamp_(min=0)
    if inside:
        first = begin[:, None, None]
        weights *= (pixels > first) & (pixels < first + length[:, None, None])
    return (weights / weights.sum(2, keepdim=True)).float()


def _namespace(array: Array) -> Any:
    """Return torch or numpy, whichever the array belongs to."""
    return sys.modules[type(array).__module__]


def _double(array: Array) -> Array:
    return array.double() if hasattr(array, "double") else array.astype("float64")


def _fraction(bits: Array) -> Array:
    return _double(low_bits(bits)) / (1 << LOW_BITS)


def _sizes(images: "Tensor") -> "Tensor":
    import torch

    # Filled on the device: a copy from the host cannot be captured in a graph.
    sides = [torch.full((len(images), 1), n, device=images.device) for n in images.shape[1:3]]
    return torch.cat(sides, 1)
