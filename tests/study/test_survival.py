"""Runs that never reach their target are censored, not left out."""

import numpy as np
import pytest
from scipy import stats

from thresher import analyse
from thresher.study.definition import ComparisonConfig
from thresher.study.results import Trial
from thresher.study.survival import (
    Times,
    log_rank,
    log_rank_p,
    restricted_difference,
    restricted_mean,
)


def times(random: np.random.Generator, n: int, scale: float = 10.0, end: float = 12.0) -> Times:
    seconds = random.exponential(scale, n)
    return Times(np.minimum(seconds, end), seconds <= end)


def test_the_log_rank_test_is_scipys() -> None:
    random = np.random.default_rng(0)
    first, second = times(random, 12), times(random, 9, scale=5.0)
    censored = [
        stats.CensoredData(uncensored=t.seconds[t.reached], right=t.seconds[~t.reached])
        for t in (first, second)
    ]
    expected = stats.logrank(*censored)
    z = log_rank([(first, second)])
    assert z == pytest.approx(abs(expected.statistic))  # positive: the first arm is slower
    assert log_rank_p([(first, second)]) == pytest.approx(expected.pvalue, rel=0.15)


def test_strata_add_up() -> None:
    random = np.random.default_rng(1)
    pair = times(random, 8), times(random, 8, scale=4.0)
    assert log_rank([pair, pair]) == pytest.approx(np.sqrt(2) * log_rank([pair]))
    assert log_rank_p([pair, pair]) < log_rank_p([pair])


def test_the_restricted_mean_without_censoring_is_the_mean() -> None:
    seconds = np.array([3.0, 5.0, 10.0])
    mean, variance = restricted_mean(Times(seconds, np.ones(3, bool)), 10.0)
    assert mean == pytest.approx(6.0)
    assert variance == pytest.approx(seconds.var() / 3 * 3 / 2)
    capped, _ = restricted_mean(Times(np.array([3.0, 5.0, 8.0]), np.array([1, 1, 0], bool)), 8.0)
    assert capped == pytest.approx(16 / 3)


def test_a_late_arm_has_a_positive_difference() -> None:
    random = np.random.default_rng(2)
    late, early = times(random, 40, scale=10.0), times(random, 40, scale=4.0)
    difference, error, _ = restricted_difference([(late, early)])
    assert difference > 2 * error > 0


def test_four_against_four_worked_by_hand() -> None:
    early = Times(np.array([1.0, 2.0, 3.0, 4.0]), np.ones(4, bool))
    late = Times(np.array([9.0, 9.0, 9.0, 9.0]), np.zeros(4, bool))
    assert log_rank_p([(early, late)]) == pytest.approx(2 / 70)


@pytest.mark.slow
@pytest.mark.parametrize("n", [3, 4, 7])
def test_equal_arms_differ_in_at_most_five_percent(n: int) -> None:
    random = np.random.default_rng(n)
    wrong = [log_rank_p([(times(random, n), times(random, n))]) < 0.04 for _ in range(2000)]
    assert np.mean(wrong) <= 0.05


def target_trials(arm: str, batch: int, seconds: list[float | None]) -> list[Trial]:
    return [
        Trial(
            cell={"arm": arm, "batch_size": batch},
            seed=seed,
            value=value,
            time_to_target=value,
            seconds=20.0 if value is None else value,
        )
        for seed, value in enumerate(seconds)
    ]


def test_runs_that_never_reach_the_target_count() -> None:
    times: dict[str, list[float | None]] = {
        "fast": [2.0, 3.0, 2.5, 2.2, 2.8],
        # Of the two runs that arrive, one is as early as the other arm's.
        "slow": [None, None, 2.6, None, 15.0],
    }
    trials = [
        trial
        for batch in (1, 2, 3)
        for arm in times
        for trial in target_trials(arm, batch, times[arm])
    ]
    config = ComparisonConfig(metric="time_to_target", compare="arm")
    overall = analyse(trials, config).overall[0]
    assert (overall.arm, overall.verdict) == ("slow", "worse")
    assert overall.difference > 5
    assert overall.low > 0
    assert "9 runs did not reach the target and are censored" in overall.sentence
    assert overall.p_holm >= overall.p
    without = analyse([t for t in trials if t.value is not None], config).overall[0]
    assert without.n == 2
    assert "censored" not in without.sentence


