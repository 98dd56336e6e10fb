"""How many kernels should cuDNN try for each convolution? Time to find them against time of a step.

    python -m benchmarks.convolution_search --out benchmarks/results

For each limit, a process of its own captures the forward and backward pass of networks on random
images in bf16 and replays it. torch tries up to ten kernels by default; 0 here: it takes the one
that cuDNN recommends, and tries none.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.machine import page, publish, table

LIMITS = (10, 3, 0)
NETWORKS = (
    *(("resnet18", batch) for batch in (256, 2048, 6272, 10368)),
    ("resnet101", 256),
)
SIDE = 28


def captured_step(name: str, batch: int) -> dict[str, float]:
    """Return the seconds until a step is captured, and the milliseconds that it takes."""
    import torch

    from benchmarks.batch_norm import captured, milliseconds
    from thresher.models import registry
    from thresher.training.step import Objective

    model = registry.build(name, 10).cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    objective = Objective(model.train(), 0.0, False, alone=True)
    x = torch.randn(batch, 3, SIDE, SIDE, device="cuda")
    x = x.contiguous(memory_format=torch.channels_last)
    labels = torch.arange(batch, device="cuda") % 10

    def step() -> None:
        objective.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss, *_ = objective(x, labels)
        loss.backward()

    torch.cuda.synchronize()
    begun = time.perf_counter()
    graph = captured(step)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begun
    milliseconds(graph, 20)
    return {"seconds": seconds, "ms": min(milliseconds(graph, 50) for _ in range(3))}


def captured_steps(limit: int) -> list[dict[str, float]]:
    """Measure all networks; what was found is kept until the process ends."""
    import torch

    torch.backends.cudnn.benchmark = bool(limit)
    if limit:
        torch.backends.cudnn.benchmark_limit = limit
    return [captured_step(*network) for network in NETWORKS]


def in_process(limit: int) -> list[dict[str, float]]:
    """Measure in a new process."""
    command = [sys.executable, "-m", "benchmarks.convolution_search", "--one", str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    measured: list[dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", type=int, metavar="LIMIT")
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    if flags.one is not None:
        print(json.dumps(captured_steps(flags.one)))
        return
    import torch

    if not torch.cuda.is_available():
        print("needs a GPU")
        return
    in_process(0)  # compiles our kernels
    measured = [in_process(limit) for limit in LIMITS]
    rows = []
    for (name, batch), row in zip(NETWORKS, zip(*measured, strict=True), strict=True):
        cells = [f"{one['seconds']:.2f} s, {one['ms']:.3f} ms" for one in row]
        rows.append((f"{name}, batch {batch:,}, {SIDE}×{SIDE}", *cells))
    lines = table(("network", *map(str, LIMITS)), rows)
    lines = ["Seconds to capture a step, and its milliseconds, by kernels tried.", "", *lines]
    publish(page("Kernels that cuDNN tries for a convolution", lines), flags.out)


if __name__ == "__main__":
    main()
