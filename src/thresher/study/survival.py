"""Times to a target that some runs never reach: those runs are censored at their end.

Leaving them out would compare the lucky runs only. Arms are compared by the log-rank test,
stratified by cell, and by the restricted mean: the mean time up to where both arms are known.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from thresher.study.statistics import Paired

MOST_SPLITS = 20_000
"""Splits of the runs of a test that are enumerated; beyond, as many are drawn at random."""


@dataclass(frozen=True)
class Times:
    """Times of the runs of one arm in one cell."""

    seconds: np.ndarray
    """(n,) time at which the target was reached, or at which the run ended without it."""
    reached: np.ndarray
    """(n,) whether the target was reached."""


Strata = Sequence[tuple[Times, Times]]
"""The times of two arms, cell by cell."""


@dataclass(frozen=True)
class CensoredTimes(Paired):
    """A comparison of times to a target, some of them censored."""

    difference: float = math.nan
    """Difference of the restricted means, in seconds."""
    difference_error: float = math.nan
    log_rank: float = 0.0
    """z of the log-rank test; positive if the arm is later."""
    runs: int = 0
    """Number of runs of the arm with fewer runs."""
    censored: int = 0
    """Number of runs of both arms that did not reach the target."""

    @property
    def n(self) -> int:
        return self.runs

    @property
    def mean(self) -> float:
        return self.difference

    @property
    def agrees(self) -> bool:
        return self.log_rank * self.difference > 0

    @property
    def error(self) -> float:
        return self.difference_error

    @property
    def interval(self) -> tuple[float, float]:
        return self.student_interval(0.05)

    def student_interval(self, alpha: float) -> tuple[float, float]:
        """Return the normal 1 - alpha interval; a restricted mean has no degrees of freedom.

        Infinite if the runs show no spread: one run in each arm, or equal times in each.
        """
        if self.difference_error == 0:
            return -math.inf, math.inf
        half = float(special.ndtri(1 - alpha / 2)) * self.difference_error
        return self.difference - half, self.difference + half

    def p_short_of(self, effect: float) -> float:
        sign = math.copysign(1.0, effect)
        if self.difference_error == 0:
            return 1.0
        return float(special.ndtr(-(abs(effect) - sign * self.difference) / self.difference_error))


def compare_times(strata: Strata) -> CensoredTimes:
    """Compare two arms by the log-rank test and the restricted mean."""
    difference, error = restricted_difference(strata)
    both = [times for pair in strata for times in pair]
    return CensoredTimes(
        differences=(),
        sd=math.nan,
        p=log_rank_p(strata),
        p_equivalent=1.0,
        p_no_worse=1.0,
        difference=difference,
        difference_error=error,
        log_rank=log_rank(strata),
        runs=min(len(times.seconds) for times in both),
        censored=sum(int((~times.reached).sum()) for times in both),
    )


def log_rank(strata: Strata) -> float:
    """Return z of the stratified log-rank test; positive if the first arm is later."""
    surplus = variance = 0.0
    for first, second in strata:
        seconds = np.concatenate([first.seconds, second.seconds])
        reached = np.concatenate([first.reached, second.reached]).astype(bool)
        mine = np.arange(len(seconds)) < len(first.seconds)
        for time in np.unique(seconds[reached]):
            at_risk = seconds >= time
            n, k = int(at_risk.sum()), int((at_risk & mine).sum())
            events = reached & (seconds == time)
            d = int(events.sum())
            surplus += d * k / n - int((events & mine).sum())
            if n > 1:
                variance += d * (k / n) * (1 - k / n) * (n - d) / (n - 1)
    return surplus / math.sqrt(variance) if variance else 0.0


def log_rank_p(strata: Strata) -> float:
    """Return the two-sided permutation p-value of the stratified log-rank test.

    The normal approximation finds a difference of equal arms in 10 % of tests at level 0.04 with
    three runs each. Permuting the runs of each cell is exact for any number of runs; four runs
    against four cannot give a p-value below 2 / 70.
    """
    scores = [_scores(*pair) for pair in strata]
    sizes = [len(first.seconds) for first, _ in strata]
    seen = abs(sum(s[:k].sum() for s, k in zip(scores, sizes, strict=True)))
    if len(scores) == 1 and math.comb(len(scores[0]), sizes[0]) <= MOST_SPLITS:
        sums = scores[0][_splits(len(scores[0]), sizes[0])].sum(axis=1)
        return float(np.mean(np.abs(sums) >= seen - 1e-9))
    random = np.random.default_rng(0)
    sums = np.zeros(MOST_SPLITS)
    for s, k in zip(scores, sizes, strict=True):
        sums += random.permuted(np.tile(s, (MOST_SPLITS, 1)), axis=1)[:, :k].sum(axis=1)
    return float((1 + np.sum(np.abs(sums) >= seen - 1e-9)) / (1 + MOST_SPLITS))


def _scores(first: Times, second: Times) -> np.ndarray:
    """Return the log-rank score of each run: expected minus observed events; their sum is 0."""
    seconds = np.concatenate([first.seconds, second.seconds])
    reached = np.concatenate([first.reached, second.reached]).astype(bool)
    hazard = np.zeros(len(seconds))
    for time in np.unique(seconds[reached]):
        at_risk = seconds >= time
        hazard[at_risk] += (reached & (seconds == time)).sum() / at_risk.sum()
    return hazard - reached


@functools.lru_cache(maxsize=8)
def _splits(n: int, k: int) -> np.ndarray:
    return np.array(list(itertools.combinations(range(n), k)))


def restricted_mean(times: Times, end: float) -> tuple[float, float]:
    """Return the mean time up to `end` and its variance, by Kaplan and Meier's curve."""
    moments = np.unique(times.seconds[times.reached & (times.seconds <= end)])
    edges = np.concatenate([[0.0], moments, [end]])
    share, shares, terms = 1.0, [1.0], []
    for time in moments:
        n = int((times.seconds >= time).sum())
        d = int((times.reached & (times.seconds == time)).sum())
        share *= 1 - d / n
        shares.append(share)
        terms.append(d / (n * (n - d)) if n > d else 0.0)
    areas = np.array(shares) * np.diff(edges)
    after = np.cumsum(areas[::-1])[::-1][1:]
    variance = float(np.sum(after**2 * np.array(terms))) if len(terms) else 0.0
    # Greenwood's variance is too small by the factor (events - 1) / events.
    events = int((times.reached & (times.seconds <= end)).sum())
    return float(areas.sum()), variance * (events / (events - 1) if events > 1 else 1.0)


def _known_until(times: Times) -> float:
    """Return the time up to which an arm is known: all of it if its last run arrives."""
    last = times.seconds == times.seconds.max()
    return float(times.seconds.max()) if (last & ~times.reached).any() else math.inf


def restricted_difference(strata: Strata) -> tuple[float, float]:
    """Return the difference of restricted means, averaged over cells, and its standard error."""
    differences, variances = [], []
    for first, second in strata:
        longest = max(float(times.seconds.max()) for times in (first, second))
        end = min(longest, _known_until(first), _known_until(second))
        (mean, error), (other, other_error) = (
            restricted_mean(times, end) for times in (first, second)
        )
        differences.append(mean - other)
        variances.append(error + other_error)
    return float(np.mean(differences)), math.sqrt(sum(variances)) / len(strata)
