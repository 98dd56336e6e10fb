"""The first convolution of a ResNet on a GPU, in ways that give the same values.

    python -m benchmarks.stem_convolution --out benchmarks/results

7×7 with stride 2 on three channels, bf16, channels last, the gradient with respect to the weights
only, replayed in a CUDA graph. Tensor cores want channels in multiples of eight. Ways: torch's
convolution as it is; with zero channels added, to four or eight; and as a 4×4 convolution with
stride 1 of 2×2 blocks of pixels, whose 12 channels are as they are or filled up to 16.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.batch_norm import compare
from benchmarks.machine import page, publish, table

SHAPES = ((256, 28), (1024, 28), (6272, 28), (256, 32), (256, 224))
Way = Callable[[Tensor, Tensor], Tensor]


def plain(x: Tensor, weight: Tensor) -> Tensor:
    return functional.conv2d(x, weight, stride=2, padding=3)


def filled(x: Tensor, weight: Tensor, channels: int) -> Tensor:
    """Add channels of zeros to the image and the kernel."""
    more = (0, 0, 0, 0, 0, channels - x.shape[1])
    return plain(_last(functional.pad(x, more)), _last(functional.pad(weight, more)))


def blocks(x: Tensor, weight: Tensor, channels: int) -> Tensor:
    """Make the pixels of each 2×2 block channels of one pixel; the kernel has 4×4 of them."""
    pads = functional.pad(x, (3, 3, 3, 3))
    kernel = functional.pad(weight, (0, 1, 0, 1))
    image, kernel = functional.pixel_unshuffle(pads, 2), functional.pixel_unshuffle(kernel, 2)
    more = (0, 0, 0, 0, 0, channels - image.shape[1])
    return functional.conv2d(
        _last(functional.pad(image, more)), _last(functional.pad(kernel, more))
    )


def _last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


WAYS: dict[str, Way] = {
    "torch": plain,
    "4 channels": partial(filled, channels=4),
    "8 channels": partial(filled, channels=8),
    "blocks, 12 channels": partial(blocks, channels=12),
    "blocks, 16 channels": partial(blocks, channels=16),
}


def check(device: str) -> None:
    """All ways give the same values and gradients."""
    x = torch.randn(4, 3, 28, 28, device=device, dtype=torch.float64)
    results = []
    for way in WAYS.values():
        torch.manual_seed(0)
        weight = torch.randn(64, 3, 7, 7, dtype=torch.float64).to(device).requires_grad_()
        y = way(x, weight)
        (gradient,) = torch.autograd.grad(y.square().sum(), weight)
        results.append((y, gradient))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0])


def times(batch: int, side: int) -> dict[str, float]:
    """Return milliseconds by way."""
    x = _last(torch.randn(batch, 3, side, side, device="cuda", dtype=torch.bfloat16))

    def step(way: Way, layer: nn.Conv2d) -> None:
        y = way(x, layer.weight.to(torch.bfloat16))
        torch.autograd.backward(y, y.detach())

    steps = {
        name: partial(step, way, nn.Conv2d(3, 64, 7).cuda().to(memory_format=torch.channels_last))  # type: ignore[call-overload]
        for name, way in WAYS.items()
    }
    return compare(steps, 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    if not torch.cuda.is_available():
        check("cpu")
        print("all ways give the same values; to time them needs a GPU")
        return
    check("cuda")
    torch.backends.cudnn.benchmark = True
    _, *others = WAYS
    rows = []
    for batch, side in SHAPES:
        found = times(batch, side)
        ratios = [f"{found['torch'] / found[name]:.2f}" for name in others]
        rows.append((f"{batch} of {side}×{side}", f"{found['torch']:.3f}", *ratios))
    lines = table(("images", "torch, ms", *others), rows)
    lines = ["Speed as a ratio to torch's convolution.", "", *lines]
    publish(page("The first convolution of a ResNet on a GPU", lines), flags.out)


if __name__ == "__main__":
    main()
