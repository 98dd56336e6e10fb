"""Runs of pilots, kept in the cache, and what is read from them."""

import hashlib
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thresher.data.pack import Pack
from thresher.errors import ThresherError
from thresher.paths import RunPaths, home
from thresher.training.config import TrainConfig

if TYPE_CHECKING:
    from thresher.training.result import RunResult

logger = logging.getLogger(__name__)
VALIDATION = 0.15
"""Least share of the training samples that is held out for the pilots' accuracy; the test set is
not used."""

Curve = list[tuple[float, float]]
"""(samples, validation accuracy) after each epoch."""


def cached_run(run: TrainConfig, pack: Pack) -> "RunResult":
    """Train a run into the cache; one that is finished is read, and one that was killed resumes."""
    from thresher.training.train import train

    # The key holds all that the run depends on: other defaults of another version are another run.
    identity = {**run.to_dict(), "data": pack.checksum}
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    model = run.model.replace(":", "-").replace("/", "-")
    out = home() / "pilots" / f"{pack.name}-{model}-{run.batch_size}-{key}"
    if not RunPaths(out).result.exists():
        what = f"{run.model} on {pack.name} at batch {run.batch_size}, seed {run.seed}"
        logger.info("pilot: training %s for at most %.3g epochs", what, run.epochs)
    return train(replace(run, out=str(out)), quiet=True)


def stable_run(run: TrainConfig, pack: Pack) -> "RunResult":
    """Return `cached_run`; one that diverged is an error."""
    result = cached_run(run, pack)
    if result.status == "diverged":
        what = f"the pilot diverged at rate {run.lr:g} and batch {run.batch_size}"
        raise ThresherError(what, "lower `lr`")
    return result


def hold_out(samples: int, batch: int) -> int:
    """Return how many samples to hold out so that the rest are whole batches.

    A last batch of a few samples, trained on at the full rate, would spoil the accuracy that is
    measured right after it.
    """
    return samples - max(1, int(samples * (1 - VALIDATION)) // batch) * batch


def records(result: "RunResult", kind: str) -> list[dict[str, Any]]:
    """Return the lines of one kind in the metrics of a run."""
    text = RunPaths(Path(result.config.out)).metrics.read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    return [line for line in lines if line["kind"] == kind]


def accuracy_curve(result: "RunResult") -> Curve:
    """Return (samples, validation accuracy) after each epoch of a run."""
    epochs = [line for line in records(result, "epoch") if line.get("accuracy") is not None]
    return [(float(line["samples"]), float(line["accuracy"])) for line in epochs]


def samples_until(curve: Curve, accuracy: float) -> float | None:
    """Return the samples at which a run first reached `accuracy`, interpolated; None if never."""
    before = (0.0, 0.0)
    for samples, reached in curve:
        if reached >= accuracy:
            rise = reached - before[1]
            part = (accuracy - before[1]) / rise if rise > 0 else 1.0
            return before[0] + part * (samples - before[0])
        before = (samples, reached) if reached > before[1] else (samples, before[1])
    return None
