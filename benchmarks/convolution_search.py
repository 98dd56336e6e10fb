"""How many kernels should cuDNN try for each convolution? Time to find them against time of a step.

    python -m benchmarks.convolution_search --out benchmarks/results

For each limit and batch size, a process of its own captures the forward and backward pass of a
network on random images in bf16 and replays it. torch tries ten kernels by default; 0 are all.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.machine import markdown

LIMITS = (10, 5, 3, 2, 1)
NETWORKS = (("resnet18", 256), ("resnet18", 6272), ("resnet101", 256))
SIDE = 28


def captured_step(name: str, batch: int, limit: int) -> dict[str, float]:
    """Return the seconds until a step is captured, and the milliseconds that it takes."""
    import torch

    from benchmarks.batch_norm import captured, milliseconds
    from thresher.models import registry
    from thresher.training.step import Objective

    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.benchmark_limit = limit
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


def in_process(name: str, batch: int, limit: int) -> dict[str, float]:
    """Measure in a new process: what was found is kept until the process ends."""
    command = [sys.executable, "-m", "benchmarks.convolution_search", "--one", name]
    words = [*command, str(batch), str(limit)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=3, metavar=("NETWORK", "BATCH", "LIMIT"))
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    if flags.one is not None:
        name, batch, limit = flags.one
        print(json.dumps(captured_step(name, int(batch), int(limit))))
        return
    import torch

    if not torch.cuda.is_available():
        print("needs a GPU")
        return
    lines = ["# Kernels that cuDNN tries for a convolution", "", markdown(), ""]
    lines += ["| network | tried | seconds to capture | step, ms |", "|---|---|---|---|"]
    for name, batch in NETWORKS:
        in_process(name, batch, LIMITS[0])  # compiles our kernels
        for limit in LIMITS:
            found = in_process(name, batch, limit)
            what = f"{name}, batch {batch:,}, {SIDE}×{SIDE}"
            lines.append(f"| {what} | {limit} | {found['seconds']:.2f} | {found['ms']:.3f} |")
    text = "\n".join(lines) + "\n"
    print(text)
    if flags.out:
        (flags.out / "convolution_search.md").write_text(text)


if __name__ == "__main__":
    main()
