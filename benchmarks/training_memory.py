"""Memory over several epochs of training from JPEGs of ImageNet's size: is it flat?

    python -m benchmarks.training_memory --out benchmarks/results/training_memory.svg

Counted is the anonymous memory of the process and of those that decode, without the mapped pack,
and on a GPU what its driver reports as used. Writes the figure, and the numbers as JSON beside it.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.imagenet_training import ON_GPU, made
from benchmarks.machine import describe, publish_json
from benchmarks.memory_watch import Watch
from thresher.paths import RunPaths
from thresher.report.scaling_figures import new_figure, save_figure
from thresher.training.config import TrainConfig
from thresher.training.train import train

FLAT = 1.05
"""Peak of the last epoch over that of the second, at most; the first one fills buffers."""


class GpuWatch(Watch):
    """Also looks at the memory of the GPU that is in use."""

    def __init__(self, every: float) -> None:
        super().__init__(every)
        self.on_gpu: list[tuple[float, int]] = []

    def look(self) -> None:
        super().look()
        if ON_GPU:
            free, total = torch.cuda.mem_get_info()
            self.on_gpu.append((time.perf_counter(), total - free))


def epoch_ends(run: Path) -> list[float]:
    """Return the seconds of training at the end of each epoch."""
    lines = RunPaths(run).metrics.read_text(encoding="utf-8").splitlines()
    return [line["seconds"] for line in map(json.loads, lines) if line["kind"] == "epoch"]


def peaks(seen: list[tuple[float, int]], ends: list[float]) -> list[float]:
    """Return the highest value within each epoch, in MB."""
    spans = zip([0.0, *ends[:-1]], ends, strict=True)
    return [max(size for at, size in seen if begin <= at <= end) / 1e6 for begin, end in spans]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=2000 if ON_GPU else 600)
    parser.add_argument("--copies", type=int, default=10 if ON_GPU else 2)
    parser.add_argument("--quality", type=int, default=68, help="of the JPEGs")
    parser.add_argument("--model", default="resnet50" if ON_GPU else "tiny")
    parser.add_argument("--image-size", type=int, default=224 if ON_GPU else 64)
    parser.add_argument("--batch", type=int, default=256 if ON_GPU else 64)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("build/training_memory.svg"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        pack = made(folder / "data", given)
        config = TrainConfig(
            data=str(pack.root),
            out=str(folder / "run"),
            model=given.model,
            image_size=given.image_size,
            batch_size=given.batch,
            epochs=given.epochs,
            lr=0.01,
            evaluate_every=0,
        )
        watch = GpuWatch(0.2)
        with watch:
            result = train(config, quiet=True)
        assert result.status == "finished", result.status
        ended = time.perf_counter()
        ends = epoch_ends(folder / "run")
    # Training ends shortly before the run does: its last evaluation is not drawn.
    begun = ended - result.wall_seconds
    series = {"processes": watch.seen, **({"GPU": watch.on_gpu} if ON_GPU else {})}
    lines = {name: [(at - begun, size) for at, size in seen] for name, seen in series.items()}
    by_epoch = {name: peaks(seen, ends) for name, seen in lines.items()}
    ratios = {name: values[-1] / values[1] for name, values in by_epoch.items()}
    figure = new_figure(6.4, 2.8)
    axes = figure.subplots()
    for name, seen in lines.items():
        shown = [(at, size / 1e6) for at, size in seen if 0 <= at <= ends[-1]]
        axes.plot(*zip(*shown, strict=True), label=name)
    for end in ends:
        axes.axvline(end, color="0.8", linewidth=0.8)
    axes.set(
        xlabel="seconds of training; lines: ends of epochs", ylabel="memory, MB", ylim=(0, None)
    )
    axes.legend()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    save_figure(figure, given.out)
    setting = {key: value for key, value in vars(given).items() if key != "out"}
    found = {"setting": setting, "peak_mb_by_epoch": by_epoch, "last_over_second": ratios}
    publish_json({"machine": describe(), **found}, given.out.with_suffix(".json"))
    if max(ratios.values()) > FLAT:
        raise SystemExit("memory grows")


if __name__ == "__main__":
    main()
