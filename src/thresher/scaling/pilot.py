"""Short training runs that estimate the critical batch: how large a batch pays off.

A few runs at a small batch and as many at eight times it. They give two independent estimates: the
gradient noise scale of the larger batch, and the samples that both needed to the same accuracy,
by E(B) = E_min(1 + B/B_crit). After so few steps either can be off by a factor of several; their
geometric mean is used, with an interval of a factor of four, and both are reported.
"""

import hashlib
import json
import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import TYPE_CHECKING, Literal

import numpy as np

from thresher.data.pack import Pack
from thresher.errors import InvalidValueError, ThresherError
from thresher.options import option
from thresher.paths import RunPaths, home
from thresher.scaling.sample_model import SampleModel, rate_at
from thresher.training.config import TrainConfig

if TYPE_CHECKING:
    from thresher.training.result import RunResult

logger = logging.getLogger(__name__)
VALIDATION = 0.15
"""Least share of the training samples that is held out for the pilots' accuracy; the test set is
not used."""
RATIO = 8
"""How many times larger the second batch is."""
FEWEST = 4 * RATIO
"""Training samples needed."""
RATE_CRITICAL = 256.0
"""Critical batch assumed for the learning rate of the second run; its error enters as a root."""

RATE = 0.03
"""Default learning rate of the smaller run."""
OFF_BY = 4.0
"""The critical batch of a pilot is given as known to this factor. Against the sweeps stored in
benchmarks/results it was off by 3.6 times on CIFAR-10 and by less than 1.1 times on digits."""
RUN_SPREAD = 0.2
"""Standard deviation of the logarithm of a run's samples to a target: 0.12 and 0.16 in those."""
DRAWS = 1000

Curve = list[tuple[float, float]]
"""(samples, validation accuracy) after each epoch."""


@dataclass(frozen=True, kw_only=True)
class PilotConfig:
    """Options of `run_pilot`."""

    data: str | None = None
    """A pack's folder, or its name in the cache."""
    model: str = "tiny"
    """The network to train."""
    target_accuracy: float | None = option(None, gt=0, le=1)
    """Validation accuracy to reach, 0 to 1 (default: what the pilot reaches)."""
    pilot_epochs: float = option(8.0, gt=0)
    """Most epochs of each run of the two pilots."""
    pilot_batch: int = option(16, ge=1)
    """Batch size of the smaller pilot; the other's is eight times larger."""
    pilot_seeds: int = option(3, ge=1)
    """Runs of each pilot; their samples to the target are averaged."""
    lr: float | None = option(None, gt=0)
    """A learning rate that works at the smaller pilot's batch size (default: 0.03); with a table
    that has no rates, at its smallest batch size."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the pilots run."""
    seed: int = option(0, ge=0)
    """Seed of the pilots."""


@dataclass(frozen=True)
class Pilot:
    """Result of `run_pilot`."""

    batch_size: int
    large_batch: int
    lr: float
    critical_batch: float
    noise_scale: float | None
    """Critical batch by the gradient noise scale; None if unknown."""
    critical_by_samples: float | None
    """Critical batch by the samples that both runs needed; None if unknown."""
    images_per_s: float
    """Of the smaller batch."""
    samples: int
    """Samples that the smaller batch saw until the target, or until the end; geometric mean."""
    target: float
    reached: bool
    """Whether all runs of the smaller batch reached the target."""
    accuracy: float
    """Last validation accuracy of the smaller batch, mean over the runs."""
    train_samples: int
    runs: int
    """Runs of each batch size."""
    folders: tuple[str, ...]

    def sample_model(self, epochs: float) -> SampleModel:
        """Return the samples by batch size; `epochs` are assumed if the target was not reached."""
        samples = self.samples if self.reached else epochs * self.train_samples
        generator = np.random.default_rng(0)
        critical = self.critical_batch * OFF_BY ** (generator.standard_normal(DRAWS) / 1.96)
        # The mean of the pilots is off, and so is the run that is planned.
        spread = RUN_SPREAD * math.sqrt(1 + 1 / self.runs)
        seen = samples * np.exp(spread * generator.standard_normal(DRAWS))
        least = seen / (1 + self.batch_size / critical)
        return SampleModel(
            *(self.critical_batch, samples, self.batch_size, self.lr, self.train_samples),
            draws=tuple(zip(least.tolist(), critical.tolist(), strict=True)),
        )

    @property
    def critical_interval(self) -> tuple[float, float]:
        """Low and high end of the critical batch, by how far pilots were off before."""
        return self.critical_batch / OFF_BY, self.critical_batch * OFF_BY


