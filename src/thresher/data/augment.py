"""Random crop, flip and cutout of whole batches, on the device where the images are.

What happens to a sample is a function of (seed, epoch, the sample's key) alone: neither the batch
it is in, nor the worker, nor the device changes a bit of it. There is no generator and no state;
the random numbers are a hash, taken in 64-bit integers, of those three.

Everything is about thirty small kernels without a host synchronisation, so a CUDA graph can hold
it; `epoch` and `seed` may then be 0-d int64 tensors on the device, to be set between replays.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from thresher.errors import ThresherError

# splitmix64 (Steele, Lea and Flood 2014): a step's increment, then two rounds of mixing.
_EPOCH_STEP = 0x9E3779B97F4A7C15
_SEED_STEP = 0xD1342543DE82EF95
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_BITS = 24
_LOW = (1 << _BITS) - 1


def sample_keys(ids: Iterable[str]) -> np.ndarray:
    """A stable 64-bit hash of each id, (n,) int64; about a microsecond each."""
    digests = (hashlib.blake2b(str(id).encode(), digest_size=8).digest() for id in ids)
    return np.frombuffer(b"".join(digests), "<i8").astype(np.int64)


def hash_bits(keys: Tensor, epoch: int | Tensor, seed: int | Tensor, stream: int = 0) -> Tensor:
    """64 random bits per key, (n,) int64: the same on every device."""
    x = keys + _times(epoch, _EPOCH_STEP) + _times(seed, _SEED_STEP)
    # Multiplied, not added: a shift along the epochs' sequence would repeat another epoch.
    if stream:
        x = x * _signed(2 * stream * _SEED_STEP + 1)
    for shift, factor in _ROUNDS:
        x = (x ^ _shifted(x, shift)) * _signed(factor)
    return x ^ _shifted(x, 31)


def _times(value: int | Tensor, factor: int) -> int | Tensor:
    if isinstance(value, Tensor):
        return value * _signed(factor)
    return _signed(int(value) * factor)


def _shifted(x: Tensor, by: int) -> Tensor:
    """A logical shift right; torch's own copies the sign."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


