"""How many seeds a comparison needs."""

import bisect
import functools
import math

from scipy import special

DECISION = 0.04
"""Threshold of the p-values. It is below 0.05 because the tests assume normal differences and a
known rounding error, and both hold only approximately."""
MOST_SEEDS = 10_000
"""More seeds than this are reported as unknown (None)."""
POWER = 0.8


def seeds_needed(
    difference: float,
    sd: float,
    alpha: float = DECISION,
    power: float = POWER,
    comparisons: int = 1,
    df_per_seed: float = 1.0,
) -> int | None:
    """Return the number of pairs with which a t-test of paired runs detects a difference.

    `sd` is the standard deviation of the differences; `comparisons` share `alpha` (Bonferroni: the
    worst case of Holm). Each pair after the first adds `df_per_seed` degrees of freedom: more than
    one if the error is pooled. Returns None if more than `MOST_SEEDS` are needed or `sd` is not
    finite.
    """
    if not math.isfinite(sd) or difference == 0:
        return None
    if sd == 0:
        return 2
    level = alpha / max(comparisons, 1)

    def enough(n: int) -> bool:
        df = df_per_seed * (n - 1)
        critical = float(special.stdtrit(df, 1 - level / 2))
        return _exceeds(critical, abs(difference) / sd * math.sqrt(n), df) >= power

    needed = 2 + bisect.bisect_left(range(2, MOST_SEEDS + 1), True, key=enough)
    return needed if needed <= MOST_SEEDS else None


def seeds_for_equivalence(
    margin: float, sd: float, alpha: float, comparisons: int = 1, df_per_seed: float = 1.0
) -> int | None:
    """Return the number of pairs with which two equal arms are shown to be equivalent.

    Two one-sided tests against the margin, both significant with probability `POWER` if the true
    difference is 0. The other arguments are those of `seeds_needed`.
    """
    if margin <= 0:
        return None
    # One-sided tests have twice the level, and each of the two misses half as often as both.
    return seeds_needed(margin, sd, 2 * alpha, (1 + POWER) / 2, comparisons, df_per_seed)


def sd_range(sd: float, df: float) -> tuple[float, float]:
    """Return the 95 % interval (χ²) of a standard deviation known from `df` degrees."""
    if not (math.isfinite(sd) and df > 0):
        return math.nan, math.nan
    low, high = _sd_factors(df)
    return sd * low, sd * high


@functools.lru_cache(maxsize=256)
def _sd_factors(df: float) -> tuple[float, float]:
    """Return the ends of the interval of a standard deviation of 1."""
    low, high = (float(special.chdtri(df, q)) for q in (0.025, 0.975))
    return math.sqrt(df / low), math.sqrt(df / high)


def _exceeds(critical: float, shift: float, df: float) -> float:
    """Return P(T > critical) of the noncentral t, which is imprecise for very large shifts."""
    seen = 1 - float(special.nctdtr(df, shift, critical)) if shift < 37 else 1.0
    return seen if math.isfinite(seen) else 1.0
