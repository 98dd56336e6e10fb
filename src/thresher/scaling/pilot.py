"""Short training runs that estimate the critical batch: how large a batch pays off.

A few runs at a small batch, and as many at 4, 16 and 64 times it, whose rates are tuned.
E(B) = E_min(1 + B/B_crit) is fitted to the samples that all of them needed to the target. Runs that
end before it only give a guess: the geometric mean of the fit to a lower accuracy and the gradient
noise scale.
"""

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, geometric_mean
from typing import Literal

import numpy as np

from thresher.data.pack import Pack
from thresher.errors import InvalidValueError, ThresherError
from thresher.options import option
from thresher.scaling import branches
from thresher.scaling.batch_table import BatchRow
from thresher.scaling.branch_fit import BEYOND, DRAWS
from thresher.scaling.branches import Branches
from thresher.scaling.pilot_runs import (
    VALIDATION,
    Curve,
    accuracy_curve,
    hold_out,
    ranked_rates,
    records,
    samples_until,
    speed_of,
    stable_run,
    stable_runs,
    train_seeds,
)
from thresher.scaling.sample_fit import SampleFit, fit_samples
from thresher.scaling.sample_model import SampleModel
from thresher.scaling.schedule_offer import CriticalCurve
from thresher.training.config import TrainConfig
from thresher.training.result import RunResult

logger = logging.getLogger(__name__)
RATIOS = (4, 16, 64)
"""How many times larger the other batches are. Large ones give way where the data are few. They are
needed: E(B) bends, so that fits to batches 32 to 512 of four sweeps on CIFAR-10 gave 390 to 610,
fits to 32 to 4,096 gave 800 to 960 (benchmarks/results/plan_check_cifar10.md)."""
STEPS = 4
"""Steps of an epoch, at least."""
RATE = 0.03
"""Default learning rate of the smallest batch."""
OFF_BY = 4.0
"""A critical batch that is not fitted at the target is given as known to this factor: such guesses
were off by 1.1 and 1.7 times on digits and by 3.6 times on CIFAR-10 (benchmarks/results)."""
RUN_SPREAD = 0.25
"""Standard deviation of the logarithm of a run's samples to a target: 0.13 to 0.29 in six groups
of six runs on digits."""
FEWEST_RUNS, MOST_RUNS = 3, 9
MEAN_KNOWN_TO = 0.10
"""Standard error of the mean logarithm of samples above which pilots are repeated: with three runs
on digits it is 0.16, and predictions were off by 37 %."""


@dataclass(frozen=True, kw_only=True)
class PilotConfig:
    """Options of `run_pilot`."""

    data: str | None = None
    """A pack's folder, or its name in the cache."""
    model: str = option("tiny", only_with={"data": True})
    """The network to train."""
    target_accuracy: float | None = option(None, gt=0, le=1)
    """Validation accuracy to reach, 0 to 1 (default: what the pilot reaches)."""
    pilot_epochs: float = option(8.0, gt=0, only_with={"from_": False})
    """Most epochs of each run of the pilots."""
    pilot_batch: int = option(16, ge=1, only_with={"from_": False})
    """Batch size of the smallest pilot; the others' are 4, 16 and, if the data allow it, 64 times
    larger."""
    pilot_seeds: int | None = option(None, ge=1, only_with={"from_": False})
    """Runs of each pilot; their samples to the target are averaged (default: 3, and up to 9 if
    they differ so much that the mean is not known to 10 %)."""
    lr: float | None = option(None, gt=0)
    """A learning rate that works at the smallest pilot's batch size (default: 0.03); with a table
    that has no rates, at its smallest batch size."""
    critical_batch: Literal["pilots", "branch"] = option("pilots", only_with={"from_": False})
    """How the critical batch is measured: by pilots at several batch sizes, or by short branches at
    several batch sizes from states of one, early, in the middle and late in training."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the pilots run."""
    seed: int = option(0, ge=0)
    """Seed of the pilots."""


