"""The runs that a plan chooses from, and the choice."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from thresher.errors import InvalidValueError, counted
from thresher.scaling.cluster import Cluster, DevicePrecision
from thresher.scaling.compute import measured_here
from thresher.scaling.predict import powers
from thresher.scaling.profile import Profile
from thresher.scaling.sample_model import Estimate, SampleModel, size_text
from thresher.scaling.step import PredictedStep, StepConfig, limit_of, predict_step
from thresher.training.batch_growth import SAFE

PILOT_SHARE = 1 / 16
"""Largest recommended share of a critical batch that pilots estimate. By the fit `SAFE` of it costs
1.25 times the samples of the best batch. In six sweeps on CIFAR-10, which fit a critical batch of
800 to 960, batch 128 cost 1.18 to 1.41 times, and batch 64 1.00 to 1.29 times
(`python -m benchmarks.pilot_choice`)."""
MUCH_LESS = 0.8
"""A larger batch is mentioned if its time is at most this share of the recommended one's."""
WASTE = 2.0
"""A recommended run uses at most this many times the device time of the cheapest one."""

Uncertain = Literal["samples", "step time"]


@dataclass(frozen=True)
class Machine:
    """What determines the seconds of a step: the model's profile on a cluster."""

    profile: Profile
    cluster: Cluster
    precision: DevicePrecision = "fp32"
    overhead: float = 1.0
    """Seconds of a real training step over those of the network alone."""

    def steps(self, batch: int, workers: int) -> list[PredictedStep]:
        """Predict a step of the global batch: pessimistic, likely and optimistic."""
        config = StepConfig(scaling="strong", batch_size=batch, precision=self.precision)
        levels = range(3)
        return [predict_step(self.profile, self.cluster, workers, config, n) for n in levels]

    def with_overhead(self, batch: int, images_per_s: float) -> "Machine":
        """Return this machine with the overhead that a run in fp32 at `batch` had, by reading,
        augmentation and logging; it is known only if the run used the cluster's own device and the
        profile is of fp32, too, else 1."""
        measured = measured_here(self.profile, self.cluster, "fp32")
        if self.precision != "fp32" or not measured:
            return replace(self, overhead=1.0)
        config = StepConfig(scaling="strong", batch_size=batch)
        bare = predict_step(self.profile, self.cluster, 1, config)
        return replace(self, overhead=max(1.0, batch / images_per_s / bare.step_s))


@dataclass(frozen=True)
class CandidateRun:
    """One batch size on one number of workers."""

    workers: int
    batch_size: int
    lr: float | None
    """None if no rate is known at any batch size."""
    warmup_epochs: float
    epochs: float
    samples: float
    samples_low: float | None
    """Low end of the 95 % interval, as for the other fields that end so; None if unknown."""
    samples_high: float | None
    steps: int
    """With the last, smaller one of each epoch."""
    step_s: float
    """Mean of the steps of an epoch."""
    seconds: float
    seconds_low: float
    seconds_high: float
    device_hours: float
    cost: float | None
    """In the currency of the cluster's file; None if it gives no price."""
    cost_low: float | None
    cost_high: float | None
    uncertain: Uncertain
    """What makes most of the interval of seconds and cost."""
    efficiency: float
    """Images per second against perfect scaling of one worker at this batch."""
    sample_efficiency: float
    """E_min/E: progress per sample against very small batches."""
    limit: str
    """What costs most against perfect scaling."""


@dataclass(frozen=True)
class Budget:
    """The most that a run may cost; None means no limit."""

    money: float | None = None
    hours: float | None = None


def parse_budget(text: str | None) -> Budget:
    """Parse `250` (money, in the cluster's currency) or `3h` (hours)."""
    if text is None:
        return Budget()
    try:
        value = float(text.strip().removesuffix("h"))
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        what = f'budget must be money (250) or hours (3h) above 0, got "{text}"'
        raise InvalidValueError(what, "", "budget")
    return Budget(hours=value) if text.strip().endswith("h") else Budget(money=value)


def candidate_runs(
    samples: SampleModel, machine: Machine, max_workers: int = 1024
) -> list[CandidateRun]:
    """Return every batch size on every number of workers that it can be split over.

    Workers are powers of two, and so are batches, up to eight times the critical one, unless the
    model names those to consider. Runs that do not fit the memory of a device are left out.
    """
    profile, cluster = machine.profile, machine.cluster
    largest = max(samples.batch_size, 8 * samples.critical_batch)
    largest = int(min(samples.train_samples, samples.largest, largest))
    named = [batch for batch in samples.batches if batch <= largest]
    runs = [
        candidate_run(samples, machine, batch, workers)
        for batch in named or powers(min(8, largest), largest)
        for workers in powers(1, min(max_workers, cluster.capacity, batch))
        if batch % workers == 0
        and memory_bytes(profile, batch / workers) <= cluster.device.memory_gb * 1e9
    ]
    if not runs:
        what = f"{profile.model} does not fit the memory of {cluster.device.name} at any batch"
        raise InvalidValueError(what, "choose a cluster with larger devices")
    return runs


