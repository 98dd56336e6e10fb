"""The runs that a plan chooses from, and the choice."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from thresher.errors import InvalidValueError
from thresher.scaling.cluster import Cluster, DevicePrecision
from thresher.scaling.compute import measured_here
from thresher.scaling.predict import powers
from thresher.scaling.profile import Profile
from thresher.scaling.sample_model import SampleModel
from thresher.scaling.step import StepConfig, limit_of, predict_step

WASTE = 2.0
"""A recommended run uses at most this many times the device time of the cheapest one."""
SAFE = 0.5
"""Largest batch recommended without a budget, in critical batches: half of it costs 1.5 times the
samples of the smallest batch and leaves room for an estimate that is off by two."""


@dataclass(frozen=True)
class Machine:
    """What determines the seconds of a step: the model's profile on a cluster."""

    profile: Profile
    cluster: Cluster
    precision: DevicePrecision = "fp32"
    overhead: float = 1.0
    """Seconds of a real training step over those of the network alone."""

    def with_overhead(self, batch: int, images_per_s: float) -> "Machine":
        """Return this machine with the overhead that a run at `batch` had, by reading, augmentation
        and logging; it is known only if the run used the cluster's own device, else 1."""
        if not measured_here(self.profile, self.cluster, self.precision):
            return replace(self, overhead=1.0)
        config = StepConfig(scaling="strong", batch_size=batch)
        bare = predict_step(self.profile, self.cluster, 1, config)
        overhead = max(1.0, batch / images_per_s / bare.step_s)
        return replace(self, overhead=overhead)


