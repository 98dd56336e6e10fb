"""Statistics for few runs: is one arm better than another?

A comparison tests the mean of the differences between two arms that were trained with the same
seeds. Its error comes from these differences alone, or from all arms and cells of the study
(`pooling.py`). A study makes many comparisons, so their p-values are corrected together (Holm), and
"better" means better after that correction. `tests/study/test_statistics.py` and `test_pooling.py`
check the false-positive rate by simulation.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from thresher.study import power
from thresher.study.pooling import RunError
from thresher.study.power import DECISION

VERDICTS = (
    *("better", "worse", "equivalent", "excludes the claimed effect", "no worse"),
    "not enough runs",
)
ALPHA = 0.05
"""At most this share of studies without any effect reports one."""
BOOTSTRAP_DRAWS = 4000
FEW = 8
"""With fewer pairs than this the Student interval is reported: a bootstrap of so few numbers cannot
leave their range and covers too little."""
OWN_SHARE = 0.9
"""With a smaller share of the variance in the differences themselves, the rest being rounding, the
Student interval is reported, too: a bootstrap of equal differences has no width."""


@dataclass(frozen=True)
class Paired:
    """A test of n paired differences, before correction for the other comparisons."""

    differences: tuple[float, ...]
    """Arm minus baseline, one per seed (or per draw), in the metric's unit."""
    sd: float
    """Standard deviation, including the metric's resolution; NaN if n < 2."""
    p: float
    """Two-sided test of no difference; 1 if n < 2."""
    p_equivalent: float
    """Two one-sided tests of a difference of at least the margin; 1 if n < 2."""
    p_no_worse: float
    """One-sided test of being worse by at least the margin (non-inferiority); 1 if n < 2."""
    df: float = math.nan
    """Degrees of freedom of `sd`; NaN if n < 2."""
    pooled: RunError | None = None
    """The error, if it is estimated from more than these differences."""
    draws: tuple[int, ...] = ()
    """Number of seeds of each draw, if seeds share draws and n counts draws."""

    @property
    def n(self) -> int:
        return len(self.differences)

    @functools.cached_property
    def mean(self) -> float:
        return sum(self.differences) / self.n if self.n else math.nan

    @property
    def agrees(self) -> bool:
        """Whether the test and the mean point the same way."""
        return True

    @property
    def spread_known(self) -> bool:
        """Whether `error` says something."""
        return self.n > 1

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.sd / math.sqrt(self.n) if self.n else math.nan

    @property
    def df_per_seed(self) -> float:
        """Degrees of freedom that one more seed adds."""
        return self.df / (self.n - 1) if self.n > 1 else 1.0

    @property
    def bootstrap(self) -> tuple[float, float]:
        """The 95 % bootstrap interval of the mean, for any n; infinite if n < 2."""
        return bootstrap_interval(np.array(self.differences))

    @functools.cached_property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval that is reported: bootstrap from `FEW` pairs on, if the error is not
        pooled and rounding is a small part of it; otherwise Student's."""
        if self.pooled is None:
            return mean_interval(self.differences, sd=self.sd)
        return self.student_interval(ALPHA)

    def student_interval(self, alpha: float) -> tuple[float, float]:
        """Return Student's 1 - alpha interval of the mean; infinite if its spread is not known."""
        if not self.spread_known:
            return -math.inf, math.inf
        half = _quantile(self.df, 1 - alpha / 2) * self.error
        return self.mean - half, self.mean + half

    def p_short_of(self, effect: float) -> float:
        """Return the p-value of the one-sided test that the difference is short of `effect`."""
        if not self.spread_known:
            return 1.0
        sign = math.copysign(1.0, effect)
        return _upper_tails([abs(effect) - sign * self.mean], self.error, self.df)[0]


