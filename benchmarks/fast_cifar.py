"""Accuracy and time of `--model fast-cifar` over many seeds, beside airbench94 in one run.

    python -m benchmarks.fast_cifar --seeds 100 --airbench airbench94_muon.py --out RESULT.json

airbench94 (Keller Jordan, https://github.com/KellerJordan/cifar10-airbench) is not part of this
repository: give its file. It runs as published, apart from the number of runs and where it finds
CIFAR-10. Its time does not include compilation; ours neither (`seconds`), but `wall` does.
`--validation 0.1` trains on the rest and reports accuracy on the held-out images: use it, not the
test images, to try settings with `--set lr=0.2`.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from thresher.data.pack import Pack
from thresher.training.config import TrainConfig
from thresher.training.train import train


def ours(seeds: int, validation: float, more: dict[str, Any]) -> dict[str, Any]:
    """Train with each seed in this process, one after the other."""
    accuracies, seconds, walls = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(seeds):
            begun = time.perf_counter()
            config = TrainConfig.for_model(
                "fast-cifar",
                data="cifar10",
                out=f"{folder}/{seed}",
                seed=seed,
                validation=validation,
                **more,
            )
            result = train(config, quiet=True)
            walls.append(time.perf_counter() - begun)
            seconds.append(result.seconds)
            value = result.validation_accuracy if validation else result.accuracy
            accuracies.append(100 * (value or 0.0))
    return {
        "runs": seeds,
        "accuracy": statistics.mean(accuracies),
        "sd": statistics.stdev(accuracies) if seeds > 1 else None,
        "seconds": statistics.median(seconds),
        "wall": statistics.median(walls),
        "first_wall": walls[0],
        "accuracies": accuracies,
    }


def airbench(file: Path, runs: int) -> dict[str, Any]:
    """Run airbench94's own file in a process of its own."""
    import torch

    pack = Pack.open("cifar10")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "cifar10").mkdir()
        for split in ("train", "test"):
            at = pack.indices(split)
            images, labels = torch.from_numpy(pack.images(at)), torch.from_numpy(pack.labels[at])
            content = {"images": images, "labels": labels, "classes": pack.classes}
            torch.save(content, Path(folder) / "cifar10" / f"{split}.pt")
        source = file.read_text().replace("range(200)", f"range({runs})")
        (Path(folder) / "airbench.py").write_text(source)
        begun = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "airbench.py"], cwd=folder, capture_output=True, text=True
        )
        wall = time.perf_counter() - begun
    if done.returncode:
        raise SystemExit(f"airbench failed:\n{done.stderr[-2000:]}")
    rows = [line for line in done.stdout.splitlines() if re.search(r"\beval\b", line)][1:]
    numbers = [[float(x) for x in re.findall(r"\d+\.\d+", row)] for row in rows]
    return {
        "runs": len(numbers),
        "accuracy": 100 * statistics.mean(row[-2] for row in numbers),
        "seconds": statistics.median(row[-1] for row in numbers),
        "wall_of_all": wall,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--validation", type=float, default=0.0)
    parser.add_argument("--airbench", type=Path)
    parser.add_argument("--airbench-runs", type=int, default=20)
    parser.add_argument("--set", nargs="*", default=[], metavar="OPTION=VALUE")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    more = tomllib.loads("\n".join(options.set))
    result: dict[str, Any] = {"machine": describe(), "settings": more}
    result["thresher"] = ours(options.seeds, options.validation, more)
    shown = {key: value for key, value in result["thresher"].items() if key != "accuracies"}
    print(json.dumps({**more, **shown}), flush=True)
    if options.airbench:
        result["airbench94"] = airbench(options.airbench, options.airbench_runs)
        ratio = result["thresher"]["seconds"] / result["airbench94"]["seconds"]
        result["time_ratio"] = ratio
        print(json.dumps(result["airbench94"]), f"ratio {ratio:.2f}")
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
