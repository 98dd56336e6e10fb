"""Statistics for few runs paired by seed: is one arm better than another?

A comparison tests the mean of the differences between two arms that were trained with the same
seeds. A study makes many comparisons, so their p-values are corrected together (Holm), and "better"
means better after that correction. The verdict is one of: better, worse, equivalent (within a
margin, by two one-sided tests), not enough runs. `tests/study/test_statistics.py` checks the
false-positive rate by simulation.
"""

import bisect
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

VERDICTS = ("better", "worse", "equivalent", "not enough runs")
ALPHA = 0.05
"""At most this share of studies without any effect reports one."""
DECISION = 0.04
"""Threshold of the p-values. It is below ALPHA because the test assumes normal differences and a
known rounding error, and both hold only approximately."""
BOOTSTRAP_DRAWS = 4000
FEW = 8
"""With fewer pairs than this the Student interval is reported: a bootstrap of so few numbers cannot
leave their range and covers too little."""
MOST_SEEDS = 10_000
"""`seeds_needed` returns None beyond this."""


@dataclass(frozen=True)
class Paired:
    """A test of n paired differences, before correction for the other comparisons."""

    differences: tuple[float, ...]
    """Arm minus baseline, one per seed, in the metric's unit."""
    sd: float
    """Standard deviation, including the metric's resolution; NaN if n < 2."""
    p: float
    """Two-sided paired t-test of no difference; 1 if n < 2."""
    p_equivalent: float
    """Two one-sided tests of a difference of at least the margin; 1 if n < 2."""
    p_no_worse: float
    """One-sided test of being worse by at least the margin (non-inferiority); 1 if n < 2."""

    @property
    def n(self) -> int:
        return len(self.differences)

    @property
    def mean(self) -> float:
        return sum(self.differences) / self.n if self.n else math.nan

    @property
    def bootstrap(self) -> tuple[float, float]:
        """The 95 % bootstrap interval of the mean, for any n; infinite if n < 2."""
        return bootstrap_interval(np.array(self.differences))

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval that is reported: Student's below `FEW` pairs, else bootstrap."""
        return mean_interval(self.differences, sd=self.sd)


@dataclass(frozen=True)
class Verdict:
    """A comparison after Holm's correction for all comparisons of its study."""

    word: str
    """One of `VERDICTS`."""
    paired: Paired
    p: float
    """Adjusted p-value of the difference."""
    p_equivalent: float
    """Adjusted p-value of the equivalence tests."""
    p_no_worse: float
    """Adjusted p-value of the non-inferiority test."""
    no_worse: bool
    """Whether the arm is shown to be not worse than the baseline by the margin or more."""
    margin: float
    family: int
    """Number of comparisons that were corrected together."""
    alpha: float = DECISION

    @property
    def seeds_needed(self) -> int | None:
        """Seeds needed to detect a difference as large as the margin; None if unknown."""
        return seeds_needed(self.margin, self.paired.sd, self.alpha, comparisons=self.family)

    @property
    def seeds_if_as_seen(self) -> int | None:
        """Seeds needed to detect a difference as large as the measured mean; None if unknown."""
        mean = self.paired.mean if self.paired.n else 0.0
        return seeds_needed(mean, self.paired.sd, self.alpha, comparisons=self.family)


def paired(
    arm: Sequence[float] | np.ndarray,
    baseline: Sequence[float] | np.ndarray,
    margin: float,
    higher_is_better: bool = True,
    resolution: float = 0.0,
) -> Paired:
    """Test the differences of two arms.

    Args:
        arm: (n,) values in seed order.
        baseline: (n,) values with the same seeds.
        margin: Largest difference that counts as equivalent.
        higher_is_better: Whether a larger value is better.
        resolution: Step of the metric: 100 / test images for an accuracy in points. Three equal
            differences of a rounded metric would have zero spread and count as certain, so the
            variance of rounding two numbers, resolution²/6, is added.
    """
    difference = np.asarray(arm, float) - np.asarray(baseline, float)
    n = len(difference)
    differences = tuple(difference.tolist())
    if n < 2:
        return Paired(differences, math.nan, 1.0, 1.0, 1.0)
    mean = float(difference.mean())
    sd = math.sqrt(float(difference.var(ddof=1)) + resolution**2 / 6)
    error = sd / math.sqrt(n)
    return Paired(
        differences,
        sd,
        p=min(1.0, 2 * _upper_tail(abs(mean), error, n)),
        p_equivalent=_upper_tail(margin - abs(mean), error, n),
        p_no_worse=_upper_tail((mean if higher_is_better else -mean) + margin, error, n),
    )


def _upper_tail(distance: float, error: float, n: int) -> float:
    """Return P(T ≥ distance / error) for Student's t with n - 1 degrees of freedom."""
    if error == 0:
        return 0.0 if distance > 0 else 1.0
    return float(special.stdtr(n - 1, -distance / error))


