"""How many samples a batch size needs to reach a target, and at which learning rate.

With the critical batch B_crit, reaching a target takes S = S_min(1 + B_crit/B) steps and
E = E_min(1 + B/B_crit) samples, which is (S/S_min − 1)(E/E_min − 1) = 1.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

WARMUP = 0.7175
"""Warm-up is this share of the epochs, divided by the root of the steps per epoch. It gives both
published points (McCord and Dash 2021: 5 of 90 epochs at batch 7,680 on ImageNet, 10 at 30,720)."""
WARMUP_MOST = 0.2


def rate_at(batch: float, critical: float, base_batch: float, base_lr: float) -> float:
    """Return ε(B) = ε_max/(1 + B_crit/B): linear in the batch while it is small, then flat."""
    return base_lr * (1 + critical / base_batch) / (1 + critical / batch)


def size_text(batch: float) -> str:
    """Return a critical batch in words; one below 10 has two digits."""
    return f"{batch:,.0f}" if batch >= 10 else f"{batch:.2g}"


def rate_between(batch: int, critical: float, rates: Mapping[int, float]) -> float:
    """Return the rate at a batch size by those that are known.

    Between two of them it is interpolated in the logarithm of both; beyond them the nearest one
    changes by the rule, as in `rate_at`.
    """
    low = max((known for known in rates if known <= batch), default=None)
    high = min((known for known in rates if known >= batch), default=None)
    if low is None or high is None:
        near = min(rates) if low is None else low
        return rate_at(batch, critical, near, rates[near])
    if low == high:
        return rates[low]
    share = math.log(batch / low) / math.log(high / low)
    return rates[low] ** (1 - share) * rates[high] ** share


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float
    known: bool = True
    """False if nothing is known about the interval, whose ends are then the value."""


@dataclass(frozen=True)
class SampleModel:
    """Samples to the target by batch size, from one batch size that was measured."""

    critical_batch: float
    samples: float
    """Samples to the target at `batch_size`, by the form."""
    batch_size: int
    lr: float | None
    """A learning rate that works at `batch_size`; None if unknown."""
    train_samples: int
    largest: float = math.inf
    """The largest batch to consider."""
    batches: tuple[int, ...] = ()
    """The batch sizes to consider; by default powers of two."""
    rates: Mapping[int, float] = field(default_factory=dict)
    """Learning rates that work at other batch sizes; there they count instead of the rule."""
    measured: Mapping[float, float] = field(default_factory=dict)
    """Samples to the target of batch sizes for which the form does not count."""
    bends: tuple[tuple[float, float], ...] = ()
    """(batch, factor) by which the samples differ from the form, ascending: see `SampleFit`."""
    draws: tuple[tuple[float, float], ...] = field(default=(), repr=False)
    """(E_min, B_crit) that are as likely as the values above; empty if unknown."""

    @property
    def samples_min(self) -> float:
        """Samples to the target in the limit of small batches, or the fewest measured."""
        if self.measured:
            return min(self.measured.values())
        return min([self.samples_at(0.0), *(self.samples_at(batch) for batch, _ in self.bends)])

    def samples_at(self, batch: float) -> float:
        """Return the samples to the target, E(B) = E_min(1 + B/B_crit) with what it misses."""
        if batch in self.measured:
            return self.measured[batch]
        growth = (1 + batch / self.critical_batch) / (1 + self.batch_size / self.critical_batch)
        return self.samples * growth * self._bend(batch)

    def estimate_at(self, batch: float) -> Estimate:
        """Return `samples_at` with its interval, which is not known without draws."""
        bend = self._bend(batch)
        draws = tuple((least * bend, critical) for least, critical in self.draws)
        return estimate(self.samples_at(batch), batch, draws)

    def _bend(self, batch: float) -> float:
        """Interpolate the factors in the logarithm; beyond them the nearest one counts."""
        if not self.bends:
            return 1.0
        batches, factors = np.log(np.array(self.bends).T)
        return math.exp(float(np.interp(math.log(max(batch, 1e-9)), batches, factors)))

    def rate_at(self, batch: int) -> float | None:
        """Return the learning rate at a batch size; None if none is known."""
        rates = self.rates or ({} if self.lr is None else {self.batch_size: self.lr})
        return rate_between(batch, self.critical_batch, rates) if rates else None

    def warmup_at(self, batch: float) -> float:
        """Return the epochs of warm-up at a batch size."""
        epochs = self.samples_at(batch) / self.train_samples
        steps_per_epoch = self.train_samples / batch
        return epochs * min(WARMUP_MOST, WARMUP / math.sqrt(steps_per_epoch))


def estimate(value: float, batch: float, draws: tuple[tuple[float, float], ...]) -> Estimate:
    """Return the samples at a batch with the 95 % interval of the draws of (E_min, B_crit)."""
    if not draws:
        return Estimate(value, value, value, known=False)
    least, critical = np.array(draws).T
    low, high = np.quantile(least * (1 + batch / critical), [0.025, 0.975])
    # The value is not among the draws, and must not lie outside of its interval.
    return Estimate(value, min(value, float(low)), max(value, float(high)))
