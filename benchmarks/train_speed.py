"""Our training loop against a bare one, in one run, as ratios.

    python benchmarks/train_speed.py --device cuda      # whole steps in CUDA graphs
    python benchmarks/train_speed.py --device cpu       # the same eager work

The bare loop on a GPU is a captured step on random data that is already there: no gather, no
augmentation, no rates, no record. Ours reads a pack, shuffles, augments, schedules and records.
On a CPU both do the same work (gather, augment, forward, backward, update), in processor seconds.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from benchmarks.machine import describe, publish_json  # noqa: E402
from thresher.data.augment import Augment  # noqa: E402
from thresher.data.hashing import sample_keys  # noqa: E402
from thresher.data.pack import Pack  # noqa: E402
from thresher.data.sources.base import Block  # noqa: E402
from thresher.data.write import WriteOptions, write_pack  # noqa: E402
from thresher.models import registry  # noqa: E402
from thresher.training import execution  # noqa: E402
from thresher.training.config import TrainConfig  # noqa: E402
from thresher.training.result import RunResult  # noqa: E402
from thresher.training.train import train  # noqa: E402

CLASSES = 10
execution.SEARCHED = 0  # cuDNN searches for the fastest kernels, as in a run of many epochs


class Noise:
    """Random images in the shape of CIFAR-10; speed does not depend on what they show."""

    name = "noise"
    image_shape: tuple[int, int, int] | None = (32, 32, 3)

    def __init__(self, count: int) -> None:
        self.count = count
        self.classes = [str(n) for n in range(CLASSES)]

    def key(self) -> str:
        return f"noise {self.count}"

    def chunks(self) -> list[str]:
        return ["train", "test"]

    def read(self, chunk: str) -> Iterator[Block]:
        count = self.count if chunk == "train" else 100
        random = np.random.default_rng(count)
        images = random.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        labels = random.integers(0, CLASSES, count)
        ids = [f"{chunk}-{n}" for n in range(count)]
        yield Block(ids, labels, [chunk] * count, images)


def bare_gpu(model_name: str, side: int, batch: int, compiled: bool, seconds: float) -> float:
    """Images per second of a captured step: forward, loss, backward, fused SGD; bf16, NHWC."""
    device = torch.device("cuda")
    torch.backends.cudnn.benchmark = True
    model: Any = registry.build(model_name, CLASSES).to(device)
    model = model.to(memory_format=torch.channels_last).train()
    run = torch.compile(model) if compiled else model
    rate = torch.tensor(0.1, device=device)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4, fused=True
    )
    images = torch.randn(batch, 3, side, side, device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(0, CLASSES, (batch,), device=device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(run(images).float(), labels)
        loss.backward()
        optimizer.step()

    side_stream = torch.cuda.Stream()
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):
        for _ in range(4):
            step()
    torch.cuda.current_stream().wait_stream(side_stream)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        step()
    for _ in range(5):
        graph.replay()
    torch.cuda.synchronize()
    steps, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        for _ in range(20):
            graph.replay()
        torch.cuda.synchronize()
        steps += 20
    return steps * batch / (time.perf_counter() - begun)


def bare_cpu(pack: Pack, model_name: str, batch: int, count: int, epochs: int) -> None:
    """A plain eager loop over the same samples, with the same augmentation."""
    torch.manual_seed(0)
    positions = pack.indices("train")[:count]
    images = torch.from_numpy(pack.images(positions))
    labels = torch.from_numpy(pack.labels[positions])
    keys = torch.from_numpy(sample_keys(pack.ids.take(positions).to_pylist()))
    augment = Augment(mean=pack.mean.tolist(), std=pack.std.tolist())
    model = registry.build(model_name, len(pack.classes)).train()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, fused=True
    )
    for epoch in range(epochs):
        order = torch.randperm(count)
        for rows in order.split(batch):
            optimizer.zero_grad(set_to_none=True)
            x = augment(images, keys[rows], epoch, 0, rows=rows)
            loss = F.cross_entropy(model(x), labels[rows])
            loss.backward()
            optimizer.step()
            loss.item()


def ours(pack: Path, epochs: float, **options: Any) -> RunResult:
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            data=str(pack), out=f"{folder}/run", epochs=epochs, evaluate_every=0, **options
        )
        return train(config, quiet=True)


def on_gpu(pack: Path, samples: int, quick: bool) -> list[dict[str, Any]]:
    cases = [
        ("resnet18", 28, 256, False),
        ("resnet18", 28, 2048, False),
        ("resnet18", 28, 6272, False),
        ("resnet18-cifar", 32, 2048, True),
    ]
    seconds = 1.0 if quick else 4.0
    rows = []
    for model, side, batch, compiled in cases:
        bare = [bare_gpu(model, side, batch, compiled, seconds)]
        epochs = max(2, round(seconds * bare[0] / samples))
        common: dict[str, Any] = {
            "model": model,
            "batch_size": batch,
            "crop": side if side != 32 else 0,
            "precision": "bf16",
            "compile": compiled,
            "device": "cuda",
        }
        mine = [ours(pack, epochs, **common).images_per_s or 0.0]
        if not quick:
            bare.append(bare_gpu(model, side, batch, compiled, seconds))
            mine.append(ours(pack, epochs, **common).images_per_s or 0.0)
        memory = torch.cuda.memory_allocated() / 2**20
        rows.append(_row(f"{model} {side}×{side} batch {batch}", bare, mine, memory_mb=memory))
    eager = ours(pack, 1, model="resnet18", batch_size=256, crop=28, precision="bf16", graph="off")
    rows.append({"case": "resnet18 28×28 batch 256, no graph", "ours": eager.images_per_s})
    return rows


def on_cpu(pack: Path, quick: bool) -> list[dict[str, Any]]:
    opened = Pack.open(pack)
    count = len(opened.indices("train"))
    rows = []
    for model, batch in (("tiny", 50),) if quick else (("tiny", 50), ("resnet20", 50)):
        bare, mine = [], []
        for _ in range(3 if quick else 5):
            bare.append(count / _epoch_cost(partial(bare_cpu, opened, model, batch, count)))
            run = partial(_ours_cpu, pack, model, batch)
            mine.append(count / _epoch_cost(run))
        rows.append(_row(f"{model} 32×32 batch {batch}", bare, mine))
    return rows


def _ours_cpu(pack: Path, model: str, batch: int, epochs: int) -> None:
    # A constant rate, so that the first epoch of two is the first of one.
    ours(pack, epochs, model=model, batch_size=batch, device="cpu", schedule="constant")


def _epoch_cost(run: Callable[[int], None]) -> float:
    """CPU seconds of one epoch: three of them less one, so that setting up and the last evaluation
    drop out. Processor time, not the clock's: other processes do not count."""
    spent = []
    run(1)  # what is made on first use (kernels, threads, imports) is not the loop's
    for epochs in (1, 3):
        begun = time.process_time()
        run(epochs)
        spent.append(time.process_time() - begun)
    return (spent[1] - spent[0]) / 2