@dataclass(frozen=True)
class Pilot:
    """Result of `run_pilot`."""

    batch_size: int
    """The smallest batch, as in the other fields without a batch of their own."""
    batches: tuple[int, ...]
    lr: float
    rates: dict[int, float]
    """Learning rate of each batch, tuned for the larger ones."""
    critical_batch: float
    critical_batch_low: float | None
    """Low end of its 95 % interval; None if there is no bound."""
    critical_batch_high: float | None
    noise_scale: float | None
    """Critical batch by the gradient noise scale; None if unknown."""
    fit: SampleFit | None
    """The fit to the samples that all runs needed; None if they say nothing."""
    images_per_s: float
    samples: int
    """Samples until the target, or until the end; geometric mean."""
    target: float
    reached: bool
    """Whether all runs of the smallest batch reached the target."""
    accuracy: float
    """Last validation accuracy, mean over the runs."""
    train_samples: int
    """Training samples of the pilots; the rest is held out for their accuracy."""
    runs: int
    """Runs of each batch size."""
    folders: tuple[str, ...]
    noise_curve: tuple[tuple[float, float], ...] = ()
    """(share of the training, noise scale) after each epoch; geometric mean."""
    branches: Branches | None = None
    """The branches, if the critical batch was measured with them."""

    @property
    def critical_curve(self) -> CriticalCurve:
        """The critical batch over the training: that of the branches, or the noise scale."""
        if self.branches is None:
            return self.noise_curve
        stages = self.branches.stages
        return [(stage.samples / self.samples, stage.fit.critical_batch) for stage in stages]

    @property
    def fitted_at_target(self) -> bool:
        """Whether the fit is to the samples to the target, not to a lower accuracy."""
        return self.fit is not None and _at(self.target, self.fit)

    def sample_model(self, epochs: float, train_samples: int) -> SampleModel:
        """Return the samples by batch size for a run on `train_samples`; `epochs` of them are
        assumed if the target was not reached."""
        generator = np.random.default_rng(0)
        # The run that is planned scatters, too.
        run = np.exp(RUN_SPREAD * generator.standard_normal(DRAWS))
        bends: tuple[tuple[float, float], ...] = ()
        if self.fit is not None and self.fitted_at_target:
            samples, draws = self.fit.samples_at(self.batch_size), self.fit.draws
            bends = self.fit.bends
            least, critical = np.array(draws).T if draws else (np.empty(0), np.empty(0))
            least = least * run[: len(least)]
        else:
            samples = self.samples if self.reached else epochs * train_samples
            critical = self._critical_draws(generator)
            mean = np.exp(RUN_SPREAD / math.sqrt(self.runs) * generator.standard_normal(DRAWS))
            least = samples * (mean * run)[: len(critical)] / (1 + self.batch_size / critical)
        return SampleModel(
            *(self.critical_batch, samples, self.batch_size, self.lr, train_samples),
            bends=bends,
            draws=tuple(zip(least.tolist(), critical.tolist(), strict=True)),
        )

    def _critical_draws(self, generator: np.random.Generator) -> np.ndarray:
        if self.branches is not None:
            return np.array(self.branches.draws)
        return self.critical_batch * OFF_BY ** (generator.standard_normal(DRAWS) / 1.96)