@pytest.mark.parametrize(("end", "verdict"), [(100.0, "not enough runs"), (13.0, "better")])
def test_the_test_and_the_mean_must_agree(end: float, verdict: str) -> None:
    """Eleven of twelve runs are two seconds earlier and one never arrives, so the mean depends on
    how long it was waited for."""
    runs: dict[str, list[float | None]] = {
        "slow": [12 + 0.01 * seed for seed in range(12)],
        "fast": [*(10 + 0.01 * seed for seed in range(11)), None],
    }
    trials = [
        Trial(cell={"arm": arm}, seed=seed, value=value, end=end)
        for arm, values in runs.items()
        for seed, value in enumerate(values)
    ]
    (found,) = analyse(trials, ComparisonConfig(metric="time_to_target")).verdicts
    assert found.p < 0.04
    assert found.verdict == verdict
    disagree = "neither is faster, because most runs of fast are earlier, but not their mean"
    assert (disagree in found.sentence) == (verdict != "better")


@pytest.mark.parametrize(
    ("early", "late", "end"),
    [([10.0], [None], 50.0), ([10.0] * 3, [None] * 3, 50.0), ([None] * 3, [None] * 3, 50.0)],
)
def test_runs_without_spread_have_no_interval(
    early: list[float | None], late: list[float | None], end: float
) -> None:
    """One run in each arm, equal times, or a target that nothing reaches."""
    trials = [
        Trial(cell={"arm": arm}, seed=seed, value=value, seconds=end)
        for arm, values in (("early", early), ("late", late))
        for seed, value in enumerate(values)
    ]
    (found,) = analyse(trials, ComparisonConfig(metric="time_to_target")).verdicts
    assert (found.low, found.high) == (-np.inf, np.inf)
    assert (found.adjusted_low, found.adjusted_high) == (-np.inf, np.inf)
    assert "spread unknown" in found.sentence


def test_the_sentence_says_that_a_claimed_effect_is_excluded() -> None:
    runs: dict[str, list[float | None]] = {
        "old": [100.0, 101.0, 102.0, 103.0, 104.0],
        "new": [99.0, 100.0, 101.0, 102.0, None],
    }
    trials = [
        Trial(cell={"arm": arm}, seed=seed, value=value, seconds=120.0)
        for arm, values in runs.items()
        for seed, value in enumerate(values)
    ]
    config = ComparisonConfig(metric="time_to_target", primary=("new - old",), claimed=-60.0)
    (found,) = analyse(trials, config).verdicts
    assert found.verdict == "excludes the claimed effect"
    assert "The runs exclude the claimed effect of -60 s" in found.sentence


@pytest.mark.parametrize("steps", [None, 13])
def test_steps_to_a_target_are_not_censored_at_seconds(steps: int | None) -> None:
    """Runs of a few seconds that end after many steps, of which a command may not report how many,
    are still there when the others arrive."""
    known: dict[str, list[float | None]] = {
        "early": [10, 10.2, 10.4, 10.6, 10.8, 11],
        "late": [12, None, 12.5, None, 13, None],
    }
    trials = [
        Trial(cell={"arm": arm}, seed=seed, value=value, seconds=0.1, steps=steps)
        for arm, values in known.items()
        for seed, value in enumerate(values)
    ]
    (found,) = analyse(trials, ComparisonConfig(metric="steps_to_target")).verdicts
    assert found.verdict == "worse"
    # The three that never arrive count as 13 steps.
    assert found.difference == pytest.approx((12 + 12.5 + 4 * 13) / 6 - 10.5)