def candidate_run(samples: SampleModel, machine: Machine, batch: int, workers: int) -> CandidateRun:
    """Predict time and cost of one run."""
    cluster = machine.cluster
    levels, alone = machine.steps(batch, workers), machine.steps(batch, 1)[1]
    needed = samples.estimate_at(batch)
    epochs = needed.value / samples.train_samples
    # `thresher train` ends an epoch with a smaller batch of what is left.
    whole, rest = divmod(samples.train_samples, batch)
    last = machine.steps(rest, workers) if rest else []
    per_epoch = whole + bool(rest)
    steps = math.ceil(epochs * per_epoch)
    step_s = [
        (whole * levels[n].step_s + (last[n].step_s if last else 0)) / per_epoch * machine.overhead
        for n in range(3)
    ]
    seconds, uncertain = _seconds(steps, Estimate(step_s[1], min(step_s), max(step_s)), needed)
    hours = workers * seconds.value / 3600
    cost = None if cluster.device_hour is None else hours * cluster.device_hour
    return CandidateRun(
        workers=workers,
        batch_size=batch,
        lr=samples.rate_at(batch),
        warmup_epochs=samples.warmup_at(batch),
        epochs=epochs,
        samples=needed.value,
        samples_low=needed.low if needed.known else None,
        samples_high=needed.high if needed.known else None,
        steps=steps,
        step_s=step_s[1],
        seconds=seconds.value,
        seconds_low=seconds.low,
        seconds_high=seconds.high,
        device_hours=hours,
        cost=cost,
        cost_low=None if cost is None else cost * seconds.low / seconds.value,
        cost_high=None if cost is None else cost * seconds.high / seconds.value,
        uncertain=uncertain,
        efficiency=alone.step_s / (workers * levels[1].step_s),
        sample_efficiency=samples.samples_min / needed.value,
        limit=limit_of(levels[1], alone, batch, workers, "strong"),
    )


def _seconds(steps: int, step_s: Estimate, samples: Estimate) -> tuple[Estimate, Uncertain]:
    """Return the seconds of a run, and which of its two factors is more uncertain.

    The errors of the two are independent, so that their logarithms add as squares.
    """
    value = steps * step_s.value
    factors = (step_s, samples)
    down = math.hypot(*(math.log(factor.value / factor.low) for factor in factors))
    up = math.hypot(*(math.log(factor.high / factor.value) for factor in factors))
    widths = [math.log(factor.high / factor.low) for factor in factors]
    uncertain: Uncertain = "samples"
    if samples.known and widths[0] > widths[1]:
        uncertain = "step time"
    return Estimate(value, value * math.exp(-down), value * math.exp(up)), uncertain


def memory_bytes(profile: Profile, batch: float) -> float:
    """Estimate the memory of a worker: weights, gradients, momentum and activations."""
    return 3 * profile.gradient_bytes + batch * sum(x.activation_bytes for x in profile.layers)


def recommend(
    runs: Sequence[CandidateRun],
    critical_batch: float,
    budget: Budget,
    largest_because: str | None = None,
    share: float = SAFE,
    no_bend: str | None = None,
) -> tuple[CandidateRun, str]:
    """Choose a run.

    Without a budget: the fastest that uses at most twice the device time of the cheapest, at no
    more than `share` of the critical batch, or at the largest batch of `runs` if
    `largest_because` says why. With money: the fastest that it pays for. With hours: the cheapest
    that ends in time. `no_bend` says that the critical batch is not known. Returns the run and the
    reason in words.
    """
    if budget.money is not None:
        return _fastest_for(runs, budget.money)
    if budget.hours is not None:
        return _cheapest_within(runs, budget.hours)
    smallest = min(run.batch_size for run in runs)
    sound = [run for run in runs if run.batch_size <= max(smallest, share * critical_batch)]
    if largest_because is not None:
        largest = max(run.batch_size for run in runs)
        sound = [run for run in runs if run.batch_size == largest]
    cheapest = min(run.device_hours for run in sound)
    allowed = [run for run in sound if run.device_hours <= WASTE * cheapest]
    # Among runs within 2 % of the fastest, fewer workers and a smaller batch are safer.
    fastest = min(run.seconds for run in allowed)
    near = [run for run in allowed if run.seconds <= 1.02 * fastest]
    best = min(near, key=lambda run: (run.workers, run.batch_size))
    text = largest_because or no_bend
    if text is None:
        text = (
            f"the critical batch is about {size_text(critical_batch)}; at batch "
            f"{best.batch_size:,} a sample is {100 * best.sample_efficiency:.0f} % as effective as "
            "at very small batches"
        )
    return best, text + _against_more_workers(best, runs, cheapest) + _against_larger(best, runs)