def run_pilot(config: PilotConfig) -> Pilot:
    """Train at several batch sizes for a few epochs at constant rates, or at one and its branches.

    The runs are kept in the cache: a second call with the same data and options trains nothing, and
    a killed pilot resumes.
    """
    pack = Pack.open(required(config.data))
    branch = config.critical_batch == "branch"
    # Without a target, the accuracy that all reach counts, and far larger batches reach little.
    known = RATIOS if config.target_accuracy is not None else RATIOS[:2]
    batches = _batches(config, pack, branches.RATIOS[1:] if branch else known)
    small, count = batches[0], config.pilot_seeds or FEWEST_RUNS
    base = TrainConfig(
        data=required(config.data),
        out="",
        model=config.model,
        epochs=config.pilot_epochs,
        schedule="constant",
        validation=hold_out(len(pack.indices("train")), batches[-1]),
        noise_scale=count == 1,
        target_accuracy=config.target_accuracy,
        device=config.device,
        precision="fp32",
        resume=True,
        batch_size=small,
        lr=config.lr or RATE,
    )
    seeds = range(config.seed, config.seed + count)
    results = {small: train_seeds(base, seeds, pack)}
    speed = speed_of(results[small], replace(base, seed=config.seed), pack)
    if branch:
        return _with_branches(_pilot(config, results, speed), base, seeds)
    for batch in batches[1:]:
        rates = ranked_rates(replace(base, batch_size=batch, seed=config.seed), base, pack)
        results[batch] = stable_runs(replace(base, batch_size=batch), rates, seeds, pack)
    _leave_out_unfinished(results, config)
    while config.pilot_seeds is None:
        needed = runs_needed(_counts(runs, config.target_accuracy) for runs in results.values())
        if needed <= count:
            break
        more = range(config.seed + count, config.seed + needed)
        logger.info(
            f"pilot: the results of {count} runs vary too much, training {needed} at each batch"
        )
        for batch, runs in results.items():
            again = replace(base, batch_size=batch, lr=runs[0].config.lr)
            runs += [stable_run(replace(again, seed=seed), pack) for seed in more]
        count = needed
    return _pilot(config, results, speed)


def _leave_out_unfinished(results: dict[int, list[RunResult]], config: PilotConfig) -> None:
    """Remove batches above the third whose runs did not reach the target: three are enough."""
    for batch in list(results)[3:]:
        if None in _counts(results[batch], config.target_accuracy):
            del results[batch]
            logger.info(
                f"pilot: batch {batch} is left out because it did not reach the target in "
                f"{config.pilot_epochs:g} epochs"
            )


def _counts(runs: list[RunResult], target: float | None) -> list[float | None]:
    """Return the samples of each run until the target."""
    return [None if target is None else samples_until(accuracy_curve(run), target) for run in runs]


def runs_needed(counts: Iterable[Sequence[float | None]]) -> int:
    """Return the runs of each batch size after which their mean is known well enough.

    Args:
        counts: For each batch size, the samples of each run to the target; None: not reached.
    """
    squares, freedom = 0.0, 0
    for group in counts:
        if any(count is None for count in group):
            return FEWEST_RUNS  # the critical batch will be a guess
        logs = np.log(np.array(group, float))
        squares += float(((logs - logs.mean()) ** 2).sum())
        freedom += len(group) - 1
    return int(np.clip(math.ceil(squares / freedom / MEAN_KNOWN_TO**2), FEWEST_RUNS, MOST_RUNS))


def _with_branches(pilot: Pilot, base: TrainConfig, seeds: Sequence[int]) -> Pilot:
    """Measure the critical batch of a pilot by branches."""
    measured = branches.run_branches(base, seeds, pilot.samples, pilot.critical_batch)
    return replace(
        pilot,
        critical_batch=measured.critical_batch,
        critical_batch_low=measured.critical_batch_low,
        critical_batch_high=measured.critical_batch_high,
        branches=measured,
    )


