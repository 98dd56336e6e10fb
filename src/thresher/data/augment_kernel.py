# Triton reads annotations as code: its kernels carry none.
# mypy: disable-error-code="no-untyped-def"
"""Gather, crop, flip, cut out and normalise images on a GPU in one kernel.

It gives the bits of `Augment`, whose thirty operations take longer to start than to compute.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from thresher.data.hashing import LOW_BITS, ROUNDS, SEED_STEP, STEPS, signed

_BLOCK = 1024
_EPOCH, _SEED = (tl.constexpr(signed(step)) for step in STEPS)
_CUTOUT, _ALTERNATE = (tl.constexpr(signed(2 * stream * SEED_STEP + 1)) for stream in (1, 2))
_FACTOR_0, _FACTOR_1 = (tl.constexpr(signed(factor)) for _, factor in ROUNDS)
_SHIFT_0, _SHIFT_1 = (tl.constexpr(shift) for shift, _ in ROUNDS)
_KEPT_0, _KEPT_1 = (tl.constexpr((1 << (64 - shift)) - 1) for shift, _ in ROUNDS)
_KEPT_31 = tl.constexpr((1 << 33) - 1)
_BITS, _LOW = tl.constexpr(LOW_BITS), tl.constexpr((1 << LOW_BITS) - 1)


@dataclass(frozen=True)
class Cut:
    """What is cut out of each image."""

    size: tuple[int, int]
    """Height and width of the results."""
    padding: int
    reflect: bool
    flip: bool
    alternate: bool
    cutout: int


def augment_by_kernel(
    images: Tensor, rows: Tensor | None, draw: tuple[Tensor, Tensor, Tensor], cut: Cut,
    shift_and_scale: tuple[Tensor, Tensor],
) -> Tensor:  # fmt: skip
    """Return augmented images, (n, height, width, channels) float32.

    Args:
        images: (images, height, width, channels) uint8, contiguous.
        rows: (n,) int64: the image of each result; None: all images.
        draw: Keys (n,), epoch and seed (0-d), int64 on the device.
        cut: What is cut out.
        shift_and_scale: What is subtracted and then multiplied, (channels,) float32.
    """
    keys, epoch, seed = draw
    height, width, channels = images.shape[1:]
    n, (out_h, out_w) = len(keys), cut.size
    out = torch.empty((n, out_h, out_w, channels), dtype=torch.float32, device=images.device)
    if n:
        _augment[n, triton.cdiv(out_h * out_w * channels, _BLOCK)](
            *(images, keys if rows is None else rows, keys, epoch, seed, out, *shift_and_scale),
            *(height, width, channels, out_h, out_w, cut.padding, cut.cutout, rows is not None),
            *(cut.reflect, cut.flip, cut.alternate, cut.cutout > 0, _BLOCK),
        )
    return out


@triton.jit
def _mixed(x):
    """Random bits from those that are summed up from key, epoch and seed; see `hash_bits`."""
    x = (x ^ ((x >> _SHIFT_0) & _KEPT_0)) * _FACTOR_0
    x = (x ^ ((x >> _SHIFT_1) & _KEPT_1)) * _FACTOR_1
    return x ^ ((x >> 31) & _KEPT_31)


@triton.jit
def _draw(bits, choices):
    """A number below `choices` from the lowest bits."""
    return ((bits & _LOW) * choices >> _BITS).to(tl.int32)


@triton.jit
def _inside(source, size, REFLECT: tl.constexpr):
    """The place in the image, and whether there is one."""
    if REFLECT:
        source = tl.abs(source)
        source = size - 1 - tl.abs(size - 1 - source)
    inside = tl.minimum(tl.maximum(source, 0), size - 1)
    if REFLECT:
        source = inside
    return inside, inside == source


@triton.jit
def _augment(
    images, rows, keys, epoch, seed, out, shift, scale,
    height, width, channels, out_h, out_w, padding, cutout, GATHER: tl.constexpr,
    REFLECT: tl.constexpr, FLIP: tl.constexpr, ALTERNATE: tl.constexpr, CUTOUT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """A program computes BLOCK values of one result."""
    sample = tl.program_id(0).to(tl.int64)
    image = tl.load(rows + sample) if GATHER else sample
    key, drawn = tl.load(keys + sample), tl.load(seed) * _SEED
    now = tl.load(epoch)
    bits = _mixed(key + now * _EPOCH + drawn)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    pixel, channel = at // channels, at % channels
    y, x = pixel // out_w, pixel % out_w
    top = _draw(bits, height + 2 * padding - out_h + 1) - padding
    left = _draw(bits >> _BITS, width + 2 * padding - out_w + 1) - padding
    from_x = x
    if FLIP:
        if ALTERNATE:
            mirrored = (_mixed((key + drawn) * _ALTERNATE) + now) & 1
        else:
            mirrored = (bits >> _BITS >> _BITS) & 1
        from_x = tl.where(mirrored == 1, out_w - 1 - x, x)
    in_y, real_y = _inside(top + y, height, REFLECT)
    in_x, real_x = _inside(left + from_x, width, REFLECT)
    here = at < out_h * out_w * channels
    place = ((image * height + in_y) * width + in_x) * channels + channel
    value = tl.load(images + place, here & real_y & real_x, 0).to(tl.float32)
    value = (value - tl.load(shift + channel, here, 0.0)) * tl.load(scale + channel, here, 0.0)
    if CUTOUT:
        bits = _mixed((key + now * _EPOCH + drawn) * _CUTOUT)
        down = y - (_draw(bits, out_h) - cutout // 2)
        right = x - (_draw(bits >> _BITS, out_w) - cutout // 2)
        blank = (down >= 0) & (down < cutout) & (right >= 0) & (right < cutout)
        value *= tl.where(blank, 0.0, 1.0)
    tl.store(out + sample * out_h * out_w * channels + at, value, here)