def _fastest_for(runs: Sequence[CandidateRun], money: float) -> tuple[CandidateRun, str]:
    costs = [run.cost for run in runs if run.cost is not None]
    if not costs:
        fix = "add [price] device_hour, or give hours (3h)"
        raise InvalidValueError("the cluster file has no price", fix)
    affordable = [run for run in runs if run.cost is not None and run.cost <= money]
    if not affordable:
        what = f"budget must be at least {_rounded_up(min(costs))}, the cost of the cheapest run"
        fix = "raise it, or lower the target"
        raise InvalidValueError(f"{what}, got {money:g}", fix, "budget")
    best = min(affordable, key=lambda run: (run.seconds, run.workers))
    return best, f"it is the fastest run for at most {money:g}, and costs {_digits(best.cost or 0)}"


def _cheapest_within(runs: Sequence[CandidateRun], hours: float) -> tuple[CandidateRun, str]:
    timely = [run for run in runs if run.seconds <= hours * 3600]
    if not timely:
        least = min(run.seconds for run in runs) / 3600
        what = f"budget must be at least {_rounded_up(least)} h, the time of the fastest run"
        fix = "raise it, or choose a larger cluster"
        raise InvalidValueError(f"{what}, got {hours:g} h", fix, "budget")
    best = min(timely, key=lambda run: (run.device_hours, run.workers))
    return best, f"it uses the least device time of the runs that end within {hours:g} h"


def _rounded_up(value: float) -> str:
    """Return a number of three digits that is not below `value`: a budget that is enough."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return _digits(math.ceil(value / unit) * unit)


def _digits(value: float) -> str:
    """Return a number with three digits or more, as 1230, 4.56 or 0.00789."""
    return f"{value:.{max(0, 2 - math.floor(math.log10(value or 1)))}f}"


def _against_more_workers(best: CandidateRun, runs: Sequence[CandidateRun], cheapest: float) -> str:
    text = ""
    more = [r for r in runs if r.batch_size == best.batch_size and r.workers == 2 * best.workers]
    if more and more[0].seconds >= best.seconds:
        text += f", and {more[0].workers} workers would be no faster ({more[0].limit})"
    elif more:
        gain = best.seconds / more[0].seconds
        text += f", while {more[0].workers} workers would be only {gain:.2f}× as fast"
    used = best.device_hours / cheapest
    return text + f"; it uses {used:.2f}× the device time of the cheapest run at such batches"


def _against_larger(best: CandidateRun, runs: Sequence[CandidateRun]) -> str:
    """Say what a larger batch would save, and cost in samples."""
    quick = min(runs, key=lambda run: (run.seconds, run.workers))
    if quick.batch_size <= best.batch_size or quick.seconds > MUCH_LESS * best.seconds:
        return ""
    return (
        f"; batch {quick.batch_size:,} on {counted(quick.workers, 'worker')} would need "
        f"{100 * quick.seconds / best.seconds:.0f} % of the time, and "
        f"{quick.samples / best.samples:.2g} times the samples: to choose by time "
        "or cost, give a budget"
    )


def uncertainty(run: CandidateRun, assumed: bool) -> str:
    """Say what makes most of the interval of a run's time and cost."""
    if assumed:
        return "its time is uncertain mostly because the epochs to the target are assumed"
    if run.samples_low is None:
        return "its time is more uncertain than the interval, since that of the samples is unknown"
    names = {"samples": "the samples to the target", "step time": "the seconds of a step"}
    factor = math.sqrt(run.seconds_high / run.seconds_low)
    return (
        f"its time is known to a factor of {factor:.2g}, mostly limited by {names[run.uncertain]}"
    )


def efficient(runs: Sequence[CandidateRun]) -> list[CandidateRun]:
    """Return the runs that no other beats in both time and device time, the fastest first."""
    frontier: list[CandidateRun] = []
    for run in sorted(runs, key=lambda run: (run.seconds, run.device_hours)):
        if not frontier or run.device_hours < frontier[-1].device_hours:
            frontier.append(run)
    return frontier


def worth_showing(runs: Sequence[CandidateRun], best: CandidateRun) -> list[CandidateRun]:
    """Return `best`, the fastest run of each batch size and of each number of workers."""
    # The last of each key stays: the fastest.
    slowest_first = sorted(runs, key=lambda run: run.seconds, reverse=True)
    by_workers = {run.workers: run for run in slowest_first}
    by_batch = {run.batch_size: run for run in slowest_first}
    shown = {best, *by_workers.values(), *by_batch.values()}
    return sorted(shown, key=lambda run: (run.workers, run.batch_size))