@dataclass
class Augment:
    """Turns uint8 images (n, height, width, channels) into normalised floats, NCHW.

    The result's memory is channels-last, as convolutions like it. Padding is black; what cutout
    takes becomes the mean colour (zero). Costs one gather and three passes over the result.
    """

    mean: Sequence[float]
    """Per channel, of values in 0 … 1."""
    std: Sequence[float]
    crop_padding: int = 4
    """Black pixels added on each side before the random crop; with 0 and no `crop`: no crop."""
    crop: int | None = None
    """Side of the crop, such as 28; None keeps the image's size."""
    flip: bool = True
    """Mirror left and right, for half of the samples."""
    cutout: int = 0
    """Side of the square that is blanked, its centre anywhere in the image; 0: none."""
    dtype: torch.dtype = torch.float32
    _constants: dict[tuple[object, ...], dict[str, Tensor]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not len(self.mean):
            raise ThresherError("mean and std must name one value per channel each")
        if self.crop_padding < 0 or self.cutout < 0 or (self.crop is not None and self.crop < 1):
            raise ThresherError(
                f"a crop of {self.crop} with padding {self.crop_padding} and cutout "
                f"{self.cutout} cannot be taken",
                "sizes are in pixels, from 0 up",
            )

    def __call__(
        self,
        images: Tensor,
        keys: Tensor,
        epoch: int | Tensor,
        seed: int | Tensor,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Augment `images`, whose samples have the (n,) int64 `keys`.

        With `rows`, (n,) int64, sample i is images[rows[i]]: data resident on the device is then
        gathered and cropped in one pass. Shapes are fixed by the arguments' shapes.
        """
        height, width = images.shape[1:3]
        out_h, out_w = self.output_size(height, width)
        known = self._known(images.device, height, width)
        bits = hash_bits(keys, epoch, seed)
        # 24 bits each for the crop's row and column, one for the flip.
        draws = ((bits[:, None] >> known["shifts"]) & _LOW) * known["choices"] >> _BITS
        where = draws[:, :, None] + known["base"]
        if self.flip:
            where = where + ((bits >> 2 * _BITS) & 1)[:, None, None] * known["mirror"]
        inside = torch.minimum(where.clamp(min=0), known["limit"])
        if rows is None:
            rows = torch.arange(len(images), device=images.device)
        ys, xs = inside[:, 0, :out_h, None], inside[:, 1, None, :out_w]
        pixels = images[rows[:, None, None], ys, xs]
        if self.crop_padding:
            real = inside == where
            pixels *= (real[:, 0, :out_h, None] & real[:, 1, None, :out_w])[..., None]
        result = self._normalised(pixels, known)
        if self.cutout:
            result *= self._uncut(keys, epoch, seed, known, out_h, out_w)
        return result.permute(0, 3, 1, 2)

    def evaluate(self, images: Tensor, rows: Tensor | None = None) -> Tensor:
        """The middle crop, normalised: what a network is tested and embedded on."""
        height, width = images.shape[1:3]
        out_h, out_w = self.output_size(height, width)
        if rows is not None:
            images = images[rows]
        top, left = (height - out_h) // 2, (width - out_w) // 2
        images = images[:, top : top + out_h, left : left + out_w]
        known = self._known(images.device, height, width)
        return self._normalised(images, known).permute(0, 3, 1, 2)

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the result for images of this size."""
        if self.crop is None:
            return height, width
        if self.crop > min(height, width):
            raise ThresherError(
                f"a crop of {self.crop} pixels is larger than the images ({height}×{width})",
                "choose a smaller crop",
            )
        return self.crop, self.crop

    def _normalised(self, pixels: Tensor, known: dict[str, Tensor]) -> Tensor:
        # Two kernels, each rounding once: a fused multiply-add would differ between devices.
        return torch.sub(pixels, known["mean"]).mul_(known["scale"])

    def _uncut(
        self,
        keys: Tensor,
        epoch: int | Tensor,
        seed: int | Tensor,
        known: dict[str, Tensor],
        out_h: int,
        out_w: int,
    ) -> Tensor:
        """False inside each sample's blanked square; (n, out_h, out_w, 1) bool."""
        bits = hash_bits(keys, epoch, seed, stream=1)
        centre = ((bits[:, None] >> known["shifts"]) & _LOW) * known["sides"] >> _BITS
        away = known["pixels"] - (centre - self.cutout // 2)[:, :, None]
        clear = (away < 0) | (away >= self.cutout)
        return (clear[:, 0, :out_h, None] | clear[:, 1, None, :out_w])[..., None]

    def _known(self, device: torch.device, height: int, width: int) -> dict[str, Tensor]:
        """Small constants on the device, made once per device and image size (before a capture)."""
        name = (device, height, width, self.dtype)
        if name not in self._constants:
            self._constants[name] = self._make_constants(device, height, width)
        return self._constants[name]

    def _make_constants(self, device: torch.device, height: int, width: int) -> dict[str, Tensor]:
        sides = self.output_size(height, width)
        longest = max(sides)
        pixels = torch.arange(longest)
        mirror = torch.zeros(2, longest, dtype=torch.int64)
        mirror[1, : sides[1]] = sides[1] - 1 - 2 * pixels[: sides[1]]
        padding = 2 * self.crop_padding
        choices = (height + padding - sides[0] + 1, width + padding - sides[1] + 1)
        numbers = {
            "shifts": torch.tensor([0, _BITS]),
            "choices": torch.tensor(choices),
            "base": (pixels - self.crop_padding)[None].repeat(2, 1),
            "mirror": mirror,
            "limit": torch.tensor([[height - 1], [width - 1]]),
            "sides": torch.tensor(sides),
            "pixels": pixels,
            "mean": (torch.tensor(self.mean, dtype=torch.float64) * 255).to(self.dtype),
            "scale": (1 / (torch.tensor(self.std, dtype=torch.float64) * 255)).to(self.dtype),
        }
        return {key: value.to(device) for key, value in numbers.items()}
