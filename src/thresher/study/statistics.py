"""Is one arm better than another, judged from few runs paired by seed?

Every comparison is of two arms trained with the same seeds: what is tested is the mean of the
differences, one per seed. A study makes many comparisons at once, so the p-values of all of them
are corrected together (Holm), and "better" means better after that correction. The answer is one
of four words: better, worse, equivalent (within a margin, by two one-sided tests), or not enough
runs. `tests/study/test_statistics.py` holds the false-positive rate by simulation.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

VERDICTS = ("better", "worse", "equivalent", "not enough runs")
ALPHA = 0.05
"""What is promised: at most this share of studies without any effect finds one."""
DECISION = 0.04
"""Where p-values are cut: a reserve under the promise, since the test takes differences for normal
and the spread of a rounded metric for known, and both are only nearly so."""
BOOTSTRAP_DRAWS = 4000
FEW = 8
"""Under so many pairs a bootstrap of them covers too little: resampling four numbers can never
leave their range. The Student interval is reported there; the bootstrap stands beside it."""
MOST_SEEDS = 10_000


@dataclass(frozen=True)
class Paired:
    """What n paired differences say, before any correction for the other comparisons."""

    differences: tuple[float, ...]
    """Arm minus baseline, one per seed, in the metric's unit."""
    sd: float
    """Their standard deviation, with the metric's resolution; nan when n < 2."""
    p: float
    """Two-sided paired test of "no difference"; 1 when n < 2."""
    p_equivalent: float
    """Two one-sided tests of "differs by the margin or more"; 1 when n < 2."""
    p_no_worse: float
    """One-sided test of "worse by the margin or more" (non-inferiority); 1 when n < 2."""

    @property
    def n(self) -> int:
        return len(self.differences)

    @property
    def mean(self) -> float:
        return sum(self.differences) / self.n if self.n else math.nan

    @property
    def bootstrap(self) -> tuple[float, float]:
        """The 95 % bootstrap interval of the mean, whatever n; infinite when n < 2."""
        return bootstrap_interval(np.array(self.differences))

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval that is reported; see `FEW`."""
        if self.n < 2:
            return -math.inf, math.inf
        if self.n >= FEW:
            return self.bootstrap
        half = _student(1 - ALPHA / 2, self.n) * self.sd / math.sqrt(self.n)
        return self.mean - half, self.mean + half


@dataclass(frozen=True)
class Verdict:
    """A comparison after Holm's correction over its study."""

    word: str
    """One of `VERDICTS`."""
    paired: Paired
    p: float
    """Holm's adjusted p-value of the difference."""
    p_equivalent: float
    p_no_worse: float
    no_worse: bool
    """Not worse than the baseline by the margin or more (after Holm's correction)."""
    margin: float
    family: int
    """How many comparisons were corrected together."""
    alpha: float = DECISION

    @property
    def seeds_needed(self) -> int | None:
        """Seeds to see a difference of the size of the margin; None where that is unknown."""
        return seeds_needed(self.margin, self.paired.sd, self.alpha, comparisons=self.family)

    @property
    def seeds_if_as_seen(self) -> int | None:
        """Seeds that would show the difference, were it as large as it looks now."""
        mean = self.paired.mean if self.paired.n else 0.0
        return seeds_needed(mean, self.paired.sd, self.alpha, comparisons=self.family)


def paired(
    arm: Sequence[float] | np.ndarray,
    baseline: Sequence[float] | np.ndarray,
    margin: float,
    higher_is_better: bool = True,
    resolution: float = 0.0,
) -> Paired:
    """Compare two arms, (n,) each, in seed order.

    `resolution` is the step in which the metric moves (100 / test images, in points). Rounded
    to that step, three equal differences have a spread of zero and would count as certain; so the
    variance of rounding two numbers, step²/6, is added to the sample's own.
    """
    sign = 1.0 if higher_is_better else -1.0
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
        p_no_worse=_upper_tail(sign * mean + margin, error, n),
    )


def _upper_tail(distance: float, error: float, n: int) -> float:
    """P(T ≥ distance / error) with n - 1 degrees of freedom."""
    if error == 0:
        return 0.0 if distance > 0 else 1.0
    return float(special.stdtr(n - 1, -distance / error))


def bootstrap_interval(
    values: np.ndarray, alpha: float = ALPHA, draws: int = BOOTSTRAP_DRAWS, seed: int = 0
) -> tuple[float, float]:
    """An interval for the mean by resampling `values`, (n,); the same numbers each time.

    Percentiles of resampled means are too narrow by √((n-1)/n) and by normal for Student
    quantiles; the percentiles are therefore taken further out (Hesterberg 2015, "What teachers
    should know about the bootstrap", the expanded percentile interval). Costs draws × n numbers.
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
    """Quantile of Student's t with n - 1 degrees of freedom."""
    return float(special.stdtrit(n - 1, q))


