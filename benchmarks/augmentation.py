"""The augmentation of images on a GPU: one kernel beside torch's operations, in one run.

    python -m benchmarks.augmentation --out benchmarks/results

Random crops of 28×28 and flips of 50,000 resident images of 32×32, replayed in a CUDA graph. The
two ways take turns and give the same bits.
"""

import argparse
from functools import partial
from pathlib import Path

import torch

from benchmarks.batch_norm import compare
from benchmarks.machine import page, publish, table
from thresher.data.augment import Augment

BATCHES = (256, 1024, 6272)


class InOperations(Augment):
    """The same without the kernel."""

    def _has_kernel(self, images: torch.Tensor) -> bool:
        return False


def times(batch: int) -> dict[str, float]:
    """Return milliseconds by way."""
    images = torch.randint(0, 256, (50_000, 32, 32, 3), dtype=torch.uint8, device="cuda")
    rows = torch.randperm(50_000, device="cuda")[:batch]
    keys = torch.randint(2**62, (batch,), device="cuda")
    epoch, seed = torch.zeros(2, dtype=torch.int64, device="cuda")
    made = {}

    def step(way: str, augment: Augment) -> None:
        made[way] = augment(images, keys, epoch, seed, rows=rows)

    ways = {"operations": InOperations, "kernel": Augment}
    normal = ([0.49, 0.48, 0.45], [0.25, 0.24, 0.26])
    steps = {way: partial(step, way, kind(*normal, crop=28)) for way, kind in ways.items()}
    found = compare(steps, 50)
    assert torch.equal(made["kernel"], made["operations"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    if not torch.cuda.is_available():
        print("needs a GPU")
        return
    rows = []
    for batch in BATCHES:
        found = times(batch)
        ratio = found["operations"] / found["kernel"]
        rows.append((f"{batch:,}", f"{found['operations']:.3f}", f"{ratio:.2f}"))
    heads = ("batch", "torch's operations, ms", "kernel, speed as a ratio to them")
    publish(page("Augmentation on a GPU", table(heads, rows)), flags.out)


if __name__ == "__main__":
    main()