def _batches(config: PilotConfig, pack: Pack, ratios: Sequence[int]) -> tuple[int, ...]:
    """Return the batch sizes of the pilots, ascending: three or more."""
    count = int(len(pack.indices("train")) * (1 - VALIDATION))
    most = count // STEPS
    small = max(4, min(config.pilot_batch, most // RATIOS[1]))
    if RATIOS[1] * small > count:
        needed = STEPS * RATIOS[1]
        held = f"beside the {100 * VALIDATION:.0f} % that it holds out"
        what = f"a pilot needs at least {needed} training samples {held}, {config.data} has {count}"
        raise InvalidValueError(what)
    larger = [ratio * small for ratio in ratios]
    return small, *larger[:2], *(batch for batch in larger[2:] if batch <= most)


def _pilot(config: PilotConfig, results: dict[int, list[RunResult]], speed: float) -> Pilot:
    """Estimate the critical batch from the runs of each batch size."""
    small, first = next(iter(results.items()))
    train_samples, target = first[0].resolved.samples, config.target_accuracy
    curves = {batch: [accuracy_curve(run) for run in runs] for batch, runs in results.items()}
    fit = fit_curves(curves, train_samples, target) if len(results) > 1 else None
    noises = (_mean(run.noise_scale for run in runs) for runs in reversed(results.values()))
    noise = next((value for value in noises if value is not None), None)
    accuracy = fmean(float(run.validation_accuracy or 0.0) for run in first)
    critical, low, high = critical_of(fit, noise, accuracy if target is None else target)
    # Between two evaluations: whole epochs would count too many samples.
    counts = _counts(first, target)
    seen = [run.samples if n is None else n for run, n in zip(first, counts, strict=True)]
    return Pilot(
        batch_size=small,
        batches=tuple(results),
        lr=first[0].config.lr,
        rates={batch: runs[0].config.lr for batch, runs in results.items()},
        critical_batch=critical,
        critical_batch_low=low,
        critical_batch_high=high,
        noise_scale=noise,
        fit=fit,
        images_per_s=speed,
        samples=round(geometric_mean(seen)),
        target=accuracy if target is None else target,
        reached=target is None or all(run.status == "target" for run in first),
        accuracy=accuracy,
        train_samples=train_samples,
        runs=len(first),
        folders=tuple(run.config.out for runs in results.values() for run in runs),
        noise_curve=_noise_curve(first, geometric_mean(seen)),
    )


def _at(target: float, fit: SampleFit) -> bool:
    """Return whether a fit is to the samples to the target, not to a lower accuracy."""
    return fit.target == f"{target:g}"


def critical_of(
    fit: SampleFit | None, noise: float | None, target: float
) -> tuple[float, float | None, float | None]:
    """Return the critical batch and the ends of its interval, from a fit and the noise scale."""
    if fit is not None and _at(target, fit):
        return fit.b_crit, fit.b_crit_low, fit.b_crit_high
    guess = _mean([None if fit is None else fit.b_crit, noise])
    if guess is None:
        what = "the pilot was too short to estimate the critical batch"
        raise ThresherError(what, "raise `pilot_epochs`")
    return guess, guess / OFF_BY, guess * OFF_BY


def _noise_curve(runs: list[RunResult], samples: float) -> tuple[tuple[float, float], ...]:
    """Return the noise scale after each epoch, over the samples to the target."""
    by_epoch: dict[int, list[float]] = {}
    for run in runs:
        for line in records(run, "epoch"):
            if line.get("noise_scale") is not None and line["samples"] < samples + 1:
                by_epoch.setdefault(line["samples"], []).append(line["noise_scale"])
    return tuple((seen / samples, geometric_mean(n)) for seen, n in sorted(by_epoch.items()))


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the geometric mean of the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return geometric_mean(known) if known else None


def required(data: str | None) -> str:
    """Return `data`; without it raise InvalidValueError."""
    if data is None:
        raise InvalidValueError("data is required", "", "data")
    return data


def fit_curves(
    curves: dict[int, list[Curve]], train_samples: int, target: float | None = None
) -> SampleFit | None:
    """Fit the samples that runs of several batch sizes needed to the same accuracy.

    That is the target if all reached it, else the highest that all reached, if it took half an
    epoch at least. None if the runs say nothing, or if the samples do not grow with the batch.
    """
    if not all(curve for group in curves.values() for curve in group):
        return None
    every = [curve for group in curves.values() for curve in group]
    common = min(max(accuracy for _, accuracy in curve) for curve in every)
    if target is not None and target <= common:
        common = target
    rows = [
        BatchRow(batch, samples, f"{common:g}")
        for batch, group in curves.items()
        for curve in group
        if (samples := samples_until(curve, common))
    ]
    largest = max(curves)
    late = _mean(row.samples for row in rows if row.batch == largest)
    if len(rows) < len(every) or late is None or late < train_samples / 2:
        return None
    fit = fit_samples(rows)
    return fit if fit.b_crit < 0.9 * BEYOND * largest else None
