"""A step of ResNet-20 with torch's convolutions and with ours, on this processor, interleaved.

    python -m benchmarks.convolution --out benchmarks/results

Three ways: torch's `Conv2d` on contiguous tensors (what a plain script does), the same on
channels-last tensors, and ours on channels-last tensors. Ratios are of medians in one run.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from benchmarks.machine import page, publish, table
from thresher.models import convolution, registry

WAYS = ("torch, contiguous", "torch, channels last", "ours, channels last")


def _step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    model.zero_grad(set_to_none=True)
    functional.cross_entropy(model(x), y).backward()


def measure(batch: int, rounds: int) -> dict[str, float]:
    """Median seconds of a forward and backward pass, by way."""
    torch.manual_seed(0)
    x, y = torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))
    last = torch.channels_last
    models = {way: registry.build("resnet20", 10).train() for way in WAYS}
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    arm = convolution.ARM
    for way in WAYS[1:]:
        models[way] = models[way].to(memory_format=last)  # type: ignore[call-overload]
    for number in range(rounds + 1):
        for way in WAYS:
            convolution.ARM = arm and way == WAYS[2]
            given = x if way == WAYS[0] else x.contiguous(memory_format=last)
            begun = time.perf_counter()
            _step(models[way], given, y)
            if number:
                seconds[way].append(time.perf_counter() - begun)
    convolution.ARM = arm
    return {way: statistics.median(times) for way, times in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    found = measure(flags.batch, flags.rounds)
    base = found[WAYS[0]]
    rows = [(way, f"{base / seconds:.2f}") for way, seconds in found.items()]
    lines = table(("convolution", "speed, as a ratio to the first"), rows)
    publish(page("A training step of ResNet-20, by kind of convolution", lines), flags.out)


if __name__ == "__main__":
    main()
