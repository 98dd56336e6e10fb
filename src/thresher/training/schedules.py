"""The learning rate over a run: a function of the samples seen, independent of the workers.

Its peak and warm-up at a large batch follow from those of a base batch. With k = batch / base:
  none    lr                   warm-up
  linear  lr × k               warm-up            Goyal et al. 2017
  sqrt    lr × √k              warm-up            Krizhevsky 2014
  legw    lr × √k              warm-up × k        You et al. 2019
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from thresher.errors import InvalidValueError, nearest
from thresher.options import option

Rule = Literal["none", "linear", "sqrt", "legw"]
RULES = get_args(Rule)
ScheduleKind = Literal["constant", "step", "poly", "cosine"]
SCHEDULES = get_args(ScheduleKind)


@dataclass(frozen=True, kw_only=True)
class RateConfig:
    """The learning rate over a run."""

    lr: float = option(0.1, ge=0)
    """Learning rate at the base batch size."""
    base_batch: int | None = option(None, ge=1, only_with={"lr_rule": ("linear", "sqrt", "legw")})
    """Batch size that `lr` and `warmup_epochs` belong to; by default that of this run."""
    lr_rule: Rule = "none"
    """How the rate grows from the base batch size to that of this run."""
    warmup_epochs: float = option(0.0, ge=0)
    """Epochs in which the rate rises from zero; legw multiplies them."""
    schedule: ScheduleKind = "cosine"
    """How the rate falls after the warm-up."""
    step_epochs: tuple[float, ...] = option(
        (30.0, 60.0, 80.0), ge=0, only_with={"schedule": ("step",)}
    )
    """Epochs at which the step schedule multiplies the rate by 0.1."""
    poly_power: float = option(2.0, gt=0, only_with={"schedule": ("poly",)})
    """Exponent of the poly schedule."""


def idle_rule(values: Mapping[str, Any]) -> str:
    """Return a sentence if the `lr_rule` of a run with these options changes nothing, else ""."""
    rule = values.get("lr_rule") or "none"
    if rule == "none" or values.get("base_batch") or values.get("batch_schedule"):
        return ""
    return (
        f"lr_rule {rule} has no effect without base_batch, the batch size that lr belongs to: by "
        "default it is that of the run"
    )


def unreached(config: RateConfig, epochs: float, batch: int) -> list[str]:
    """Return a sentence for each part of a schedule that a run of so many epochs never comes to."""
    remarks, run = [], f"the run of {epochs:g} epochs"
    if config.schedule == "step" and min(config.step_epochs, default=0.0) >= epochs:
        remarks.append(f"the learning rate does not fall, because all step_epochs are after {run}")
    warmup = rate_of(config, batch).warmup_epochs
    if warmup > epochs:
        remarks.append(
            f"the learning rate does not reach its peak, because the warm-up of {warmup:g} epochs "
            f"is longer than {run}"
        )
    return remarks


@dataclass(frozen=True)
class Rate:
    """The peak learning rate and the warm-up at one batch size."""

    peak_lr: float
    warmup_epochs: float


def rate_of(config: RateConfig, batch: int) -> Rate:
    """Return the rate of a run whose global batch is `batch`."""
    base = batch if config.base_batch is None else config.base_batch
    return scaled_rate(config.lr_rule, config.lr, batch, base, config.warmup_epochs)


def scaled_rate(
    rule: str, lr: float, batch: int, base_batch: int, warmup_epochs: float = 0.0
) -> Rate:
    """Return the rate at `batch` if `lr` and `warmup_epochs` belong to `base_batch`."""
    if rule not in RULES:
        raise InvalidValueError(f'unknown rate rule "{rule}"', nearest(rule, RULES), "rule")
    for name, value, least in (("batch", batch, 1), ("base_batch", base_batch, 1), ("lr", lr, 0)):
        if value < least:
            raise InvalidValueError(f"{name} must be at least {least}, got {value}", "", name)
    k = batch / base_batch
    factor = {"none": 1.0, "linear": k, "sqrt": math.sqrt(k), "legw": math.sqrt(k)}[rule]
    return Rate(lr * factor, warmup_epochs * (k if rule == "legw" else 1.0))


@dataclass(frozen=True)
class Schedule:
    """The factor on the peak rate, by samples seen.

    Warm-up is linear from 0 to 1 and counts the step's own batch, so that the rate of the
    first step is not zero; the decay counts the samples before the step, so that the rate of the
    last is not.
    """

    kind: str
    total: int
    """Samples in the whole run."""
    warmup: float = 0
    """Samples over which the rate rises."""
    milestones: tuple[float, ...] = ()
    """For `step`: samples at which the rate is multiplied by 0.1."""
    power: float = 2.0
    """For `poly`: exponent of (1 - t)."""

    def __post_init__(self) -> None:
        if self.kind not in SCHEDULES:
            raise InvalidValueError(
                f'unknown schedule "{self.kind}"', nearest(self.kind, SCHEDULES), "kind"
            )
        if self.warmup < 0 or self.total < 0:
            raise InvalidValueError("total and warmup must be at least 0", "", "total")

    def factor(self, seen: float, batch: int) -> float:
        """Return the factor for the step on samples `seen` … `seen + batch`."""
        if seen < self.warmup:
            return min(1.0, (seen + batch) / self.warmup) * self._step(seen)
        return self._decay(seen)

    def _decay(self, seen: float) -> float:
        length = self.total - self.warmup
        t = min(1.0, (seen - self.warmup) / length) if length > 0 else 1.0
        if self.kind == "cosine":
            return 0.5 * (1 + math.cos(math.pi * t))
        if self.kind == "poly":
            return (1 - t) ** self.power
        return self._step(seen)

    def _step(self, seen: float) -> float:
        """Return 1 for every kind but `step`, whose milestones count during warm-up too."""
        if self.kind != "step":
            return 1.0
        return 0.1 ** sum(seen >= milestone for milestone in self.milestones)