@dataclass(frozen=True)
class Verdict:
    """A comparison after Holm's correction."""

    word: str
    """One of `VERDICTS`."""
    paired: Paired
    p: float
    """Adjusted p-value of the difference."""
    p_equivalent: float
    """Adjusted p-value of the equivalence tests."""
    no_worse: bool
    """Whether the arm is shown to be not worse than the baseline by the margin or more."""
    margin: float
    family: int
    """Number of comparisons that were corrected together."""
    alpha: float = DECISION
    primary: bool | None = None
    """Whether the comparison is primary; None if the study names no primary comparisons."""
    claimed: float | None = None
    """The claimed effect."""
    p_claimed: float | None = None
    """Adjusted p-value of the test that the effect is smaller than claimed."""

    @property
    def claimed_excluded(self) -> bool | None:
        """Whether the claimed effect is excluded; None if none is claimed."""
        return None if self.p_claimed is None else self.p_claimed < self.alpha

    @property
    def adjusted_interval(self) -> tuple[float, float]:
        """The interval at the level that Holm's correction leaves to this comparison.

        It contains 0 exactly if the adjusted p-value is not below alpha.
        """
        corrected = self.paired.p > 0 and self.p < 1
        times = self.p / self.paired.p if corrected else self.family
        return self.paired.student_interval(self.alpha / max(1.0, times))

    @functools.cached_property
    def seeds_needed(self) -> int | None:
        """Seeds needed to detect a difference as large as the margin; None if unknown."""
        return self._seeds(self.margin, self.paired.sd)

    @functools.cached_property
    def seeds_needed_range(self) -> tuple[int | None, int | None]:
        """The same at both ends of the 95 % interval of the standard deviation."""
        low, high = power.sd_range(self.paired.sd, self.paired.df)
        return self._seeds(self.margin, low), self._seeds(self.margin, high)

    @functools.cached_property
    def seeds_if_as_seen(self) -> int | None:
        """Seeds needed to detect a difference as large as the measured mean; None if unknown."""
        return self._seeds(self.paired.mean if self.paired.n else 0.0, self.paired.sd)

    @functools.cached_property
    def seeds_for_equivalence(self) -> int | None:
        """Seeds needed to show that equal arms are equivalent; None if unknown."""
        return self._equivalence_seeds(self.paired.sd)

    @functools.cached_property
    def seeds_for_equivalence_range(self) -> tuple[int | None, int | None]:
        """The same at both ends of the 95 % interval of the standard deviation."""
        low, high = power.sd_range(self.paired.sd, self.paired.df)
        return self._equivalence_seeds(low), self._equivalence_seeds(high)

    def _seeds(self, difference: float, sd: float) -> int | None:
        more = (power.POWER, self.family, self.paired.df_per_seed)
        return power.seeds_needed(difference, sd, self.alpha, *more)

    def _equivalence_seeds(self, sd: float) -> int | None:
        more = (self.family, self.paired.df_per_seed)
        return power.seeds_for_equivalence(self.margin, sd, self.alpha, *more)


def paired(
    arm: Sequence[float] | np.ndarray,
    baseline: Sequence[float] | np.ndarray,
    margin: float,
    higher_is_better: bool = True,
    resolution: float = 0.0,
    error: RunError | None = None,
) -> Paired:
    """Test the differences of two arms by their own spread, or by the `error` of a study's runs.

    Args:
        arm: (n,) values in seed order.
        baseline: (n,) values with the same seeds.
        margin: Largest difference that counts as equivalent.
        higher_is_better: Whether a larger value is better.
        resolution: Step of the metric: 100 / test images for an accuracy in points. Three equal
            differences of a rounded metric would have zero spread and count as certain, so the
            variance of rounding two numbers, resolution²/6, is added.
        error: The error that the runs have in common, rounding included; None if it is not known.
    """
    difference = np.asarray(arm, float) - np.asarray(baseline, float)
    n = len(difference)
    differences = tuple(difference.tolist())
    if n < 2:
        return Paired(differences, math.nan, 1.0, 1.0, 1.0, pooled=error)
    if error is None:
        mean, own = _mean_and_variance(difference)
        variance, df = own + resolution**2 / 6, n - 1.0
    else:
        mean = float(np.add.reduce(difference)) / n
        variance, df = 2 * error.variance, error.df
    sd = math.sqrt(variance)
    distances = (abs(mean), margin - abs(mean), (mean if higher_is_better else -mean) + margin)
    one_sided, p_equivalent, p_no_worse = _upper_tails(distances, sd / math.sqrt(n), df)
    return Paired(
        differences, sd, min(1.0, 2 * one_sided), p_equivalent, p_no_worse, df=df, pooled=error
    )


def _upper_tails(distances: Sequence[float], error: float, df: float) -> list[float]:
    """Return P(T ≥ distance / error) for Student's t, for each distance."""
    if error == 0:
        return [0.0 if distance > 0 else 1.0 for distance in distances]
    tails: list[float] = special.stdtr(df, [-distance / error for distance in distances]).tolist()
    return tails


def mean_and_sd(values: np.ndarray) -> tuple[float, float]:
    """Return the mean and the standard deviation of two or more values, (n,)."""
    mean, variance = _mean_and_variance(values)
    return mean, math.sqrt(variance)


def _mean_and_variance(values: np.ndarray) -> tuple[float, float]:
    # As `mean` and `var` compute it, with less overhead.
    mean = float(np.add.reduce(values)) / len(values)
    return mean, float(np.add.reduce((values - mean) ** 2)) / (len(values) - 1)


@functools.lru_cache(maxsize=256)
def _quantile(df: float, probability: float) -> float:
    """Return the quantile of Student's t; many comparisons have the same degrees of freedom."""
    return float(special.stdtrit(df, probability))


def bootstrap_interval(
    values: np.ndarray, alpha: float = ALPHA, draws: int = BOOTSTRAP_DRAWS
) -> tuple[float, float]:
    """Return a bootstrap interval of the mean of `values`, (n,); deterministic.

    Percentiles of resampled means are too narrow by √((n-1)/n) and by the ratio of normal to
    Student quantiles, so percentiles further out are used: the expanded percentile interval of
    Hesterberg (2015), "What teachers should know about the bootstrap". Uses draws × n numbers.
    """
    values = np.asarray(values, float)
    n = len(values)
    if n < 2:
        return -math.inf, math.inf
    means = np.add.reduce(values.take(_resamples(n, draws)), axis=1) / n
    student = _quantile(n - 1, alpha / 2)
    tail = float(special.ndtr(math.sqrt(n / (n - 1)) * student))
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


