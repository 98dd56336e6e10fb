"""Random-resized crops, the augmentation of ImageNet training, and the centre crop beside them.

A crop is a box (top, left, height, width) in pixels of the original image, scaled to a square.
Boxes are a function of (seed, epoch, key of the sample, size of the image): the batch, the worker
and the device do not change them. Whole batches of pixels are resampled on the device; images that
are decoded one by one are resampled where they are decoded (`images.decode`), to the same pixels
within rounding.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from thresher.data.hashing import LOW_BITS, hash_bits, low_bits

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
        """Side that the short side is scaled to before the centre crop of evaluation."""
        return round(self.size * _MARGIN)

    def random_boxes(
        self, keys: Tensor, epoch: int | Tensor, seed: int | Tensor, sizes: Tensor
    ) -> Tensor:
        """Return the boxes of training, (n, 4) float64 whole numbers.

        `keys` (n,) come from `sample_keys`, `sizes` (n, 2) are heights and widths.
        """
        height, width = sizes[:, :1].double(), sizes[:, 1:].double()
        streams = torch.arange(_FIRST_STREAM, _FIRST_STREAM + ATTEMPTS, device=keys.device)
        bits = hash_bits(keys[:, None], epoch, seed, streams)
        share = self.area + (1 - self.area) * _fraction(bits)
        ratio = torch.exp((2 * _fraction(bits >> LOW_BITS) - 1) * math.log(self.ratio))
        area = share * height * width
        wide, high = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
        fits = (wide >= 1) & (high >= 1) & (wide <= width) & (high <= height)
        # The whole image, cut to the largest or smallest ratio, is the last choice.
        widest, highest = (height * self.ratio).round(), (width * self.ratio).round()
        wide = torch.cat([wide, torch.minimum(width, widest.clamp(min=1))], 1)
        high = torch.cat([high, torch.minimum(height, highest.clamp(min=1))], 1)
        fits = torch.cat([fits, torch.ones_like(fits[:, :1])], 1)
        first = fits.to(torch.int8).argmax(1, keepdim=True)
        wide, high = wide.gather(1, first), high.gather(1, first)
        bits = hash_bits(keys[:, None], epoch, seed, _FIRST_STREAM + ATTEMPTS)
        top = (_fraction(bits) * (height - high + 1)).floor()
        left = (_fraction(bits >> LOW_BITS) * (width - wide + 1)).floor()
        centred = first == ATTEMPTS
        top = torch.where(centred, ((height - high) / 2).floor(), top)
        left = torch.where(centred, ((width - wide) / 2).floor(), left)
        return torch.cat([top, left, high, wide], 1)

    def centre_boxes(self, sizes: Tensor) -> Tensor:
        """Return the boxes of evaluation, (n, 4) float64.

        They are what remains of an image whose short side is scaled to 256/224 of the size and
        whose centre is cut out.
        """
        side = sizes.min(1, keepdim=True).values.double() * self.size / self.short_side
        corner = (sizes.double() - side) / 2
        return torch.cat([corner, side, side], 1)

    def random(
        self, images: Tensor, keys: Tensor, epoch: int | Tensor, seed: int | Tensor
    ) -> Tensor:
        """Return the crops of training of images (n, height, width, channels) uint8."""
        boxes = self.random_boxes(keys, epoch, seed, _sizes(images))
        return resample(images, boxes, self.size, inside=True)

    def centre(self, images: Tensor) -> Tensor:
        """Return the crops of evaluation of images (n, height, width, channels) uint8."""
        return resample(images, self.centre_boxes(_sizes(images)), self.size, inside=False)


def resample(images: Tensor, boxes: Tensor, size: int, inside: bool) -> Tensor:
    """Scale the box of each image to (n, size, size, channels) uint8.

    Bilinear with antialiasing, as Pillow does it: a result is the mean of the pixels around it,
    weighted by a triangle as wide as two results. With `inside`, only pixels of the box count.
    """
    n, height, width, channels = images.shape
    with torch.autocast(images.device.type, enabled=False):
        down = _weights(boxes[:, 0], boxes[:, 2], size, height, inside)
        across = _weights(boxes[:, 1], boxes[:, 3], size, width, inside)
        rows = torch.bmm(down, images.reshape(n, height, -1).float())
        columns = rows.view(n, size, width, channels).transpose(1, 2).reshape(n, width, -1)
        result = torch.bmm(across, columns).view(n, size, size, channels).transpose(1, 2)
    return result.round_().clamp_(0, 255).to(torch.uint8)


def _weights(begin: Tensor, length: Tensor, size: int, count: int, inside: bool) -> Tensor:
    """Return the weight of each of `count` pixels in each of `size` results, (n, size, count)."""
    scale = (length / size)[:, None, None]
    results = torch.arange(size, device=begin.device, dtype=torch.float64) + 0.5
    pixels = torch.arange(count, device=begin.device, dtype=torch.float64) + 0.5
    centres = begin[:, None, None] + results[:, None] * scale
    weights = (1 - (pixels - centres).abs() / scale.clamp(min=1)).clamp_(min=0)
    if inside:
        first = begin[:, None, None]
        weights *= (pixels > first) & (pixels < first + length[:, None, None])
    return (weights / weights.sum(2, keepdim=True)).float()


def _fraction(bits: Tensor) -> Tensor:
    return low_bits(bits).double() / (1 << LOW_BITS)


def _sizes(images: Tensor) -> Tensor:
    # Filled on the device: a copy from the host cannot be captured in a graph.
    sides = [torch.full((len(images), 1), n, device=images.device) for n in images.shape[1:3]]
    return torch.cat(sides, 1)
