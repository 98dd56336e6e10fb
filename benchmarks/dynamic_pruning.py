"""Does pruning while training save time? Seconds of a run against its share of the samples.

    python -m benchmarks.dynamic_pruning --device cuda --out benchmarks/results/dynamic_pruning.json
    python -m benchmarks.dynamic_pruning --device cpu

Full, InfoBatch and random pruning in turn, several rounds. The ratio is the training time over
(time of the full run × share of the samples that the pruned run saw): 1 is what pruning can save at
best, since choosing samples costs something too. `--data noise` needs no data set: random images.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.train_speed import Noise
from thresher.data.write import write_pack
from thresher.paths import write_json
from thresher.training.config import TrainConfig
from thresher.training.train import train

PRUNERS = (None, "infobatch:0.5", "random:0.3")
ON = {
    "cuda": {"model": "resnet18-cifar", "batch_size": 512, "precision": "bf16"},
    "cpu": {"model": "tiny", "batch_size": 64, "threads": 1},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=sorted(ON), default="cpu")
    parser.add_argument("--data", default="digits", help="a pack, or noise: 50,000 random images")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = options.data
        if data == "noise":
            data = str(write_pack(Noise(50_000), f"{folder}/noise").root)
        measure(data, options, folder)


def measure(data: str, options: argparse.Namespace, folder: str) -> None:
    """Train every arm in turn, print a table and write it."""
    seconds: dict[str | None, list[float]] = {name: [] for name in PRUNERS}
    samples: dict[str | None, int] = {}
    for number in range(options.rounds + 1):
        for name in PRUNERS:
            more: dict[str, Any] = {**ON[options.device], "epochs": options.epochs}
            config = TrainConfig(
                data=data,
                out=f"{folder}/{number}-{name}",
                dynamic=name,
                device=options.device,
                evaluate_every=0,
                **more,
            )
            result = train(config, quiet=True)
            samples[name] = result.samples
            if number:  # the first round warms up
                seconds[name].append(result.seconds)
    full = statistics.median(seconds[None])
    rows = []
    for name in PRUNERS:
        share = samples[name] / samples[None]
        spent = statistics.median(seconds[name])
        ratio = spent / (full * share)
        rows.append({"pruner": name or "none", "share": share, "seconds": spent, "ratio": ratio})
        print(f"{name or 'none':16} share {share:.3f}  {spent:8.2f} s  ratio {ratio:.3f}")
    if options.out:
        settings = {"data": options.data, "epochs": options.epochs, **ON[options.device]}
        result_file = {"machine": describe(), "settings": settings, "rows": rows}
        write_json(options.out, result_file)


if __name__ == "__main__":
    main()