def check_graph(pack: Path) -> dict[str, float | None]:
    """The captured step must take the eager step's path, to rounding."""
    common: dict[str, Any] = {"model": "resnet20", "batch_size": 512, "device": "cuda", "lr": 0.02}
    common["precision"] = "fp32"
    taken = {graph: ours(pack, 0.5, graph=graph, **common) for graph in ("on", "off")}
    return {graph: result.train_loss for graph, result in taken.items()}


def _row(case: str, bare: list[float], mine: list[float], **more: float) -> dict[str, Any]:
    ratio = statistics.median(m / b for m, b in zip(mine, bare, strict=True))
    return {
        "case": case,
        "bare": statistics.median(bare),
        "ours": statistics.median(mine),
        "ratio": ratio,
        "runs": len(bare),
        **more,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--quick", action="store_true", help="shorter, one repetition")
    parser.add_argument("--out", type=Path, help="write the JSON here")
    arguments = parser.parse_args()
    samples = 50_000 if arguments.device == "cuda" else 300 if arguments.quick else 2_000
    with tempfile.TemporaryDirectory() as folder:
        pack = Path(folder) / "noise"
        write_pack(Noise(samples), pack, WriteOptions(processes=1))
        result: dict[str, Any] = {"machine": describe(("torch", "numpy", "thresher"))}
        if arguments.device == "cuda":
            result["machine"]["gpu"] = torch.cuda.get_device_name()
            result["graph_and_eager_train_loss"] = check_graph(pack)
            result["rows"] = on_gpu(pack, samples, arguments.quick)
        else:
            result["machine"]["threads"] = torch.get_num_threads()
            result["rows"] = on_cpu(pack, arguments.quick)
    for row in result["rows"]:
        print(
            "  ".join(f"{k} {v:,.3f}" if isinstance(v, float) else f"{v}" for k, v in row.items())
        )
    publish_json(result, arguments.out)


if __name__ == "__main__":
    main()
