"""Plan from a table of batch sizes and samples to a target, in place of pilots."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from thresher.errors import InvalidValueError
from thresher.scaling.batch_table import BatchRow, read_batch_table
from thresher.scaling.predict import powers
from thresher.scaling.sample_fit import SampleFit, fit_samples
from thresher.scaling.sample_model import SampleModel, estimate, rate_between, size_text
from thresher.training.batch_growth import SAFE
from thresher.training.config import TrainConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BatchEstimate:
    """What the fit says about one batch size."""

    batch_size: int
    samples: float
    samples_low: float | None
    """Low end of the 95 % interval; None if unknown."""
    samples_high: float | None
    steps: int
    sample_efficiency: float
    """E_min/E: progress per sample against very small batches."""
    lr: float | None
    """None if the table has no rates and none was given."""
    measured: float | None
    """Samples in the table, the geometric mean of repeats; None if the table lacks this batch."""


@dataclass(frozen=True)
class BatchPlan:
    """A fitted table, and what follows from it without a model, data or cluster."""

    fit: SampleFit
    """The fit to the target that is planned for."""
    targets: tuple[SampleFit, ...]
    """The fit to every target of the table."""
    rates: dict[int, float]
    """Learning rates by batch size, as far as they are known."""
    recommended: BatchEstimate
    reason: str
    """Why that batch is recommended."""
    rows: list[BatchEstimate]
    settings: dict[int, TrainConfig]
    """Configurations by batch size, if the table is that of a study."""

    @property
    def largest(self) -> int:
        """The largest batch of the table."""
        return self.fit.points[-1].batch

    def sample_model(self, train_samples: int) -> SampleModel:
        """Return the samples by batch size for a data set of `train_samples`."""
        fit, best = self.fit, self.recommended
        # Where the form does not fit, the rows of the table count, and nothing between them.
        rows = [row for row in self.rows if fit.fits or row.measured]
        return SampleModel(
            *(fit.b_crit, best.samples, best.batch_size, best.lr, train_samples),
            largest=self.largest if fit.fits else best.batch_size,
            batches=tuple(row.batch_size for row in rows),
            rates=self.rates,
            measured={} if fit.fits else {row.batch: row.samples for row in fit.points},
            draws=fit.draws,
        )


def plan_batches(
    table: Path,
    target: float | None = None,
    samples_per_epoch: float | None = None,
    lr: float | None = None,
    seed: int = 0,
) -> BatchPlan:
    """Fit a table and recommend a batch size: the largest that costs 1.25 times E_min or less.

    If the form does not fit, it is 1.25 times the samples of the table's best batch size. `target`
    is the one to plan for (default: that which needs most samples), `lr` the rate at the smallest
    batch if the table has none.
    """
    rows = read_batch_table(table, samples_per_epoch)
    by_target: dict[str, list[BatchRow]] = {}
    for row in rows:
        by_target.setdefault(row.target, []).append(row)
    fits = _fit_targets(table, by_target, seed)
    fit = _chosen(table, fits, target)
    rates = _rates(by_target[fit.target])
    if not rates and lr is not None:
        rates = {fit.points[0].batch: lr}
    estimates = _estimates(fit, rates)
    best = _recommended(fit, estimates)
    return BatchPlan(
        fit=fit,
        targets=tuple(fits),
        rates=rates,
        recommended=best,
        reason=_reason(fit, best),
        rows=estimates,
        settings={row.batch: row.config for row in by_target[fit.target] if row.config is not None},
    )


def _recommended(fit: SampleFit, estimates: Sequence[BatchEstimate]) -> BatchEstimate:
    """Return the largest batch that costs 1 + SAFE times E_min or less by the fit.

    Where the form does not fit, the rows of the table decide instead: the largest batch with at
    most that many times the samples of the table's best.
    """
    if fit.fits:
        safe = max(estimates[0].batch_size, SAFE * fit.b_crit)
        return [row for row in estimates if row.batch_size <= safe][-1]
    least = min(point.samples for point in fit.points)
    near = [point.batch for point in fit.points if point.samples <= (1 + SAFE) * least]
    return next(row for row in estimates if row.batch_size == near[-1])


def _fit_targets(table: Path, rows: dict[str, list[BatchRow]], seed: int) -> list[SampleFit]:
    usable = [group for group in rows.values() if len({row.batch for row in group}) > 1]
    if not usable:
        what = f"no target in {table} has rows of two batch sizes"
        if len(rows) == 1:
            what = f"{table} has rows of one batch size only"
        raise InvalidValueError(what, "add rows of another batch size")
    for target, group in rows.items():
        if group not in usable:
            only = f"only batch {group[0].batch:,}"
            logger.warning("target %s of %s has %s and is left out", target, table, only)
    return [fit_samples(group, seed) for group in usable]


def _chosen(table: Path, fits: Sequence[SampleFit], target: float | None) -> SampleFit:
    if target is None:
        return max(fits, key=lambda fit: fit.e_min)
    for fit in fits:
        if fit.target == f"{target:g}":
            return fit
    known = ", ".join(fit.target for fit in fits if fit.target) or "no column target"
    what = f"target_accuracy {target:g} is not a target of {table} with two batch sizes"
    raise InvalidValueError(what, f"it has {known}", "target_accuracy")


def _rates(rows: Sequence[BatchRow]) -> dict[int, float]:
    """Return the geometric mean of the rates at each batch size that has any."""
    logs: dict[int, list[float]] = {}
    for row in rows:
        if row.lr is not None:
            logs.setdefault(row.batch, []).append(math.log(row.lr))
    return {batch: math.exp(sum(values) / len(values)) for batch, values in sorted(logs.items())}


def _estimates(fit: SampleFit, rates: dict[int, float]) -> list[BatchEstimate]:
    """Return the batches of the table and the powers of two between them."""
    measured = {row.batch: row.samples for row in fit.points}
    smallest, largest = min(measured), max(measured)
    between = [batch for batch in powers(1, largest) if batch >= smallest]
    estimates = []
    for batch in sorted({*measured, *between}):
        samples = estimate(fit.samples_at(batch), batch, fit.draws)
        rate = rate_between(batch, fit.b_crit, rates) if rates else None
        estimates.append(
            BatchEstimate(
                batch_size=batch,
                samples=samples.value,
                samples_low=samples.low if samples.known else None,
                samples_high=samples.high if samples.known else None,
                steps=math.ceil(samples.value / batch),
                sample_efficiency=fit.e_min / samples.value,
                lr=rate,
                measured=measured.get(batch),
            )
        )
    return estimates


def interval_text(fit: SampleFit) -> str:
    """Return the critical batch with its interval, in words."""
    if fit.no_bend is not None:
        smallest, largest = fit.points[0].batch, fit.points[-1].batch
        return f"below {smallest:,}" if fit.below else f"above {largest:,}"
    if not fit.draws:
        return f"{size_text(fit.b_crit)} (no interval: two points)"
    low = "unknown" if fit.b_crit_low is None else size_text(fit.b_crit_low)
    high = "unbounded" if fit.b_crit_high is None else size_text(fit.b_crit_high)
    return f"{size_text(fit.b_crit)} (95 % interval {low} to {high})"


def _reason(fit: SampleFit, best: BatchEstimate) -> str:
    if not fit.fits:
        return (
            f"the form does not fit, and batch {best.batch_size:,} is the largest of the table "
            f"that needs at most {1 + SAFE:g} times the samples of its best"
        )
    if fit.no_bend is not None:
        less = "no fewer steps" if fit.below else "no more samples"
        return (
            f"the critical batch is {interval_text(fit)}; larger batches of the table take {less}"
        )
    return (
        f"the critical batch is {interval_text(fit)}; at batch {best.batch_size:,} a sample is "
        f"{100 * best.sample_efficiency:.0f} % as effective as at very small batches"
    )
