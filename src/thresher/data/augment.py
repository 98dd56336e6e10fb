"""Random crop, flip and cutout of batches, on the device where the images are.

The augmentation of a sample is a function of (seed, epoch, key of the sample): the batch, the
worker and the device do not change a bit. There is no generator and no state; random numbers are a
64-bit integer hash of those three.

There is no host synchronisation, so it can be captured in a CUDA graph; `epoch` and `seed` may be
0-d int64 tensors on the device, to be set between replays. On a GPU one kernel then does it all
(`augment_kernel`), where Triton can build one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from thresher.data.crops import ResizedCrop
from thresher.data.hashing import LOW_BITS, hash_bits, low_bits
from thresher.environment import builds_gpu_kernels
from thresher.errors import InvalidValueError


@dataclass
class Augment:
    """Augment and normalise uint8 images (n, height, width, channels) to NCHW floats.

    The result has the channels-last memory layout. Padding is black; the square of cutout is the
    mean colour (zero). Costs one gather and three passes over the result.
    """

    mean: Sequence[float]
    """Per channel, of values in [0, 1]."""
    std: Sequence[float]
    """Likewise; 0 where all training images have one value in a channel, which becomes zero."""
    crop_padding: int = 4
    """Pixels added on each side before the random crop; 0 without `crop`: no crop."""
    reflect: bool = False
    """Whether those pixels mirror the image; otherwise they are black."""
    crop: int | None = None
    """Side of the crop, such as 28; None keeps the image's size."""
    flip: bool = True
    """Mirror half of the samples horizontally."""
    alternate: bool = False
    """Mirror a sample in every second epoch instead of at random, so that two consecutive epochs
    show both views of every image (Jordan 2024, https://arxiv.org/abs/2404.00498)."""
    cutout: int = 0
    """Side of a square that is blanked at a random position; 0: none."""
    resized: ResizedCrop | None = None
    """Cut out and scale a random part of each image first; without `crop_padding` and `crop`."""
    dtype: torch.dtype = torch.float32
    _constants: dict[tuple[object, ...], dict[str, Tensor]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not len(self.mean):
            raise InvalidValueError("mean and std must have one value per channel each")
        if self.resized is not None and (self.crop is not None or self.crop_padding):
            raise InvalidValueError("crop and crop_padding have no effect on resized crops")
        for name, least in (("crop", 1), ("crop_padding", 0), ("cutout", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InvalidValueError(f"{name} must be at least {least}, got {value}", "", name)

    def __call__(
        self,
        images: Tensor,
        keys: Tensor,
        epoch: int | Tensor,
        seed: int | Tensor,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Augment images (n, height, width, channels) uint8 to (n, channels, height, width).

        `keys` (n,) come from `sample_keys`. With `rows` (n,), sample i is images[rows[i]], so that
        data resident on the device is gathered and cropped in one pass.
        """
        if self.resized is not None:
            images = self.resized.random(
                images if rows is None else images[rows], keys, epoch, seed
            )
            rows = None
        height, width = images.shape[1:3]
        out_h, out_w = self.output_size(height, width)
        constants = self._constants_for(images.device, height, width)
        if self._has_kernel(images) and isinstance(epoch, Tensor) and isinstance(seed, Tensor):
            from thresher.data.augment_kernel import Cut, augment_by_kernel

            padding, reflect = self.crop_padding, self.reflect
            cut = Cut((out_h, out_w), padding, reflect, self.flip, self.alternate, self.cutout)
            normal = constants["mean"], constants["scale"]
            made = augment_by_kernel(images, rows, (keys, epoch, seed), cut, normal)
            return made.permute(0, 3, 1, 2)
        bits = hash_bits(keys, epoch, seed)
        # 24 bits each for the crop's row and column, one for the flip.
        draws = low_bits(bits[:, None] >> constants["shifts"]) * constants["choices"] >> LOW_BITS
        source = draws[:, :, None] + constants["base"]
        if self.flip:
            mirrored = (bits >> 2 * LOW_BITS) & 1
            if self.alternate:
                mirrored = (hash_bits(keys, 0, seed, stream=2) + epoch) & 1
            source = source + mirrored[:, None, None] * constants["mirror"]
        if self.reflect:
            source = source.abs()
            source = constants["limit"] - (constants["limit"] - source).abs()
        inside = torch.minimum(source.clamp(min=0), constants["limit"])
        if rows is None:
            rows = torch.arange(len(images), device=images.device)
        ys, xs = inside[:, 0, :out_h, None], inside[:, 1, None, :out_w]
        pixels = images[rows[:, None, None], ys, xs]
        if self.crop_padding and not self.reflect:
            real = inside == source
            pixels *= (real[:, 0, :out_h, None] & real[:, 1, None, :out_w])[..., None]
        result = self._normalised(pixels, constants)
        if self.cutout:
            bits = hash_bits(keys, epoch, seed, stream=1)
            centre = low_bits(bits[:, None] >> constants["shifts"]) * constants["sides"] >> LOW_BITS
            offset = constants["pixels"] - (centre - self.cutout // 2)[:, :, None]
            outside = (offset < 0) | (offset >= self.cutout)
            result *= (outside[:, 0, :out_h, None] | outside[:, 1, None, :out_w])[..., None]
        return result.permute(0, 3, 1, 2)

    def _has_kernel(self, images: Tensor) -> bool:
        return (
            images.is_cuda
            and images.is_contiguous()
            and self.dtype == torch.float32
            and builds_gpu_kernels()
        )

    def evaluate(self, images: Tensor) -> Tensor:
        """Return the normalised centre crop, for evaluation and features."""
        if self.resized is not None:
            images = self.resized.centre(images)
        height, width = images.shape[1:3]
        out_h, out_w = self.output_size(height, width)
        top, left = (height - out_h) // 2, (width - out_w) // 2
        images = images[:, top : top + out_h, left : left + out_w]
        constants = self._constants_for(images.device, height, width)
        return self._normalised(images, constants).permute(0, 3, 1, 2)

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width of the result for images of this size."""
        if self.resized is not None:
            return self.resized.size, self.resized.size
        if self.crop is None:
            return height, width
        if self.crop > min(height, width):
            raise InvalidValueError(
                f"crop must be at most {min(height, width)}, the size of the images "
                f"({height}×{width}), got {self.crop}",
                parameter="crop",
            )
        return self.crop, self.crop

    def _normalised(self, pixels: Tensor, constants: dict[str, Tensor]) -> Tensor:
        # Two kernels that round once each: a fused multiply-add would differ between devices.
        return torch.sub(pixels, constants["mean"]).mul_(constants["scale"])

    def _constants_for(self, device: torch.device, height: int, width: int) -> dict[str, Tensor]:
        """Return constants on the device, made once per device and image size."""
        name = (device, height, width, self.dtype)
        if name in self._constants:
            return self._constants[name]
        sides = self.output_size(height, width)
        longest = max(sides)
        pixels = torch.arange(longest)
        mirror = torch.zeros(2, longest, dtype=torch.int64)
        mirror[1, : sides[1]] = sides[1] - 1 - 2 * pixels[: sides[1]]
        padding = 2 * self.crop_padding
        std = torch.tensor([value or 1.0 for value in self.std], dtype=torch.float64)
        choices = (height + padding - sides[0] + 1, width + padding - sides[1] + 1)
        numbers = {
            "shifts": torch.tensor([0, LOW_BITS]),
            "choices": torch.tensor(choices),
            "base": (pixels - self.crop_padding)[None].repeat(2, 1),
            "mirror": mirror,
            "limit": torch.tensor([[height - 1], [width - 1]]),
            "sides": torch.tensor(sides),
            "pixels": pixels,
            "mean": (torch.tensor(self.mean, dtype=torch.float64) * 255).to(self.dtype),
            "scale": (1 / (std * 255)).to(self.dtype),
        }
        self._constants[name] = {key: value.to(device) for key, value in numbers.items()}
        return self._constants[name]
