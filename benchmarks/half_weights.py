"""Casting the weights of a network together, beside autocast, which casts each on its own.

    python -m benchmarks.half_weights --out benchmarks/results

A pass forward and backward of whole networks on random images, bf16, replayed in a CUDA graph, with
our kernels for batch norm. The two ways take turns.
"""

import argparse
from functools import partial
from pathlib import Path

import torch

from benchmarks.batch_norm import NETWORKS, compare
from benchmarks.machine import page, publish, table
from thresher.models import registry
from thresher.training.step import Objective


def times(name: str, batch: int, side: int) -> dict[str, float]:
    """Return milliseconds by way."""
    x = torch.randn(batch, 3, side, side, device="cuda")
    x = x.contiguous(memory_format=torch.channels_last)
    labels = torch.arange(batch, device="cuda") % 10

    def step(objective: Objective) -> None:
        objective.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss, *_ = objective(x, labels)
        loss.backward()

    steps = {}
    for way, together in (("autocast", False), ("together", True)):
        model = registry.build(name, 10).cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        objective = Objective(model.train(), 0.0, False)
        objective.casts_together = together
        steps[way] = partial(step, objective)
    return compare(steps, 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    if not torch.cuda.is_available():
        print("needs a GPU")
        return
    torch.backends.cudnn.benchmark = True
    rows = []
    for name, batch, side in NETWORKS:
        found = times(name, batch, side)
        ratio = found["autocast"] / found["together"]
        what = f"{name}, batch {batch}, {side}×{side}"
        rows.append((what, f"{found['autocast']:.3f}", f"{ratio:.2f}"))
    heads = ("network", "autocast, ms", "together, speed as a ratio to it")
    publish(page("Weights cast together on a GPU", table(heads, rows)), flags.out)


if __name__ == "__main__":
    main()
