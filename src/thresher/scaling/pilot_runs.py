"""Runs of pilots, kept in the cache, and what is read from them."""

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from thresher.data.pack import Pack
from thresher.environment import choose_device, hardware
from thresher.errors import ThresherError
from thresher.locks import exclusive_lock
from thresher.models.registry import source_digest
from thresher.paths import RunPaths, disk_errors, home, new_parents
from thresher.scaling.sample_model import rate_at
from thresher.training.config import TrainConfig
from thresher.training.result import RunResult

logger = logging.getLogger(__name__)
VALIDATION = 0.15
"""Least share of the training samples that is held out for the pilots' accuracy; the test set is
not used."""
FACTORS = (0.5, 1.0, 2.0)
"""Factors on the rate by the rule that are tried at the larger batches, with the first seed."""
RATE_CRITICAL = 256.0
"""Critical batch assumed for the learning rates of the larger batches."""

Machine = dict[str, str | int]
"""Hardware, as in the result of a run."""
Curve = list[tuple[float, float]]
"""(samples, validation accuracy) after each epoch."""


def cached_run(run: TrainConfig, pack: Pack, machine: Machine | None = None) -> RunResult:
    """Train a run into the cache; one that is finished is read, and one that was killed resumes.

    Of several processes that want the same run one trains it, and the others wait.
    Machines that share a home folder share its runs, unless `machine` is given.
    """
    from thresher.training.train import train

    # The key holds all that the run depends on: other defaults of another version are another run.
    values = {**run.to_dict(), "data": pack.checksum}
    if (source := source_digest(run.model)) is not None:  # a network of one's own may change
        values["source"] = source
    if machine is not None:
        values["machine"] = machine
    text = json.dumps(values, sort_keys=True)
    # 8 and 8.0 epochs are the same.
    text = json.dumps(json.loads(text, parse_int=float))
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    model = run.model.replace(":", "-").replace("/", "-")
    out = home() / "pilots" / f"{pack.name}-{model}-{run.batch_size}-{key}"
    if not RunPaths(out).result.exists():
        what = f"{run.model} at batch {run.batch_size}, rate {run.lr:.3g}, seed {run.seed}"
        logger.info("pilot: training %s for at most %.3g epochs", what, run.epochs)
    config = replace(run, out=str(out))
    if RunPaths(out).result.exists():  # perhaps in the cache of others, which is read-only
        return train(config, quiet=True)
    busy = f"another process is training {out}"
    with disk_errors(out), new_parents(out / "run.json"), exclusive_lock(out, busy, wait=True):
        return train(config, quiet=True)


class DivergedPilotError(ThresherError):
    """A pilot whose loss is not finite any more."""


def stable_run(run: TrainConfig, pack: Pack, machine: Machine | None = None) -> RunResult:
    """Return `cached_run`; one that diverged raises DivergedPilotError."""
    result = cached_run(run, pack, machine)
    if result.status == "diverged":
        what = f"the pilot diverged at rate {run.lr:g} and batch {run.batch_size}"
        raise DivergedPilotError(what, "lower `lr`")
    return result


def train_seeds(run: TrainConfig, seeds: Sequence[int], pack: Pack) -> list[RunResult]:
    """Train with each seed; the last one measures the noise scale, which takes time on a GPU."""
    pilots = [replace(run, seed=seed, noise_scale=seed == seeds[-1]) for seed in seeds]
    return [stable_run(pilot, pack) for pilot in pilots]


def speed_of(runs: Sequence[RunResult], plain: TrainConfig, pack: Pack) -> float:
    """Return the images per second of the fastest run that does not measure the noise scale.

    If all of them do, or were trained on machines of another kind, `plain` is trained without.
    """
    here = _kind(hardware(choose_device(plain.device).type))
    timed = [run for run in runs if not run.config.noise_scale and _kind(run.hardware) == here]
    timed = timed or [stable_run(replace(plain, noise_scale=False), pack, here)]
    return max(float(run.images_per_s or 0.0) for run in timed)


def _kind(machine: Machine) -> Machine:
    """Return the hardware without the name of the host: nodes of a cluster are equally fast."""
    return {name: value for name, value in machine.items() if name != "host"}


def stable_runs(
    run: TrainConfig, rates: Sequence[float], seeds: Sequence[int], pack: Pack
) -> list[RunResult]:
    """Train at the first of the rates at which no seed diverges."""
    for rate in rates[:-1]:
        try:
            return train_seeds(replace(run, lr=rate), seeds, pack)
        except DivergedPilotError as error:
            logger.info(f"{error.what}: trying the next rate")
    return train_seeds(replace(run, lr=rates[-1]), seeds, pack)


def ranked_rates(run: TrainConfig, base: TrainConfig, pack: Pack) -> list[float]:
    """Return the rates of a larger batch with which one seed does not diverge, the best first."""
    rule = rate_at(run.batch_size, RATE_CRITICAL, base.batch_size, base.lr)
    results = {f * rule: cached_run(replace(run, lr=f * rule), pack) for f in FACTORS}
    stable = {lr: result for lr, result in results.items() if result.status != "diverged"}
    if not stable:
        what = f"the pilots diverged at rate {FACTORS[0] * rule:g} and batch {run.batch_size}"
        raise ThresherError(what, "lower `lr`")
    curves = {lr: accuracy_curve(result) for lr, result in stable.items()}
    best = {lr: max((a for _, a in curve), default=0.0) for lr, curve in curves.items()}
    # By the samples to the highest accuracy that all of them reached; 0 if there is none.
    common = min(best.values())
    return sorted(stable, key=lambda lr: (samples_until(curves[lr], common) or 0.0, -best[lr]))


def hold_out(samples: int, batch: int) -> int:
    """Return how many samples to hold out so that the rest are whole batches.

    A last batch of a few samples, trained on at the full rate, would spoil the accuracy that is
    measured right after it.
    """
    return samples - max(1, int(samples * (1 - VALIDATION)) // batch) * batch


def records(result: RunResult, kind: str) -> list[dict[str, Any]]:
    """Return the lines of one kind in the metrics of a run."""
    text = RunPaths(Path(result.config.out)).metrics.read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    return [line for line in lines if line["kind"] == kind]


def accuracy_curve(result: RunResult) -> Curve:
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