@functools.lru_cache(maxsize=8)
def _resamples(n: int, draws: int) -> np.ndarray:
    random = np.random.Generator(np.random.Philox(key=[0, n]))
    return random.integers(0, n, (draws, n))


def mean_interval(
    values: Sequence[float] | np.ndarray, sd: float | None = None
) -> tuple[float, float]:
    """Return the 95 % interval of a mean: Student's for few values, else bootstrap.

    `sd` is the standard deviation that Student's interval uses; default: that of the values. If it
    is larger because rounding is part of it, a bootstrap of the values would miss that part.
    """
    values = np.asarray(values, float)
    n = len(values)
    if n < 2:
        return -math.inf, math.inf
    mean, own = mean_and_sd(values)
    spread = own if sd is None else sd
    if n >= FEW and own**2 >= OWN_SHARE * spread**2:
        return bootstrap_interval(values)
    half = _quantile(n - 1, 1 - ALPHA / 2) * spread / math.sqrt(n)
    return mean - half, mean + half


def decimals(*values: float, size: float = 1.0) -> int:
    """Return how many decimals show the largest of `values` with two digits; two at least.

    `size` says how large numbers of this kind are, if they are small.
    """
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    # Below 1e-8 of the size it is the rounding error of equal numbers.
    negligible = 1e-8 * min(abs(size) or 1.0, 1.0)
    return max(2, 1 - math.floor(math.log10(largest))) if largest > negligible else 2


def holm(p: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return Holm's step-down adjusted p-values, (m,), in the order given."""
    adjusted: np.ndarray = _holm(np.asarray(p, float)[None])[0]
    return adjusted


def _holm(p: np.ndarray) -> np.ndarray:
    """Return the adjusted p-values of each row of p-values, (rows, m)."""
    rows, m = p.shape
    row = np.arange(rows)[:, None]
    order = p.argsort(axis=1, kind="stable")
    stepped = np.maximum.accumulate(p[row, order] * np.arange(m, 0, -1), axis=1)
    adjusted = np.empty_like(p)
    adjusted[row, order] = np.minimum(stepped, 1.0)
    return adjusted


def judge(
    comparisons: Sequence[Paired],
    margin: float,
    alpha: float = DECISION,
    higher_is_better: bool = True,
    primary: Sequence[int] = (),
    claimed: Mapping[int, float] | None = None,
) -> list[Verdict]:
    """Return a verdict per comparison, corrected for the number of comparisons.

    A significant difference smaller than the margin is still "better" or "worse".

    Args:
        comparisons: The comparisons of a study.
        margin: Largest difference that counts as equivalent.
        alpha: Threshold of the adjusted p-values.
        higher_is_better: Whether a larger value is better.
        primary: Positions of the primary comparisons. They are corrected among themselves, the
            others among all comparisons.
        claimed: Claimed effects by position; their tests are corrected among themselves.
    """
    claimed = claimed or {}
    tests = np.array([[c.p, c.p_equivalent, c.p_no_worse] for c in comparisons], float)
    tests = tests.reshape(-1, 3).T
    adjusted = _holm(tests)
    first = list(dict.fromkeys(primary))
    if first:
        adjusted[:, first] = _holm(tests[:, first])
    claims = holm([comparisons[at].p_short_of(effect) for at, effect in claimed.items()])
    p_claimed = dict(zip(claimed, claims.tolist(), strict=True))
    verdicts = []
    for at, (c, of_test) in enumerate(zip(comparisons, adjusted.T.tolist(), strict=True)):
        p, p_equivalent, p_no_worse = of_test
        verdicts.append(
            Verdict(
                word=_word(c, of_test, p_claimed.get(at, 1.0), alpha, higher_is_better),
                paired=c,
                p=p,
                p_equivalent=p_equivalent,
                no_worse=p_no_worse < alpha,
                margin=margin,
                family=len(first) if at in first else len(comparisons),
                alpha=alpha,
                primary=at in first if first else None,
                claimed=claimed.get(at),
                p_claimed=p_claimed.get(at),
            )
        )
    return verdicts


def _word(
    c: Paired, adjusted: Sequence[float], p_claimed: float, alpha: float, higher_is_better: bool
) -> str:
    """Return the verdict, given the adjusted p-values: the first of `VERDICTS` that holds."""
    p, p_equivalent, p_no_worse = adjusted
    if p < alpha and c.agrees:
        return "better" if (c.mean > 0) == higher_is_better else "worse"
    if p_equivalent < alpha:
        return "equivalent"
    if p_claimed < alpha:
        return "excludes the claimed effect"
    return "no worse" if p_no_worse < alpha else "not enough runs"
