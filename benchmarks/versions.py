"""Training and selection of another version of Thresher beside this one, in turns.

    git worktree add OLD COMMIT
    python -m benchmarks.versions OLD --out benchmarks/results

Each command is a process of its own, with the same packages, pack and options. Training is timed
by the run itself, without its start; a selection is the whole command.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.machine import page, publish, table
from thresher.data.get import get
from thresher.data.pack import Pack

HERE = Path(__file__).parents[1]
IMAGES = 10_000
NAMES = ("other", "this")


def thresher(version: Path, *words: str | Path) -> None:
    """Run a command of a version."""
    env = {**os.environ, "PYTHONPATH": str(version / "src"), "THRESHER_DEBUG": "1"}
    command = [sys.executable, "-m", "thresher", *map(str, words)]
    subprocess.run(command, env=env, check=True, capture_output=True)


def make_inputs(folder: Path) -> None:
    """Write a pack of CIFAR-10's first images, and features in which classes are apart."""
    pack = get("cifar10")
    rows = pack.indices("train")[:IMAGES]
    np.savez(folder / "few.npz", images=pack.images(rows), labels=pack.labels[rows])
    thresher(HERE, "data", "pack", folder / "few.npz", folder / "few.pack")
    few = Pack.open(folder / "few.pack")
    random = np.random.default_rng(0)
    centres = random.normal(0, 1, (10, 512))
    features = centres[few.labels] + random.normal(0, 1, (len(few), 512))
    np.save(folder / "F.npy", features.astype(np.float32))
    (folder / "F.ids.txt").write_text("\n".join(few.ids.to_pylist()) + "\n")


def train(version: Path, folder: Path, out: Path) -> float:
    """Return images per second of a ResNet-20."""
    words = ["--model", "resnet20", "--batch-size", "256", "--validation", "256"]
    words += ["--epochs", "0.5", "--device", "cpu", "--precision", "fp32"]
    thresher(version, "train", "--data", folder / "few.pack", *words, "--out", out)
    return float(json.loads((out / "result.json").read_text())["images_per_s"])


def select(version: Path, folder: Path, out: Path) -> float:
    """Return selections per hour of the network filter."""
    sources = ("--data", folder / "few.pack", "--features", folder / "F.npy")
    words = (*sources, "--drop", "0.05", "--out", out.with_suffix(".parquet"))
    begun = time.perf_counter()
    thresher(version, "select", "network", *words)
    return 3600 / (time.perf_counter() - begun)


WORK: dict[str, Callable[[Path, Path, Path], float]] = {
    "training, images per second": train,
    "network filter, selections per hour": select,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("other", type=Path, help="checkout of the other version")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    versions = dict(zip(NAMES, (flags.other.resolve(), HERE), strict=True))
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=flags.other)
    rates: dict[str, dict[str, list[float]]] = {w: {v: [] for v in NAMES} for w in WORK}
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        make_inputs(folder)
        for repeat in range(flags.repeats):
            for what, run in WORK.items():
                for name in NAMES if repeat % 2 else NAMES[::-1]:
                    out = folder / f"{run.__name__}-{name}-{repeat}"
                    rates[what][name].append(run(versions[name], folder, out))
                    print(what, name, f"{rates[what][name][-1]:.1f}", flush=True)
    rows = []
    for what, found in rates.items():
        other, this = (statistics.median(found[name]) for name in NAMES)
        pairs = [b / a for a, b in zip(found["other"], found["this"], strict=True)]
        span = f"{min(pairs):.2f} … {max(pairs):.2f}"
        rows.append((what, f"{other:.1f}", f"{this:.1f}", f"{this / other:.2f}", span))
    lines = [
        *(f"- other version: commit {commit.decode().strip()}", ""),
        *(f"Medians of {flags.repeats} runs in turns, {IMAGES:,} images of CIFAR-10.", ""),
        *table(("", *NAMES, "ratio", "of pairs"), rows),
    ]
    publish(page("This version beside another one", lines), flags.out)


if __name__ == "__main__":
    main()