def bootstrap_interval(
    values: np.ndarray, alpha: float = ALPHA, draws: int = BOOTSTRAP_DRAWS, seed: int = 0
) -> tuple[float, float]:
    """Return a bootstrap interval of the mean of `values`, (n,); deterministic for a seed.

    Percentiles of resampled means are too narrow by √((n-1)/n) and by the ratio of normal to
    Student quantiles, so percentiles further out are used: the expanded percentile interval of
    Hesterberg (2015), "What teachers should know about the bootstrap". Uses draws × n numbers.
    """
    values = np.asarray(values, float)
    n = len(values)
    if n < 2:
        return -math.inf, math.inf
    means = values[_resamples(n, draws, seed)].mean(axis=1)
    student = _student(alpha / 2, n)
    tail = float(special.ndtr(math.sqrt(n / (n - 1)) * student))
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


@functools.lru_cache(maxsize=8)
def _resamples(n: int, draws: int, seed: int) -> np.ndarray:
    random = np.random.Generator(np.random.Philox(key=[seed, n]))
    return random.integers(0, n, (draws, n))


def _student(q: float, n: int) -> float:
    """Return a quantile of Student's t with n - 1 degrees of freedom."""
    return float(special.stdtrit(n - 1, q))


def mean_interval(
    values: Sequence[float] | np.ndarray, sd: float | None = None
) -> tuple[float, float]:
    """Return the 95 % interval of a mean: Student's for few values, else bootstrap.

    `sd` is the standard deviation that Student's interval uses; default: that of the values.
    """
    values = np.asarray(values, float)
    n = len(values)
    if n < 2 or n >= FEW:
        return bootstrap_interval(values)
    spread = float(values.std(ddof=1)) if sd is None else sd
    half = _student(1 - ALPHA / 2, n) * spread / math.sqrt(n)
    mean = float(values.mean())
    return mean - half, mean + half


def decimals(*values: float) -> int:
    """Return how many decimals show the largest of `values` with two digits; two at least."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    # Below 1e-8 it is the rounding error of equal numbers.
    return max(2, 1 - math.floor(math.log10(largest))) if largest > 1e-8 else 2


def holm(p: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return Holm's step-down adjusted p-values, (m,), in the order given."""
    p = np.asarray(p, float)
    m = len(p)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * (m - np.arange(m)))
    adjusted = np.empty(m)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


def seeds_needed(
    difference: float, sd: float, alpha: float = DECISION, power: float = 0.8, comparisons: int = 1
) -> int | None:
    """Return the number of pairs with which a paired t-test detects a difference.

    `sd` is the standard deviation of the differences; `comparisons` share `alpha` (Bonferroni: the
    worst case of Holm). Returns None if more than `MOST_SEEDS` are needed or `sd` is not finite.
    """
    if not math.isfinite(sd) or difference == 0:
        return None
    if sd == 0:
        return 2
    level = alpha / max(comparisons, 1)

    def enough(n: int) -> bool:
        critical = _student(1 - level / 2, n)
        shift = abs(difference) / sd * math.sqrt(n)
        # The noncentral t loses precision for large shifts, where detection is certain.
        seen = 1 - float(special.nctdtr(n - 1, shift, critical)) if shift < 37 else 1.0
        return (seen if math.isfinite(seen) else 1.0) >= power

    needed = 2 + bisect.bisect_left(range(2, MOST_SEEDS + 1), True, key=enough)
    return needed if needed <= MOST_SEEDS else None


def judge(
    comparisons: Sequence[Paired],
    margin: float,
    alpha: float = DECISION,
    higher_is_better: bool = True,
) -> list[Verdict]:
    """Return a verdict per comparison, with all comparisons of a study corrected together.

    A significant difference smaller than the margin is still "better" or "worse".
    """
    tests = [[c.p, c.p_equivalent, c.p_no_worse] for c in comparisons]
    adjusted = [holm(p).tolist() for p in zip(*tests, strict=True)]
    sign = 1.0 if higher_is_better else -1.0
    verdicts = []
    for c, p, p_equivalent, p_no_worse in zip(comparisons, *adjusted, strict=True):
        if p < alpha:
            word = "better" if sign * c.mean > 0 else "worse"
        elif p_equivalent < alpha:
            word = "equivalent"
        else:
            word = "not enough runs"
        verdicts.append(
            Verdict(
                word=word,
                paired=c,
                p=p,
                p_equivalent=p_equivalent,
                p_no_worse=p_no_worse,
                no_worse=p_no_worse < alpha,
                margin=margin,
                family=len(comparisons),
                alpha=alpha,
            )
        )
    return verdicts