@dataclass(frozen=True)
class CandidateRun:
    """One batch size on one number of workers."""

    workers: int
    batch_size: int
    lr: float
    warmup_epochs: float
    epochs: float
    samples: float
    steps: int
    step_s: float
    seconds: float
    seconds_low: float
    seconds_high: float
    device_hours: float
    cost: float | None
    """In the currency of the cluster's file; None if it gives no price."""
    efficiency: float
    """Images per second against perfect scaling of one worker at this batch."""
    sample_efficiency: float
    """E_min/E: progress per sample against the smallest batch."""
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

    Both are powers of two; batches go up to eight times the critical one. Runs that do not fit the
    memory of a device are left out.
    """
    profile, cluster = machine.profile, machine.cluster
    largest = int(min(samples.train_samples, max(samples.batch_size, 8 * samples.critical_batch)))
    runs = [
        candidate_run(samples, machine, batch, workers)
        for batch in powers(min(8, largest), largest)
        for workers in powers(1, min(max_workers, cluster.capacity, batch))
        if memory_bytes(profile, batch / workers) <= cluster.device.memory_gb * 1e9
    ]
    if not runs:
        what = f"{profile.model} does not fit the memory of {cluster.device.name} at any batch"
        raise InvalidValueError(what, "choose a cluster with larger devices")
    return runs


def candidate_run(samples: SampleModel, machine: Machine, batch: int, workers: int) -> CandidateRun:
    """Predict time and cost of one run."""
    cluster = machine.cluster
    config = StepConfig(scaling="strong", batch_size=batch, precision=machine.precision)
    levels = [predict_step(machine.profile, cluster, workers, config, level) for level in range(3)]
    alone = predict_step(machine.profile, cluster, 1, config)
    needed = samples.samples_at(batch)
    steps = math.ceil(needed / batch)
    seconds = [steps * level.step_s * machine.overhead for level in levels]
    hours = workers * seconds[1] / 3600
    return CandidateRun(
        workers=workers,
        batch_size=batch,
        lr=samples.rate_at(batch),
        warmup_epochs=samples.warmup_at(batch),
        epochs=needed / samples.train_samples,
        samples=needed,
        steps=steps,
        step_s=levels[1].step_s * machine.overhead,
        seconds=seconds[1],
        seconds_low=min(seconds),
        seconds_high=max(seconds),
        device_hours=hours,
        cost=None if cluster.device_hour is None else hours * cluster.device_hour,
        efficiency=alone.step_s / (workers * levels[1].step_s),
        sample_efficiency=samples.samples_min / needed,
        limit=limit_of(levels[1], alone, batch, workers, "strong"),
    )


def memory_bytes(profile: Profile, batch: float) -> float:
    """Estimate the memory of a worker: weights, gradients, momentum and activations."""
    return 3 * profile.gradient_bytes + batch * sum(x.activation_bytes for x in profile.layers)


def recommend(
    runs: Sequence[CandidateRun], critical_batch: float, budget: Budget
) -> tuple[CandidateRun, str]:
    """Choose a run.

    Without a budget: the fastest that uses at most twice the device time of the cheapest, at no
    more than half the critical batch. With money: the fastest that it pays for. With hours: the
    cheapest that ends in time. Returns the run and the reason in words.
    """
    if budget.money is not None:
        return _fastest_for(runs, budget.money)
    if budget.hours is not None:
        return _cheapest_within(runs, budget.hours)
    smallest = min(run.batch_size for run in runs)
    safe = [run for run in runs if run.batch_size <= max(smallest, SAFE * critical_batch)]
    cheapest = min(run.device_hours for run in safe)
    allowed = [run for run in safe if run.device_hours <= WASTE * cheapest]
    # Among runs within 2 % of the fastest, fewer workers and a smaller batch are safer.
    fastest = min(run.seconds for run in allowed)
    near = [run for run in allowed if run.seconds <= 1.02 * fastest]
    best = min(near, key=lambda run: (run.workers, run.batch_size))
    return best, _reason(best, runs, critical_batch, cheapest)


def _fastest_for(runs: Sequence[CandidateRun], money: float) -> tuple[CandidateRun, str]:
    costs = [run.cost for run in runs if run.cost is not None]
    if not costs:
        fix = "add [price] device_hour, or give hours (3h)"
        raise InvalidValueError("the cluster file has no price", fix)
    affordable = [run for run in runs if run.cost is not None and run.cost <= money]
    if not affordable:
        what = f"budget must be at least {min(costs):.2f}, the cost of the cheapest run"
        fix = "raise it, or lower the target"
        raise InvalidValueError(f"{what}, got {money:g}", fix, "budget")
    best = min(affordable, key=lambda run: (run.seconds, run.workers))
    return best, f"it is the fastest run for at most {money:g}, and costs {best.cost:.2f}"


def _cheapest_within(runs: Sequence[CandidateRun], hours: float) -> tuple[CandidateRun, str]:
    timely = [run for run in runs if run.seconds <= hours * 3600]
    if not timely:
        least = min(run.seconds for run in runs) / 3600
        what = f"budget must be at least {least:.2f} h, the time of the fastest run"
        fix = "raise it, or choose a larger cluster"
        raise InvalidValueError(f"{what}, got {hours:g} h", fix, "budget")
    best = min(timely, key=lambda run: (run.device_hours, run.workers))
    return best, f"it uses the least device time of the runs that end within {hours:g} h"


def _reason(
    best: CandidateRun, runs: Sequence[CandidateRun], critical: float, cheapest: float
) -> str:
    text = (
        f"the critical batch is about {critical:,.0f}; at batch {best.batch_size:,} a sample is "
        f"{100 * best.sample_efficiency:.0f} % as effective as at the smallest batch"
    )
    more = [r for r in runs if r.batch_size == best.batch_size and r.workers == 2 * best.workers]
    if more and more[0].seconds >= best.seconds:
        text += f", and {more[0].workers} workers would be no faster ({more[0].limit})"
    elif more:
        gain = best.seconds / more[0].seconds
        text += f", while {more[0].workers} workers would be only {gain:.2f}× as fast"
    used = best.device_hours / cheapest
    return text + f"; it uses {used:.2f}× the device time of the cheapest run"


def worth_showing(runs: Sequence[CandidateRun], best: CandidateRun) -> list[CandidateRun]:
    """Return `best`, the fastest run of each batch size and of each number of workers."""
    # The last of each key stays: the fastest.
    slowest_first = sorted(runs, key=lambda run: run.seconds, reverse=True)
    by_workers = {run.workers: run for run in slowest_first}
    by_batch = {run.batch_size: run for run in slowest_first}
    shown = {best, *by_workers.values(), *by_batch.values()}
    return sorted(shown, key=lambda run: (run.workers, run.batch_size))
