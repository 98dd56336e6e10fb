"""Which batch, rate, warm-up and number of workers: time, cost and a reason for each.

Statistics: with the critical batch B_crit (see pilot.py), reaching a target takes
S = S_min(1 + B_crit/B) steps and E = E_min(1 + B/B_crit) samples, which is
(S/S_min − 1)(E/E_min − 1) = 1. Machines: a profile and a cluster give the seconds of a step.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from thresher.errors import ThresherError
from thresher.scaling.cluster import Cluster
from thresher.scaling.compute import measured_here
from thresher.scaling.predict import Setting, limit_of, step
from thresher.scaling.profile import Profile

WASTE = 2.0
"""A plan may use up to twice the device time of the thriftiest one."""
SAFE = 0.5
"""The largest batch recommended unasked, in critical batches: half of it costs 1.5 times the
samples of the smallest batch, and leaves room for an estimate that is off by two."""
WARMUP = 0.01
WARMUP_BATCH = 256
"""Warm-up share of the epochs, times √(B/256): 5 of 90 epochs at 7,680, 10 at 30,720 (claim M2)."""
WARMUP_MOST = 0.2


def rate_at(batch: float, critical: float, base_batch: float, base_lr: float) -> float:
    """ε(B) = ε_max/(1 + B_crit/B): linear in the batch while it is small, then flat."""
    return base_lr * (1 + critical / base_batch) / (1 + critical / batch)


@dataclass(frozen=True)
class Statistics:
    """What the pilot says about samples: it took `samples` to the target at batch `batch_size`."""

    critical_batch: float
    samples: float
    batch_size: int
    lr: float
    train_samples: int

    @property
    def samples_min(self) -> float:
        return self.samples / (1 + self.batch_size / self.critical_batch)

    def samples_at(self, batch: float) -> float:
        """E(B) = E_min(1 + B/B_crit)."""
        return self.samples_min * (1 + batch / self.critical_batch)

    def rate_at(self, batch: float) -> float:
        return rate_at(batch, self.critical_batch, self.batch_size, self.lr)

    def warmup_at(self, batch: float) -> float:
        """Epochs of warm-up."""
        epochs = self.samples_at(batch) / self.train_samples
        return epochs * min(WARMUP_MOST, WARMUP * math.sqrt(batch / WARMUP_BATCH))


@dataclass(frozen=True)
class Option:
    """One way to run it."""

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
    efficiency: float
    """Images per second against perfect scaling of one worker at this batch."""
    sample_efficiency: float
    """E_min/E: what the batch's size leaves of each sample's worth."""
    limit: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Budget:
    """At most so much money, or so many hours; neither is no limit."""

    money: float | None = None
    hours: float | None = None


def parse_budget(text: str | None) -> Budget:
    """`250` (money, in the cluster's currency) or `3h` (hours)."""
    if text is None:
        return Budget()
    hours = text.strip().endswith("h")
    try:
        value = float(text.strip().removesuffix("h"))
    except ValueError:
        raise ThresherError(f'"{text}" is not a budget', "give money (250) or hours (3h)") from None
    if not value > 0 or math.isinf(value):
        raise ThresherError(f"a budget of {text} buys nothing", "give money (250) or hours (3h)")
    return Budget(hours=value) if hours else Budget(money=value)


def powers(low: int, high: int) -> list[int]:
    """low, 2·low, 4·low … up to high."""
    found = []
    while low <= high:
        found.append(low)
        low *= 2
    return found


def options(
    stats: Statistics,
    profile: Profile,
    cluster: Cluster,
    precision: str = "fp32",
    max_workers: int = 1024,
    overhead: float = 1.0,
) -> list[Option]:
    """Every batch (powers of two to eight times the critical one) on every number of workers that
    it can be split over and that the devices' memory allows."""
    largest = int(min(stats.train_samples, max(stats.batch_size, 8 * stats.critical_batch)))
    found = []
    for batch in powers(min(8, largest), largest):
        for workers in powers(1, min(max_workers, cluster.capacity, batch)):
            if memory_bytes(profile, batch / workers) > cluster.device.memory_gb * 1e9:
                continue
            found.append(option(stats, profile, cluster, precision, batch, workers, overhead))
    if not found:
        raise ThresherError(
            f"{profile.model} does not fit the memory of {cluster.device.name} at any batch",
            "choose a cluster with larger devices",
        )
    return found


def overhead(
    profile: Profile, cluster: Cluster, precision: str, batch: int, images_per_s: float
) -> float:
    """How much longer than its network's step a real training step took in the pilot.

    Reading, augmentation, logging: known only where the pilot ran on the cluster's own device;
    1 elsewhere.
    """
    if not measured_here(profile, cluster, precision):
        return 1.0
    bare = step(profile, cluster, 1, Setting(scaling="strong", batch_size=batch))
    return max(1.0, batch / images_per_s / bare.step_s)


def option(
    stats: Statistics,
    profile: Profile,
    cluster: Cluster,
    precision: str,
    batch: int,
    workers: int,
    overhead: float = 1.0,
) -> Option:
    setting = Setting(scaling="strong", batch_size=batch, precision=precision)
    levels = [step(profile, cluster, workers, setting, level) for level in range(3)]
    alone = step(profile, cluster, 1, setting)
    samples = stats.samples_at(batch)
    steps = math.ceil(samples / batch)
    seconds = [steps * level.step_s * overhead for level in levels]
    hours = workers * seconds[1] / 3600
    return Option(
        workers=workers,
        batch_size=batch,
        lr=stats.rate_at(batch),
        warmup_epochs=stats.warmup_at(batch),
        epochs=samples / stats.train_samples,
        samples=samples,
        steps=steps,
        step_s=levels[1].step_s * overhead,
        seconds=seconds[1],
        seconds_low=min(seconds),
        seconds_high=max(seconds),
        device_hours=hours,
        cost=None if cluster.device_hour is None else hours * cluster.device_hour,
        efficiency=alone.step_s / (workers * levels[1].step_s),
        sample_efficiency=stats.samples_min / samples,
        limit=limit_of(levels[1], alone, batch, workers, "strong"),
    )


def memory_bytes(profile: Profile, batch: float) -> float:
    """Weights, gradients and momentum, and the activations that the backward pass needs."""
    return 3 * profile.gradient_bytes + batch * sum(x.activation_bytes for x in profile.layers)


def recommend(found: Sequence[Option], critical_batch: float, budget: Budget) -> tuple[Option, str]:
    """The option to take, and why, in words.

    Without a budget: the fastest that uses at most twice the device time of the thriftiest, at no
    more than half the critical batch. Money: the fastest that it buys. Hours: the cheapest that
    is in time.
    """
    if budget.money is not None:
        if found[0].cost is None:
            raise ThresherError(
                "the cluster's file has no price", "add [price] device_hour, or give hours (3h)"
            )
        bought = [o for o in found if o.cost is not None and o.cost <= budget.money]
        if not bought:
            least = min(o.cost for o in found if o.cost is not None)
            raise ThresherError(
                f"{budget.money:g} buys no run: the cheapest costs {least:.2f}",
                "raise the budget, or lower the target",
            )
        best = min(bought, key=lambda o: (o.seconds, o.workers))
        return best, f"the fastest run that {budget.money:g} buys; it costs {best.cost:.2f}"
    if budget.hours is not None:
        timely = [o for o in found if o.seconds <= budget.hours * 3600]
        if not timely:
            least = min(o.seconds for o in found) / 3600
            raise ThresherError(
                f"no run ends within {budget.hours:g} h: the fastest takes {least:.2f} h",
                "raise the budget, or choose a larger cluster",
            )
        best = min(timely, key=lambda o: (o.device_hours, o.workers))
        return best, f"the thriftiest run that ends within {budget.hours:g} h"
    least = min(o.batch_size for o in found)
    sound = [o for o in found if o.batch_size <= max(least, SAFE * critical_batch)]
    thrifty = min(o.device_hours for o in sound)
    allowed = [o for o in sound if o.device_hours <= WASTE * thrifty]
    # Among equals in time (within 2 %) the smaller batch and the fewer workers are the safer.
    fastest = min(o.seconds for o in allowed)
    near = [o for o in allowed if o.seconds <= 1.02 * fastest]
    best = min(near, key=lambda o: (o.workers, o.batch_size))
    return best, _reason(best, found, critical_batch, thrifty)


def _reason(best: Option, found: Sequence[Option], critical: float, thrifty: float) -> str:
    text = (
        f"the pilots put the critical batch at {critical:,.0f}; at {best.batch_size:,} "
        f"each sample is still worth {100 * best.sample_efficiency:.0f} % of its best"
    )
    more = [o for o in found if o.batch_size == best.batch_size and o.workers == 2 * best.workers]
    if more and more[0].seconds >= best.seconds:
        text += f", and {more[0].workers} workers would be no faster ({more[0].limit})"
    elif more:
        gain = best.seconds / more[0].seconds
        text += f", while {more[0].workers} workers would be only {gain:.2f}× as fast"
    used = best.device_hours / thrifty
    return text + f"; it uses {used:.2f}× the device time of the thriftiest run"


def thin(found: Sequence[Option], keep: Option) -> list[Option]:
    """For each batch and number of workers on the way to the best: the rows worth reading.

    Per number of workers the fastest batch, and per batch the fastest number of workers.
    """
    by_workers: dict[int, Option] = {}
    by_batch: dict[int, Option] = {}
    for o in found:
        for table, key in ((by_workers, o.workers), (by_batch, o.batch_size)):
            if key not in table or o.seconds < table[key].seconds:
                table[key] = o
    kept = {*by_workers.values(), *by_batch.values(), keep}
    return sorted(kept, key=lambda o: (o.workers, o.batch_size))
