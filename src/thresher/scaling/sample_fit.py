"""Fit E(B) = E_min(1 + B/B_crit) to a table of batch sizes and samples to a target.

Weighted least squares in the logarithm. The rows of a batch size are averaged; the variance of
that mean is σ²/n + τ²: σ² is the scatter of repeats, n the number of runs, and τ² what the form
itself misses. A table of few batch sizes cannot tell τ², so it is at least that of other tables.
Larger tables estimate it by the method of moments (DerSimonian and Laird 1986); it is taken to be
none where repeats explain the residuals (Bancroft 1964). Intervals are from a parametric bootstrap
with that variance; the part that the table estimates is as uncertain as its degrees of freedom.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from thresher.errors import InvalidValueError
from thresher.scaling.batch_table import BatchRow
from thresher.scaling.branch_fit import BEYOND, DRAWS, LEVEL, critical_interval

GRID = 800
MISFIT = 0.10
"""The form does not fit if a batch is off by more, and by more than the scatter of repeats."""
POOLED = 0.25
"""Residuals as large as this likely come from the scatter of repeats, and are pooled with it."""
FORM_ERROR = 0.11
"""τ of tables that cannot tell it: the root mean square of the 17 tables with tuned rates in
docs/scaling.md (`python -m benchmarks.form_error`). The mean of τ², not the median, since the
variance of a prediction is the mean one."""
ENOUGH = 5
"""From so many batch sizes on, a table estimates its own τ. Below, its residuals have one or two
degrees of freedom: an estimate of τ could be low by a factor of 32 or 6."""


@dataclass(frozen=True)
class FittedPoint:
    """One batch size of the table beside the fit."""

    batch: int
    samples: float
    """Samples to the target, the geometric mean of the rows."""
    fitted: float
    runs: float


@dataclass(frozen=True)
class SampleFit:
    """Result of `fit_samples`."""

    target: str
    """The target that the rows reached; "" if the table does not say."""
    e_min: float
    """Samples to the target in the limit of small batches."""
    s_min: float
    """Steps to the target at the largest batch."""
    b_crit: float
    """The critical batch, E_min/S_min."""
    b_crit_low: float | None
    """Low end of its 95 % interval; None if the table gives no bound."""
    b_crit_high: float | None
    """High end; None if the table gives no bound."""
    residuals: tuple[float, ...]
    """Samples of the table / fitted − 1, by ascending batch size."""
    points: tuple[FittedPoint, ...]
    method: Literal["least squares", "two points"]
    fits: bool
    """Whether the form describes the table."""
    warnings: tuple[str, ...]
    draws: tuple[tuple[float, float], ...] = field(default=(), repr=False)
    """(E_min, B_crit) of the bootstrap; empty if there is no interval."""
    bends: tuple[tuple[float, float], ...] = field(default=(), repr=False)
    """(batch, factor): the samples expected there, relative to the form. The table's means are
    moved towards the form as far as repeats explain the difference. Empty without repeats."""

    @property
    def no_bend(self) -> str | None:
        """Why the table does not show the critical batch; None if it does.

        `b_crit` is then the end of the search, and not an estimate.
        """
        return _no_bend(self.points[0].batch, self.points[-1].batch, self.b_crit)

    @property
    def below(self) -> bool:
        """Whether all batches of the table are far above the critical batch."""
        return self.no_bend is not None and self.b_crit < self.points[0].batch

    def samples_at(self, batch: float) -> float:
        """Return the samples to the target, E_min(1 + B/B_crit)."""
        return self.e_min * (1 + batch / self.b_crit)


@dataclass(frozen=True)
class _Points:
    """The rows by batch size, in the logarithm of samples."""

    batches: np.ndarray
    means: np.ndarray
    runs: np.ndarray
    scatter: float | None
    """Variance of a run within a batch size; None without repeats."""
    freedom: int
    """Degrees of freedom of `scatter`."""


@dataclass(frozen=True)
class _Law:
    """The fit in logarithms."""

    critical: float
    least: float
    estimated: np.ndarray
    """Variance of the mean of each batch size, as far as the table shows it."""
    freedom: int
    """Degrees of freedom of `estimated`."""
    known: float = 0.0
    """Variance beside it that is taken as known."""
    form: float = 0.0
    """τ² in both together."""

    def at(self, batches: np.ndarray) -> np.ndarray:
        return self.least + np.log1p(batches / math.exp(self.critical))


def fit_samples(rows: Sequence[BatchRow], seed: int = 0) -> SampleFit:
    """Fit the rows of one target; needs two batch sizes or more.

    Args:
        rows: Rows of one target; repeats are several rows of a batch size.
        seed: Seed of the bootstrap.
    """
    target = rows[0].target if rows else ""
    points = _points(rows)
    count = len(points.batches)
    if count < 2:
        only = f"only batch {points.batches[0]:,.0f}" if count else "no rows"
        where = f" to target {target}" if target else ""
        raise InvalidValueError(f"the table has {only}{where}", "add rows of another batch size")
    law = _fit_points(points)
    fitted = law.at(points.batches)
    errors = points.means - fitted
    fits = not _misfit(points, errors)
    draws = _bootstrap(points, law, seed)
    grid = np.exp(_grid(points))
    low, high = critical_interval(draws[:, 1], math.exp(law.critical), grid, 0.01)
    columns = (points.batches, np.exp(points.means), np.exp(fitted), points.runs)
    cells = zip(*(column.tolist() for column in columns), strict=True)
    return SampleFit(
        target=target,
        e_min=math.exp(law.least),
        s_min=math.exp(law.least - law.critical),
        b_crit=math.exp(law.critical),
        b_crit_low=low,
        b_crit_high=high,
        residuals=tuple(np.expm1(errors).tolist()),
        points=tuple(FittedPoint(int(batch), *rest) for batch, *rest in cells),
        method="two points" if count == 2 else "least squares",
        fits=fits,
        warnings=tuple(_warnings(points, math.exp(law.critical), np.expm1(errors), fits)),
        draws=tuple((float(e), float(b)) for e, b in draws),
        bends=_bends(points, errors, law.form),
    )


def _bends(points: _Points, errors: np.ndarray, form: float) -> tuple[tuple[float, float], ...]:
    """Return `SampleFit.bends`: the expected errors of the form, of variance τ² (`form`)."""
    if points.scatter is None or form == 0:
        return ()
    expected = errors * form / (form + points.scatter / points.runs)
    return tuple(zip(points.batches.tolist(), np.exp(expected).tolist(), strict=True))


def _points(rows: Sequence[BatchRow]) -> _Points:
    by_batch: dict[int, list[BatchRow]] = defaultdict(list)
    for row in rows:
        by_batch[row.batch].append(row)
    batches = sorted(by_batch)
    means, runs = [], []
    squares, freedom = 0.0, 0
    for batch in batches:
        logs = np.log([row.samples for row in by_batch[batch]])
        weights = np.array([row.runs for row in by_batch[batch]])
        means.append(float(np.average(logs, weights=weights)))
        runs.append(float(weights.sum()))
        squares += float((weights * (logs - means[-1]) ** 2).sum())
        freedom += len(logs) - 1
    scatter = squares / freedom if freedom else None
    return _Points(np.array(batches, float), np.array(means), np.array(runs), scatter, freedom)


def form_error(rows: Sequence[BatchRow]) -> float:
    """Return τ of a table by the method of moments; 0 if repeats explain the residuals.

    Without repeats it includes their scatter, so it is an upper bound.
    """
    points = _points(rows)
    law = _Law(*_least_squares(points, points.runs), points.runs, 0)
    return math.sqrt(max(0.0, _missed(points, _squares(points, law))))


def _squares(points: _Points, law: _Law) -> float:
    return float((points.runs * (points.means - law.at(points.batches)) ** 2).sum())


def _missed(points: _Points, squares: float) -> float:
    """Return τ², what the form misses beyond repeats, the same for each batch size."""
    weights = points.runs
    spare = squares - (len(weights) - 2) * (points.scatter or 0.0)
    return spare / float(weights.sum() - (weights**2).sum() / weights.sum())


def _fit_points(points: _Points) -> _Law:
    weights, spare = points.runs, len(points.batches) - 2
    critical, least = _least_squares(points, weights)
    squares = _squares(points, _Law(critical, least, weights, 0))
    if points.scatter is None:
        return _Law(critical, least, squares / max(spare, 1) / weights, spare)
    scatter = points.scatter / weights
    if len(points.batches) < ENOUGH:
        form = max(FORM_ERROR**2, _missed(points, squares))
        law = _least_squares(points, 1 / (form + scatter))
        return _Law(*law, scatter, points.freedom, form, form)
    if _chance(points, squares) > POOLED:
        freedom = points.freedom + spare
        pooled = (squares + points.freedom * points.scatter) / freedom
        return _Law(critical, least, pooled / weights, freedom)
    form = _missed(points, squares)
    variance = form + scatter
    return _Law(*_least_squares(points, 1 / variance), variance, spare, form=form)


def _grid(points: _Points) -> np.ndarray:
    low, high = points.batches[0] / BEYOND, points.batches[-1] * BEYOND
    return np.linspace(math.log(low), math.log(high), GRID)


def _sums(points: _Points, weights: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Return the weighted squares left at each B_crit of the grid, for (draws, batches) means.

    They lack what is the same at each B_crit of a draw.
    """
    shape = np.log1p(points.batches / np.exp(_grid(points))[:, None])
    shape -= np.average(shape, axis=1, weights=weights)[:, None]
    # Σw(y − s)² − (Σw(y − s))²/Σw, the best E_min being the mean of y − s, with Σws = 0.
    sums = means @ (-2 * weights * shape).T
    sums += shape**2 @ weights
    return sums


