# Triton reads annotations as code: its kernels carry none.
# mypy: disable-error-code="no-untyped-def"
"""Cut boxes out of images of different sizes and scale them, in one kernel on a GPU.

The kernel computes the same as `crops.resample`, to one step of 255: there images have one size.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 256


def crop_images(images: Sequence[Tensor], boxes: Tensor, size: int, inside: bool) -> Tensor:
    """Scale the box of each image to (n, size, size, 3) uint8, bilinear and antialiased.

    Args:
        images: (3, height, width) uint8 each, contiguous, on one GPU.
        boxes: (n, 4) float64 on the CPU: top, left, height and width in pixels.
        size: Side of the result.
        inside: Use no pixel outside of the box.
    """
    device = images[0].device
    numbers = [[image.data_ptr(), *image.shape[1:]] for image in images]
    sources = _to_device(torch.tensor(numbers, dtype=torch.int64), device)
    out = torch.empty(len(images), size, size, 3, dtype=torch.uint8, device=device)
    grid = (len(images), triton.cdiv(size * size, _BLOCK))
    _crop_kernel[grid](sources, _to_device(boxes, device), out, size, inside, _BLOCK)
    return out


def _to_device(tensor: Tensor, device: torch.device) -> Tensor:
    if device.type != "cuda":
        return tensor
    return tensor.contiguous().pin_memory().to(device, non_blocking=True)


@triton.jit
def _crop_kernel(sources, boxes, out, size, inside, BLOCK: tl.constexpr):
    """A program computes BLOCK pixels of one result; all three channels at once."""
    image = tl.program_id(0).to(tl.int64)
    source = tl.load(sources + 3 * image).to(tl.pointer_type(tl.uint8))
    height = tl.load(sources + 3 * image + 1)
    width = tl.load(sources + 3 * image + 2)
    top, left = tl.load(boxes + 4 * image), tl.load(boxes + 4 * image + 1)
    high, wide = tl.load(boxes + 4 * image + 2), tl.load(boxes + 4 * image + 3)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    centre_y = top + (at // size + 0.5) * high / size
    centre_x = left + (at % size + 0.5) * wide / size
    reach_y, reach_x = tl.maximum(high / size, 1.0), tl.maximum(wide / size, 1.0)
    first_y = tl.floor(centre_y - reach_y).to(tl.int64)
    first_x = tl.floor(centre_x - reach_x).to(tl.int64)
    # Pixels that count: those of the image, or of the box.
    low_y, end_y = top * inside, tl.where(inside, top + high, height)
    low_x, end_x = left * inside, tl.where(inside, left + wide, width)
    red = tl.zeros((BLOCK,), tl.float32)
    green = tl.zeros((BLOCK,), tl.float32)
    blue = tl.zeros((BLOCK,), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    plane = height * width
    for i in range(0, (2 * reach_y).to(tl.int32) + 2):
        y = first_y + i
        weight_y = 1 - tl.abs(y + 0.5 - centre_y) / reach_y
        weight_y = tl.where((y + 0.5 > low_y) & (y + 0.5 < end_y), weight_y, 0.0)
        for j in range(0, (2 * reach_x).to(tl.int32) + 2):
            x = first_x + j
            weight_x = 1 - tl.abs(x + 0.5 - centre_x) / reach_x
            weight_x = tl.where((x + 0.5 > low_x) & (x + 0.5 < end_x), weight_x, 0.0)
            used = (weight_y > 0) & (weight_x > 0)
            weight = tl.where(used, weight_y * weight_x, 0.0).to(tl.float32)
            place = source + y * width + x
            red += weight * tl.load(place, used, 0).to(tl.float32)
            green += weight * tl.load(place + plane, used, 0).to(tl.float32)
            blue += weight * tl.load(place + 2 * plane, used, 0).to(tl.float32)
            total += weight
    here = at < size * size
    total = tl.where(here, total, 1.0)
    result = out + (image * size * size + at) * 3
    tl.store(result, tl.floor(red / total + 0.5).to(tl.uint8), here)
    tl.store(result + 1, tl.floor(green / total + 0.5).to(tl.uint8), here)
    tl.store(result + 2, tl.floor(blue / total + 0.5).to(tl.uint8), here)
