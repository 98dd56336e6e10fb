# Triton reads annotations as code: its kernels carry none.
# mypy: disable-error-code="no-untyped-def"
"""Cut boxes out of images of different sizes and scale them, in one kernel on a GPU.

The kernel computes the same as `crops.resample`, to one step of 255: there images have one size.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 256


def crop_images(sources: Tensor, boxes: Tensor, out: Tensor, inside: bool) -> None:
    """Scale the box of each image to `out`, bilinear and antialiased.

    Args:
        sources: (n, 3) int64 on the CPU: address on the GPU, height and width of each image, which
            is (3, height, width) uint8.
        boxes: (n, 4) float64 on the CPU: top, left, height and width in pixels.
        out: (n, size, size, 3) uint8 on the GPU.
        inside: Use no pixel outside of the box.
    """
    size = out.shape[1]
    on_device = [_to_device(tensor, out.device) for tensor in (sources, boxes)]
    grid = (len(out), triton.cdiv(size * size, _BLOCK))
    _crop_kernel[grid](*on_device, out, size, inside, _BLOCK)


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
    # The first pixel whose centre is within reach; there are at most ⌈2 · reach⌉ of them.
    first_y = tl.floor(centre_y - reach_y - 0.5).to(tl.int32) + 1
    first_x = tl.floor(centre_x - reach_x - 0.5).to(tl.int32) + 1
    rows, columns = tl.ceil(2 * reach_y).to(tl.int32), tl.ceil(2 * reach_x).to(tl.int32)
    # Distances to the centre in units of the reach; double precision is needed only here.
    from_y = ((first_y + 0.5 - centre_y) / reach_y).to(tl.float32)
    from_x = ((first_x + 0.5 - centre_x) / reach_x).to(tl.float32)
    step_y, step_x = (1 / reach_y).to(tl.float32), (1 / reach_x).to(tl.float32)
    # Pixels that count: those of the image, or those whose centres are in the box.
    low_y = tl.floor(top * inside - 0.5).to(tl.int32) + 1
    low_x = tl.floor(left * inside - 0.5).to(tl.int32) + 1
    end_y = tl.ceil(tl.where(inside, top + high, height) - 0.5).to(tl.int32)
    end_x = tl.ceil(tl.where(inside, left + wide, width) - 0.5).to(tl.int32)
    red = tl.zeros((BLOCK,), tl.float32)
    green = tl.zeros((BLOCK,), tl.float32)
    blue = tl.zeros((BLOCK,), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    plane = height * width
    for i in range(0, rows):
        y = first_y + i
        weight_y = 1 - tl.abs(from_y + i * step_y)
        weight_y = tl.where((y >= low_y) & (y < end_y), weight_y, 0.0)
        for j in range(0, columns):
            x = first_x + j
            weight_x = 1 - tl.abs(from_x + j * step_x)
            weight_x = tl.where((x >= low_x) & (x < end_x), weight_x, 0.0)
            used = (weight_y > 0) & (weight_x > 0)
            weight = tl.where(used, weight_y * weight_x, 0.0)
            place = source + y * width + x  # width is 64 bits wide
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
