"""Batch norm with ReLU on a GPU: our kernels, torch's operations and torch.compile, in one run.

    python -m benchmarks.batch_norm --out benchmarks/results

Layers of ResNet-18 on images of 28×28 and of ResNet-50 at 224×224, bf16, channels last, forward and
backward, replayed in a CUDA graph. Then steps of whole networks on random images, captured as
well. Numbers are speeds as ratios to torch's operations; the ways take turns.
"""

import argparse
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.machine import page, publish, table
from thresher.models import batch_norm, registry
from thresher.models.batch_norm import normalise
from thresher.models.kernel_use import in_captured_steps

LAYERS = (
    (256, 64, 14, 14),
    (256, 512, 1, 1),
    (256, 256, 2, 2),
    (256, 128, 4, 4),
    (1024, 128, 4, 4),
    (6272, 64, 7, 7),
    (64, 256, 56, 56),
    (64, 1024, 14, 14),
)
NETWORKS = (
    ("resnet18", 256, 28),
    ("resnet18", 1024, 28),
    ("resnet18", 6272, 28),
    ("resnet20", 256, 32),
    ("resnet101", 256, 28),
    ("resnet50", 256, 224),
    ("fast-cifar", 2000, 32),
)
FUSES = batch_norm._fuses


def use_kernels(wanted: bool) -> None:
    batch_norm._fuses = FUSES if wanted else (lambda *inputs: False)  # type: ignore[assignment]


def captured(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Return a graph that repeats `work`; what `work` refers to must live as long as the graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with in_captured_steps():
        with torch.cuda.stream(stream):
            for _ in range(3):
                work()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
    return graph


def milliseconds(graph: torch.cuda.CUDAGraph, repeats: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / repeats


def compare(steps: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the median milliseconds of each way; they take turns."""
    graphs = {}
    for way, step in steps.items():
        use_kernels(way != "torch")
        graphs[way] = captured(step)
    times: dict[str, list[float]] = {way: [] for way in graphs}
    for _ in range(6):
        for way, graph in graphs.items():
            times[way].append(milliseconds(graph, repeats))
    return {way: statistics.median(each[1:]) for way, each in times.items()}


def layer_times(shape: tuple[int, ...], compiles: bool) -> dict[str, float]:
    def random() -> Tensor:
        x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        return x.contiguous(memory_format=torch.channels_last).requires_grad_()

    def step(way: Callable[..., Tensor], layer: nn.Module) -> None:
        torch.autograd.backward(way(layer, x, added, relu), slope)

    x, added, slope = random(), random(), random().detach()
    relu = nn.ReLU(inplace=True)
    steps = {}
    for way in ("torch", "ours", "compiled")[: 3 if compiles else 2]:
        layer = nn.BatchNorm2d(shape[1]).cuda().train()
        function = torch.compile(normalise) if way == "compiled" else normalise
        steps[way] = partial(step, function, layer)
    return compare(steps, 50)


def network_times(name: str, batch: int, side: int) -> dict[str, float]:
    x = torch.randn(batch, 3, side, side, device="cuda")
    x = x.contiguous(memory_format=torch.channels_last)
    labels = torch.arange(batch, device="cuda") % 10

    def step(model: nn.Module) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = functional.cross_entropy(model(x), labels)
        loss.backward()

    steps = {}
    for way in ("torch", "ours"):
        model = registry.build(name, 10).cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        steps[way] = partial(step, model.train())
    return compare(steps, 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compile", action="store_true", help="also torch.compile of a layer")
    parser.add_argument("--whole-rows", type=int, help="most rows of a layer in one kernel")
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    if not torch.cuda.is_available():
        print("needs a GPU")
        return
    if flags.whole_rows is not None:
        from thresher.models import norm_kernel

        norm_kernel.WHOLE_ROWS = flags.whole_rows
    ways = ("ours", "compiled") if flags.compile else ("ours",)
    measured = {"×".join(map(str, shape)): layer_times(shape, flags.compile) for shape in LAYERS}
    measured |= {
        f"{name}, batch {batch}, {side}×{side}": network_times(name, batch, side)
        for name, batch, side in NETWORKS
    }
    rows = []
    for what, times in measured.items():
        ratios = [f"{times['torch'] / times[way]:.2f}" if way in times else "" for way in ways]
        rows.append((what, f"{times['torch']:.3f}", *ratios))
    lines = table(("layer or network", "torch, ms", *ways), rows)
    lines = ["Speed as a ratio to torch's operations.", "", *lines]
    publish(page("Batch norm with ReLU on a GPU", lines), flags.out)


if __name__ == "__main__":
    main()
