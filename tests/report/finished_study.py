"""A finished study with known numbers, in the file formats of training."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from thresher.data.get import get
from thresher.data.selection import Selection
from thresher.paths import RunPaths, write_json
from thresher.study.study import Study

EFFECT = {"full": 0.0, "random": -1.5, "network": 1.0}


def definition(**more: Any) -> dict[str, Any]:
    return {
        "title": "Does filtering help at large batches?",
        "seeds": 5,
        "base": {"data": "digits", "model": "tiny", "epochs": 2},
        "grid": {"batch_size": [32, 128, 512], "selection": ["full", "random", "network"]},
        "steps": {
            "network": {"do": "select", "filter": "network", "features": "f/", "drop": 0.1},
            "random": {"do": "select", "filter": "random", "like": "network"},
        },
        **more,
    }


def result(accuracy: float, seconds: float = 3.0, **more: Any) -> dict[str, Any]:
    return {
        "status": "finished",
        "accuracy": accuracy,
        "loss": 1.2 - accuracy,
        "validation_accuracy": None,
        "validation_loss": None,
        "train_loss": 0.3,
        "steps": 100,
        "samples": 2000,
        "epochs": 2.0,
        "seconds": seconds,
        "images_per_s": 700.0,
        "time_to_target": None,
        "noise_scale": None,
        "resolved": {"workers": 1, "peak_lr": 0.1, "samples": 1400},
        "config": {},
        "versions": {"thresher": "0.1", "torch": "2.13"},
        "hardware": {"cpu": "two cores"},
        "git_commit": "abc",
        **more,
    }


def write(study: Study, spread: float = 0.1) -> Study:
    """Write a result for each trial: level of the cell + effects of seed and arm + noise."""
    random = np.random.default_rng(1)
    plan = study.plan()
    study.root.mkdir(parents=True, exist_ok=True)
    (study.root / "study.toml").write_text(study.definition.text)
    per_seed = random.normal(0, 0.4, 100)
    for trial in plan.trials.values():
        assert trial.cell is not None
        assert trial.seed is not None
        level = 95 - np.log2(float(trial.settings.get("batch_size", 64)))
        points = level + per_seed[trial.seed] + random.normal(0, spread)
        points += EFFECT.get(str(trial.cell.get("selection")), 0.0)
        write_json(RunPaths(trial.out).result, result(points / 100))
    pack = get("digits")
    train = pack.indices("train")
    for step in plan.steps.values():
        if step.kind == "select":
            n = len(train)
            angle = 2 * np.pi * pack.labels[train] / 10
            Selection(
                ids=pack.ids.take(train).to_pylist(),
                labels=pack.labels[train],
                keep=random.random(n) > 0.1,
                score=random.random(n).astype(np.float32),
                reason=[""] * n,
                fingerprint=pack.fingerprint,
                x=(10 * np.cos(angle) + random.normal(0, 1, n)).astype(np.float32),
                y=(10 * np.sin(angle) + random.normal(0, 1, n)).astype(np.float32),
            ).save(step.out)
    return study


def load(path: Path) -> Any:
    return json.loads(path.read_text())