def _best_critical(points: _Points, weights: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Return the log B_crit of the least squares, refined between points of the grid."""
    grid, sums = _grid(points), _sums(points, weights, means)
    at = sums.argmin(axis=1)
    inner = np.clip(at, 1, GRID - 2)
    rows = np.arange(len(at))
    before, here, after = (sums[rows, inner + k] for k in (-1, 0, 1))
    bend = before - 2 * here + after
    shift = np.where(bend > 0, 0.5 * (before - after) / np.where(bend > 0, bend, 1), 0)
    edge = at != inner
    refined = grid[inner] + np.clip(shift, -1, 1) * (grid[1] - grid[0])
    return np.where(edge, grid[at], refined)


def _least_squares(points: _Points, weights: np.ndarray) -> tuple[float, float]:
    if len(points.batches) == 2:
        return _two_points(points)
    critical = float(_best_critical(points, weights, points.means[None])[0])
    # Newton's method polishes the interpolated minimum.
    for _ in range(20):
        ratio = points.batches / math.exp(critical)
        errors = points.means - np.log1p(ratio)
        errors = errors - np.average(errors, weights=weights)
        slope = ratio / (1 + ratio)
        slope = slope - np.average(slope, weights=weights)
        bend = float((weights * slope**2).sum())
        move = -float((weights * errors * slope).sum()) / bend if bend > 0 else 0.0
        grid = _grid(points)
        critical = float(np.clip(critical + np.clip(move, -0.1, 0.1), grid[0], grid[-1]))
    shape = np.log1p(points.batches / math.exp(critical))
    return critical, float(np.average(points.means - shape, weights=weights))


def _two_points(points: _Points) -> tuple[float, float]:
    """Solve for the two parameters; where there is no solution, return the bound of the search."""
    small, large = points.batches
    ratio = math.exp(points.means[1] - points.means[0])
    grid = _grid(points)
    if ratio <= 1:
        critical = float(grid[-1])
    elif ratio >= large / small:
        critical = float(grid[0])
    else:
        value = math.log((large - ratio * small) / (ratio - 1))
        critical = float(np.clip(value, grid[0], grid[-1]))
    shape = np.log1p(points.batches / math.exp(critical))
    return critical, float((points.means - shape).mean())


def _bootstrap(points: _Points, law: _Law, seed: int) -> np.ndarray:
    """Return (draws, 2): E_min and B_crit of tables drawn from the fit; empty if not possible."""
    if law.freedom < 1:
        return np.empty((0, 2))
    generator = np.random.default_rng(seed)
    chi = generator.chisquare(law.freedom, (DRAWS, 1))
    drawn = law.known + law.estimated * law.freedom / chi
    # Without repeats nothing is known apart, and few residuals may be small by chance.
    if len(points.batches) < ENOUGH:
        drawn = np.maximum(drawn, FORM_ERROR**2)
    noise = generator.standard_normal((DRAWS, len(points.batches)))
    means = law.at(points.batches) + np.sqrt(drawn) * noise
    weights = 1 / np.maximum(law.known + law.estimated, 1e-12)
    critical = _best_critical(points, weights / weights.max(), means)
    shape = np.log1p(points.batches / np.exp(critical)[:, None])
    least = np.average(means - shape, axis=1, weights=weights)
    return np.exp(np.stack([least, critical], axis=1))


def _misfit(points: _Points, errors: np.ndarray) -> bool:
    """Return whether a batch is off by more than `MISFIT` and by more than repeats scatter."""
    count = len(points.batches)
    if count < 3 or np.abs(np.expm1(errors)).max() <= MISFIT:
        return False
    if not points.scatter:
        return True
    return _chance(points, float((points.runs * errors**2).sum())) < LEVEL


def _chance(points: _Points, squares: float) -> float:
    """Return how likely repeats alone leave such squares, by the F test."""
    from scipy.special import fdtrc

    if not points.scatter:
        return 1.0 if squares == 0 else 0.0
    count = len(points.batches)
    return float(fdtrc(count - 2, points.freedom, squares / (count - 2) / points.scatter))


def _no_bend(smallest: float, largest: float, b_crit: float) -> str | None:
    """Return why a critical batch at an end of the search is none; None if it is not there."""
    batches = f"from batch {smallest:,.0f} to {largest:,.0f}"
    if b_crit >= 0.9 * BEYOND * largest:
        return f"samples do not grow {batches}: the critical batch is above them"
    if b_crit <= 1.1 * smallest / BEYOND:
        return f"samples grow in proportion {batches}: the critical batch is below them"
    return None


def _warnings(points: _Points, b_crit: float, errors: np.ndarray, fits: bool) -> list[str]:
    smallest, largest = points.batches[0], points.batches[-1]
    sentences = []
    no_bend = _no_bend(smallest, largest, b_crit)
    if len(points.batches) == 2:
        exact = "two batch sizes determine the two parameters exactly, so"
        sentences.append(
            f"{'with two batch sizes' if no_bend else exact} nothing shows whether the form fits; "
            "on real tables the two-point formula is off by a factor of two and more"
        )
    if no_bend:
        sentences.append(f"{no_bend}; add {'larger' if b_crit > largest else 'smaller'} batches")
    elif b_crit > largest:
        sentences.append(
            f"the critical batch is beyond the largest batch of the table ({largest:,.0f}), so it "
            "is extrapolated"
        )
    if not fits:
        worst = int(np.abs(errors).argmax())
        more = "more" if errors[worst] > 0 else "fewer"
        sentences.append(
            "the form E_min(1 + B/B_crit) does not fit this table: at batch "
            f"{points.batches[worst]:,.0f} it has {100 * abs(errors[worst]):.0f} % {more} samples "
            "than the fit; trust the rows of the table, not the prediction between them"
        )
    return sentences
