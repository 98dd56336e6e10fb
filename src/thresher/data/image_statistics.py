"""Statistics of single images, and which images they show to be broken or odd.

Images are measured in grey, with at most `LARGEST_SIDE` pixels on the short side. Noise is found by
the correlation of neighbouring pixels, which is about zero for independent pixels and 0.5 to 0.95
for photographs and drawings.
"""

from dataclasses import dataclass, fields
from typing import Literal, get_args

import numpy as np

from thresher.data.gather import run_in_threads
from thresher.data.images import encode_png, measure
from thresher.data.pack import Pack
from thresher.progress import bar

LARGEST_SIDE = 128
LUMA = np.array([0.299, 0.587, 0.114], np.float32)
"""Weights of red, green and blue in grey, as in Pillow."""
LEAST_CONTRAST = 2.0
"""Standard deviation of the grey levels, of 255, below which an image is blank."""
LARGEST_NOISE_CORRELATION = 0.15
ODD_RATIO = 4.0
"""Factor from the median aspect or short side from which an image is odd."""
BLUR_LIMIT = 4.5
"""Deviations below the median detail from which an image is blurred."""
_BLOCK = 4096

Fault = Literal["unreadable", "blank", "noise", "blurred", "shape"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
BROKEN: tuple[Fault, ...] = ("unreadable", "blank", "noise")
"""Faults that leave nothing to learn from; the others are odd, and may be right."""


@dataclass(frozen=True)
class ImageStatistics:
    """Statistics of n images."""

    width: np.ndarray
    """(n,) int32, of the original; 0 for a file that cannot be read."""
    height: np.ndarray
    contrast: np.ndarray
    """(n,) float32, standard deviation of the grey levels 0 … 255."""
    correlation: np.ndarray
    """(n,) float32, of horizontal and vertical neighbours; 0 for a blank image."""
    pixels: np.ndarray
    """(n,) int32, number of pixels that were measured."""

    def __len__(self) -> int:
        return len(self.width)

    def take(self, rows: np.ndarray) -> "ImageStatistics":
        """Return the statistics of some images."""
        return ImageStatistics(*(getattr(self, field.name)[rows] for field in fields(self)))

    def faults(self) -> dict[Fault, np.ndarray]:
        """Return which images are unreadable, blank, noise, blurred or of an odd shape, (n,) bool.

        An image has at most one fault, the first that applies. `blurred` and `shape` compare an
        image with the median of all; `noise` is not looked for if most images look like noise.
        """
        found = {fault: np.zeros(len(self), bool) for fault in FAULTS}
        found["unreadable"] = self.width == 0
        found["blank"] = self.contrast < LEAST_CONTRAST
        typical = ~(found["unreadable"] | found["blank"])
        if typical.any():
            # For independent pixels the correlation has a deviation of √(1 / 2 pixels).
            most = np.maximum(LARGEST_NOISE_CORRELATION, 2 / np.sqrt(np.maximum(self.pixels, 1)))
            if np.median(self.correlation[typical]) > 2 * np.median(most[typical]):
                found["noise"] = self.correlation < most
            detail = np.log(np.maximum(1 - self.correlation, 1e-6))
            centre, spread = median_and_deviation(detail[typical & ~found["noise"]])
            found["blurred"] = detail < centre - BLUR_LIMIT * max(spread, 0.1)
            aspect = np.log(np.maximum(self.width, 1) / np.maximum(self.height, 1))
            side = np.log(np.maximum(np.minimum(self.width, self.height), 1))
            for value in (aspect, side):
                apart = np.abs(value - np.median(value[typical]))
                found["shape"] |= apart > np.log(ODD_RATIO)
        taken = np.zeros(len(self), bool)
        for fault in FAULTS:
            found[fault] &= ~taken
            taken |= found[fault]
        return found


def median_and_deviation(values: np.ndarray) -> tuple[float, float]:
    """Return the median and the deviation that the median distance from it implies."""
    if len(values) == 0:
        return 0.0, 0.0
    median = float(np.median(values))
    return median, 1.4826 * float(np.median(np.abs(values - median)))


def image_statistics(pack: Pack, positions: np.ndarray) -> ImageStatistics:
    """Measure the images at these positions; every encoded image is decoded, in threads."""
    table = np.zeros((5, len(positions)), np.float32)
    with bar("measuring images", len(positions), "images") as shown:
        for begin in range(0, len(positions), _BLOCK):
            rows = positions[begin : begin + _BLOCK]
            table[:, begin : begin + len(rows)] = _block(pack, rows)
            shown.advance(len(rows))
    width, height, contrast, correlation, pixels = table
    sizes = (width.astype(np.int32), height.astype(np.int32))
    return ImageStatistics(*sizes, contrast, correlation, pixels.astype(np.int32))


def _block(pack: Pack, positions: np.ndarray) -> np.ndarray:
    if pack.image_shape is not None and min(pack.image_shape[:2]) <= LARGEST_SIDE:
        height, width = pack.image_shape[:2]
        size = np.array([[width], [height]]).repeat(len(positions), axis=1)
        return np.concatenate([size, _measured(_grey(pack.images(positions)))])
    table = np.zeros((5, len(positions)), np.float32)

    def measure_rows(begin: int, end: int) -> None:
        for row in range(begin, end):
            found = measure(_file(pack, int(positions[row])), LARGEST_SIDE)
            if found is not None:
                grey, size = found
                table[:2, row] = size
                table[2:, row] = _measured(grey[None].astype(np.float32))[:, 0]

    run_in_threads(measure_rows, len(positions), least=4)
    return table


def _grey(images: np.ndarray) -> np.ndarray:
    """Return images (…, channels) in grey, float32: colours as Pillow weighs them, without alpha.

    Of channels that are no colours, it is the mean.
    """
    channels = images.shape[-1]
    if channels in (3, 4):
        return images[..., :3].astype(np.float32) @ LUMA
    return images[..., : 1 if channels == 2 else channels].mean(axis=-1, dtype=np.float32)


def _file(pack: Pack, position: int) -> bytes:
    """Return an image as a file of one or three channels: the mean of those that nobody can see."""
    if pack.image_shape is None or pack.image_shape[2] <= 4:
        return pack.shown(position)
    grey = _grey(pack.view(position))[..., None]
    return encode_png(grey.round().astype(np.uint8), fast=True)


def _measured(images: np.ndarray) -> np.ndarray:
    """Return contrast, correlation and pixels (3, n) of grey images (n, height, width)."""
    n, height, width = images.shape
    variance = images.var(axis=(1, 2))
    changes = []
    if width > 1:
        changes.append(np.square(np.diff(images, axis=2)).mean(axis=(1, 2)))
    if height > 1:
        changes.append(np.square(np.diff(images, axis=1)).mean(axis=(1, 2)))
    # Two values of variance v and correlation c differ by 2 v (1 - c) in the mean square.
    change = np.mean(changes, axis=0) if changes else np.zeros(n)
    correlation = np.where(variance > 0, 1 - change / np.maximum(2 * variance, 1e-12), 0.0)
    return np.stack([np.sqrt(variance), correlation, np.full(n, height * width)])