def run_pilot(config: PilotConfig) -> Pilot:
    """Train at two batch sizes for a few epochs at constant rates.

    The runs are kept in the cache: a second call with the same data and options trains nothing, and
    a killed pilot resumes.
    """
    pack = Pack.open(required(config.data))
    lr = config.lr or RATE
    count = int(len(pack.indices("train")) * (1 - VALIDATION))
    small = max(4, min(config.pilot_batch, count // FEWEST))
    large = RATIO * small
    if large > count:
        raise InvalidValueError(
            f"a pilot needs at least {FEWEST} training samples, {config.data} has {count}"
        )
    large_lr = rate_at(large, RATE_CRITICAL, small, lr)
    base = TrainConfig(
        data=required(config.data),
        out="",
        model=config.model,
        epochs=config.pilot_epochs,
        schedule="constant",
        validation=hold_out(len(pack.indices("train")), large),
        noise_scale=True,
        target_accuracy=config.target_accuracy,
        device=config.device,
        resume=True,
    )
    runs = [replace(base, seed=config.seed + n) for n in range(config.pilot_seeds)]
    first = [_train(replace(run, batch_size=small, lr=lr), pack) for run in runs]
    second = [_train(replace(run, batch_size=large, lr=large_lr), pack) for run in runs]
    curves = [accuracy_curve(run) for run in first], [accuracy_curve(run) for run in second]
    train_samples = first[0].resolved.samples
    noise = _mean(run.noise_scale for run in second) or _mean(run.noise_scale for run in first)
    by_samples = critical_from(*curves, small, large, train_samples)
    estimates = [value for value in (noise, by_samples) if value is not None]
    if not estimates:
        what = "the pilot was too short to estimate the critical batch"
        raise ThresherError(what, "raise `pilot_epochs`")
    accuracy = fmean(float(run.validation_accuracy or 0.0) for run in first)
    target = config.target_accuracy
    reached = target is None or all(run.status == "target" for run in first)
    # Between two evaluations: whole epochs would count too many samples.
    counts = [None if target is None else samples_until(curve, target) for curve in curves[0]]
    seen = [run.samples if n is None else n for run, n in zip(first, counts, strict=True)]
    return Pilot(
        batch_size=small,
        large_batch=large,
        lr=lr,
        critical_batch=geometric_mean(estimates),
        noise_scale=noise,
        critical_by_samples=by_samples,
        images_per_s=max(float(run.images_per_s or 0.0) for run in first),
        samples=round(geometric_mean(seen)),
        target=accuracy if target is None else target,
        reached=reached,
        accuracy=accuracy,
        train_samples=train_samples,
        runs=config.pilot_seeds,
        folders=tuple(run.config.out for run in (*first, *second)),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the geometric mean of the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return geometric_mean(known) if known else None


def required(data: str | None) -> str:
    """Return `data`; without it raise InvalidValueError."""
    if data is None:
        raise InvalidValueError("data is required", "", "data")
    return data


def hold_out(samples: int, batch: int) -> int:
    """Return how many samples to hold out so that the rest are whole batches.

    A last batch of a few samples, trained on at the full rate, would spoil the accuracy that is
    measured right after it.
    """
    return samples - max(1, int(samples * (1 - VALIDATION)) // batch) * batch


def _train(run: TrainConfig, pack: Pack) -> "RunResult":
    from thresher.training.train import train

    # The key holds all that the run depends on: other defaults of another version are another run.
    identity = {**run.to_dict(), "data": pack.fingerprint}
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    model = run.model.replace(":", "-").replace("/", "-")
    out = home() / "pilots" / f"{pack.name}-{model}-{run.batch_size}-{key}"
    if not RunPaths(out).result.exists():
        what = f"{run.model} on {pack.name} at batch {run.batch_size}, seed {run.seed}"
        logger.info("pilot: training %s for at most %g epochs", what, run.epochs)
    result = train(replace(run, out=str(out)), quiet=True)
    if result.status == "diverged":
        what = f"the pilot diverged at rate {run.lr:g} and batch {run.batch_size}"
        raise ThresherError(what, "lower `lr`")
    return result


def accuracy_curve(result: "RunResult") -> Curve:
    """Return (samples, validation accuracy) after each epoch of a run."""
    text = RunPaths(Path(result.config.out)).metrics.read_text(encoding="utf-8")
    records = [json.loads(line) for line in text.splitlines()]
    epochs = [r for r in records if r["kind"] == "epoch" and r.get("accuracy") is not None]
    return [(float(record["samples"]), float(record["accuracy"])) for record in epochs]


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


def critical_from(
    small_curves: Sequence[Curve],
    large_curves: Sequence[Curve],
    small: int,
    large: int,
    train_samples: int,
) -> float | None:
    """Estimate the critical batch from the samples that runs of two batch sizes needed.

    They are compared at the highest accuracy that all reached, after half an epoch at least. None
    if the larger batch needed no more samples, so that there is no upper bound.
    """
    curves = [*small_curves, *large_curves]
    if not all(curves):
        return None
    common = min(max(accuracy for _, accuracy in curve) for curve in curves)
    e_small = _mean(samples_until(curve, common) for curve in small_curves)
    e_large = _mean(samples_until(curve, common) for curve in large_curves)
    if e_small is None or e_large is None or e_large < train_samples / 2 or e_large <= e_small:
        return None
    ratio = e_large / e_small
    if ratio >= large / small:
        # Samples in proportion to the batch: both batches are beyond the critical one.
        return 1.0
    return max(1.0, (large - ratio * small) / (ratio - 1))
