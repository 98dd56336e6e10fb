"""Time the grid of figure 7 on one GPU: 72 trials, ten at a time.

    python benchmarks/fig7_grid.py [--out DIR] [--workers 10] [--network SELECTION.parquet]

Three data sets (full, random, network), six batch sizes, four seeds, 50 epochs of ResNet-18 on
28×28 crops of CIFAR-10; the goal is ten minutes of device time. The network's selection is read
from a file if one is given, else replaced by a random one of the same size, which takes as long to
train on. An interrupted run resumes with the same --out.
"""

import argparse
import json
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from benchmarks.machine import describe  # noqa: E402
from thresher.study.analysis import analyse  # noqa: E402
from thresher.study.local import visible_gpus  # noqa: E402
from thresher.study.study import Study  # noqa: E402

EXAMPLE = ROOT / "examples" / "ornl-fig7.toml"


def content(arguments: argparse.Namespace) -> dict[str, Any]:
    study: dict[str, Any] = tomllib.loads(EXAMPLE.read_text())
    study["base"] |= {"data": arguments.data, "epochs": arguments.epochs}
    study["seeds"] = arguments.seeds
    drop = study["steps"]["network"]["drop"]
    by_chance = {"do": "select", "filter": "random", "drop": drop}
    study["steps"] = {"random": {**by_chance, "each": ["seed"]}}
    if arguments.network:
        study["grid"]["selection"][-1] = arguments.network
    else:
        study["steps"]["network"] = {**by_chance, "seed": 1000}
    study["executor"] = {"kind": "local", "workers": arguments.workers}
    return study


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", default="")
    parser.add_argument("--workers", type=int, default=10)
    parser.add_argument("--epochs", type=float, default=50)
    parser.add_argument("--network", default="")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--seeds", type=int, default=4)
    arguments = parser.parse_args()
    if not visible_gpus():
        print("no GPU: skipped")
        return
    with tempfile.TemporaryDirectory() as temporary:
        study = Study.from_dict(content(arguments), arguments.out or temporary)
        begun = time.perf_counter()
        status = study.run()
        seconds = time.perf_counter() - begun
        analysis = analyse(study)
        trials = status.count("finished")
        measured = {
            "machine": describe(),
            "command": sys.argv,
            "seconds": round(seconds, 1),
            "trials": trials,
            "failed": [t.error for t in status.trials if t.state == "failed"],
            "seconds_per_trial": round(seconds / max(trials, 1), 2),
            "trial_seconds": {
                str(batch): [
                    round(t.seconds, 1)
                    for t in analysis.trials
                    if t.cell["batch_size"] == batch and t.seconds is not None
                ]
                for batch in study.definition.grid["batch_size"]
            },
            "verdicts": [c.sentence for c in analysis.verdicts],
            "cells": analysis.to_dict()["cells"],
        }
        print(json.dumps(measured, indent=1))


if __name__ == "__main__":
    main()
