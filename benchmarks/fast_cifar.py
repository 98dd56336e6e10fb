"""Accuracy and time of `--model fast-cifar` over many seeds, beside airbench94 in one run.

    python -m benchmarks.fast_cifar --seeds 100 --beside airbench94_muon.py --out RESULT.json
    python -m benchmarks.fast_cifar --study --seeds 100 --workers 3 --mps --out STUDY.json

With `--study` the seeds are the trials of a study: `wall` is the time from the command to the
report, the start of its processes and compilation included. Otherwise they run in this process.

airbench94 (Keller Jordan, https://github.com/KellerJordan/cifar10-airbench) is not part of this
repository: give its file. It runs as published, apart from the number of runs and where it finds
CIFAR-10. Its time does not include compilation; ours neither (`seconds`), but `wall` does.
Where its lines have no times, the wall time is divided by its runs.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from thresher.data.pack import Pack
from thresher.paths import write_json
from thresher.study.study import Study
from thresher.study.toml import dumps
from thresher.training.config import TrainConfig
from thresher.training.result import RunResult
from thresher.training.sharing import sharing
from thresher.training.train import train


@dataclass(frozen=True)
class Workload:
    """What is trained."""

    data: str
    seeds: int
    validation: float
    settings: dict[str, Any]

    def base(self) -> dict[str, Any]:
        """Return the options of every run, but for seed and folder."""
        held = {"validation": self.validation} if self.validation else {}
        return {"data": self.data, "model": "fast-cifar", **held, **self.settings}

    def accuracy(self, result: RunResult) -> float:
        """Return the accuracy in percent, on the validation images if there are any."""
        value = result.validation_accuracy if self.validation else result.accuracy
        return 100 * (value or 0.0)

    def summary(self, results: list[RunResult]) -> dict[str, Any]:
        """Return mean and standard deviation of the accuracy, and the seconds of a run."""
        accuracies = [self.accuracy(result) for result in results]
        return {
            "runs": len(results),
            "accuracy": statistics.mean(accuracies),
            "sd": statistics.stdev(accuracies) if len(results) > 1 else None,
            "seconds": statistics.median(result.seconds for result in results),
            "accuracies": accuracies,
        }


def ours(work: Workload, steps: bool) -> dict[str, Any]:
    """Train with each seed in this process; with `steps`, runs replay the first one's graph."""
    results, walls = [], []
    with tempfile.TemporaryDirectory() as folder, sharing(steps):
        for seed in range(work.seeds):
            begun = time.perf_counter()
            options = {**work.base(), "seed": seed, "out": f"{folder}/{seed}"}
            results.append(train(TrainConfig.for_model(**options), quiet=True))
            walls.append(time.perf_counter() - begun)
    walls_of = {"wall": statistics.median(walls), "first_wall": walls[0]}
    return {**work.summary(results), **walls_of}


def as_study(work: Workload, executor: dict[str, Any]) -> dict[str, Any]:
    """Run the seeds as a study, with the command that a user would type."""
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "study.toml", Path(folder) / "study"
        content = {"seeds": work.seeds, "base": work.base(), "executor": executor}
        file.write_text(dumps(content))
        begun = time.perf_counter()
        command = ["study", "run", str(file), "--out", str(out), "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "thresher", *command], stdout=subprocess.PIPE, text=True
        )
        wall = time.perf_counter() - begun
        if done.returncode:
            raise SystemExit(f"the study ended with code {done.returncode}")
        assert Path(json.loads(done.stdout)["report"]).exists()
        trials = Study.load(file, out).plan().trials.values()
        results = [RunResult.load(trial.out) for trial in trials]
    summary = work.summary(results)
    return {**summary, "executor": executor, "wall_of_all": wall, "wall": wall / len(results)}


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
        return {"error": done.stderr[-2000:], "wall_of_all": wall}
    return {**read_airbench(done.stdout, runs, wall), "wall_of_all": wall}


def read_airbench(output: str, runs: int, wall: float) -> dict[str, Any]:
    """Return what airbench94 printed: a row per run, ending in the accuracy and the seconds.

    The first row is a warm-up, which it does not count either.
    """
    rows = [line for line in output.splitlines() if re.search(r"\beval\b", line)]
    numbers = [[float(x) for x in re.findall(r"\d+\.\d+", row)] for row in rows]
    timed = [row for row in numbers if len(row) >= 2][1:]
    if not timed:
        return {"runs": runs, "accuracy": None, "seconds": wall / max(1, runs)}
    return {
        "runs": len(timed),
        "accuracy": 100 * statistics.mean(row[-2] for row in timed),
        "seconds": statistics.median(row[-1] for row in timed),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--validation", type=float, default=0.0)
    parser.add_argument("--study", action="store_true")
    parser.add_argument("--share-steps", action="store_true", help="without --study")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--mps", action="store_true")
    parser.add_argument("--beside", "--airbench", dest="beside", type=Path)
    parser.add_argument("--beside-runs", "--airbench-runs", dest="runs", type=int, default=20)
    parser.add_argument("--set", nargs="*", default=[], metavar="OPTION=VALUE")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    more = tomllib.loads("\n".join(options.set))
    work = Workload(options.data, options.seeds, options.validation, more)
    result: dict[str, Any] = {"machine": describe(), "settings": more}
    if options.study:
        executor = {"kind": "local", "workers": options.workers, "mps": options.mps}
        result["thresher"] = as_study(work, executor)
    else:
        result["thresher"] = ours(work, options.share_steps)
    shown = {key: value for key, value in result["thresher"].items() if key != "accuracies"}
    print(json.dumps({**more, **shown}), flush=True)
    if options.beside:
        result["airbench94"] = airbench(options.beside, options.runs)
        print(json.dumps(result["airbench94"]))
        if "seconds" in result["airbench94"]:
            ratio = result["thresher"]["seconds"] / result["airbench94"]["seconds"]
            result["time_ratio"] = ratio
            print(f"ratio {ratio:.2f}")
    if options.out:
        write_json(options.out, result)


if __name__ == "__main__":
    main()