def mean_interval(
    values: Sequence[float] | np.ndarray, alpha: float = ALPHA
) -> tuple[float, float]:
    """The interval of a cell's mean, for error bars: Student's for few runs, else bootstrap."""
    values = np.asarray(values, float)
    n = len(values)
    if n < 2:
        return -math.inf, math.inf
    if n >= FEW:
        return bootstrap_interval(values, alpha)
    half = _student(1 - alpha / 2, n) * float(values.std(ddof=1)) / math.sqrt(n)
    mean = float(values.mean())
    return mean - half, mean + half


def holm(p: Sequence[float] | np.ndarray) -> np.ndarray:
    """Holm's step-down adjusted p-values, (m,), in the order given."""
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
    """Pairs with which a paired test sees `difference` with probability `power`.

    `sd` is the spread of the differences, `comparisons` the size of the family that alpha is
    shared by (Bonferroni: the worst case of Holm). None where more than `MOST_SEEDS` are needed
    or the spread is unknown.
    """
    if not math.isfinite(sd) or difference == 0:
        return None
    if sd == 0:
        return 2
    level = alpha / max(comparisons, 1)

    def enough(n: int) -> bool:
        critical = _student(1 - level / 2, n)
        shift = abs(difference) / sd * math.sqrt(n)
        # The noncentral t can lose its digits far out; there the answer is certain.
        seen = 1 - float(special.nctdtr(n - 1, shift, critical)) if shift < 37 else 1.0
        return (seen if math.isfinite(seen) else 1.0) >= power

    high = 2
    while not enough(high):
        high *= 2
        if high > MOST_SEEDS:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def judge(
    comparisons: Sequence[Paired],
    margin: float,
    alpha: float = DECISION,
    higher_is_better: bool = True,
) -> list[Verdict]:
    """One verdict per comparison, all of one study corrected together.

    "better" and "worse" need the corrected p-value under alpha; "equivalent" needs the corrected
    two one-sided tests under alpha; the rest is "not enough runs". A difference that is certain
    but smaller than the margin is still called better or worse: the sentence says how small.
    """
    adjusted = holm([c.p for c in comparisons])
    equivalent = holm([c.p_equivalent for c in comparisons])
    no_worse = holm([c.p_no_worse for c in comparisons])
    sign = 1.0 if higher_is_better else -1.0
    verdicts = []
    for c, p, p_equivalent, p_no_worse in zip(
        comparisons, adjusted, equivalent, no_worse, strict=True
    ):
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
                p=float(p),
                p_equivalent=float(p_equivalent),
                p_no_worse=float(p_no_worse),
                no_worse=bool(p_no_worse < alpha),
                margin=margin,
                family=len(comparisons),
                alpha=alpha,
            )
        )
    return verdicts


def sentence(verdict: Verdict, arm: str, baseline: str, unit: str = "points") -> str:
    """The verdict as a person would say it, with its evidence."""
    c = verdict.paired
    if c.n == 0:
        return f"{arm} against {baseline}: not enough runs (no seed was run with both)."
    if c.n == 1:
        return (
            f"{arm} against {baseline}: not enough runs (one seed says {c.mean:+.2f} {unit}, "
            "and nothing of the spread; run two more at least)."
        )
    low, high = c.interval
    evidence = f"{c.mean:+.2f} {unit}, {low:+.2f} to {high:+.2f}, {c.n} seeds"
    if verdict.word in ("better", "worse"):
        small = ", by less than the margin" if abs(c.mean) < verdict.margin else ""
        return f"{arm} is {verdict.word} than {baseline}{small} ({evidence}, p = {_p(verdict.p)})."
    if verdict.word == "equivalent":
        return f"{arm} and {baseline} are equivalent within {verdict.margin:g} {unit} ({evidence})."
    needed, seen = verdict.seeds_needed, verdict.seeds_if_as_seen
    more = (
        f"about {needed} seeds would show a difference of {verdict.margin:g} {unit}"
        if needed is not None
        else f"more seeds than are practical would show a difference of {verdict.margin:g} {unit}"
    )
    if seen is not None and abs(c.mean) > verdict.margin:
        more = f"about {seen} seeds would show a difference of this size; {more}"
    safe = f"; {arm} is no worse by {verdict.margin:g} {unit} or more" if verdict.no_worse else ""
    return f"{arm} against {baseline}: not enough runs ({evidence}; {more}{safe})."


def _p(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else f"{p:.0e}"
