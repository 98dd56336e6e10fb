"""The statistics agree with scipy and keep their promised error rates in simulations."""

import math

import numpy as np
import pytest
from scipy import stats

from thresher.study.power import seeds_needed
from thresher.study.sentences import sentence
from thresher.study.statistics import (
    BOOTSTRAP_DRAWS,
    Paired,
    bootstrap_interval,
    decimals,
    holm,
    judge,
    mean_interval,
    paired,
)

MARGIN = 0.3
STUDIES = 2000


def null_study(
    random: np.random.Generator, cells: int, seeds: int, images: int | None, noise: str
) -> tuple[np.ndarray, float]:
    """Return accuracies (3 arms, cells, seeds) in points without an effect, and their step."""
    level = random.uniform(60, 95, (1, cells, 1))
    spread = random.uniform(0.2, 1.5, (1, cells, 1))
    shape = (3, cells, seeds)
    draw = random.standard_normal(shape) if noise == "normal" else random.standard_t(3, shape)
    values = level + random.normal(0, 0.5, (1, 1, seeds)) + spread * draw
    if images is None:
        return values, 0.0
    return np.round(values * images / 100) * 100 / images, 100 / images


@pytest.mark.slow  # simulates many studies
@pytest.mark.parametrize(
    ("cells", "seeds", "images", "noise"),
    [
        (6, 4, 10_000, "normal"),
        (3, 3, 360, "normal"),
        (3, 2, 360, "normal"),
        (1, 5, 10_000, "heavy tails"),
        (2, 10, None, "normal"),
    ],
)
def test_null_studies_are_called_better_or_worse_in_at_most_five_percent(
    cells: int, seeds: int, images: int | None, noise: str
) -> None:
    random = np.random.default_rng(20201114)
    false = 0
    for _ in range(STUDIES):
        values, step = null_study(random, cells, seeds, images, noise)
        pairs = [(1, 0), (2, 0), (2, 1)]
        comparisons = [
            paired(values[a, c], values[b, c], MARGIN, resolution=step)
            for c in range(cells)
            for a, b in pairs
        ]
        words = {verdict.word for verdict in judge(comparisons, MARGIN)}
        false += bool(words & {"better", "worse"})
    assert false / STUDIES <= 0.05, f"{false} of {STUDIES} null studies found a difference"


def test_equal_differences_on_a_coarse_metric_are_not_certain() -> None:
    # Each of three seeds is better by one image: without the resolution the spread is zero.
    step = 100 / 360
    base = np.array([95.0, 95.0 + step, 95.0 + 2 * step])
    (naive,) = judge([paired(base + step, base, MARGIN)], MARGIN)
    (honest,) = judge([paired(base + step, base, MARGIN, resolution=step)], MARGIN)
    assert naive.word == "better"
    assert honest.word == "no worse"


def test_a_margin_is_false_in_at_most_five_percent_at_its_edge() -> None:
    random = np.random.default_rng(7)
    wrong_equivalent = wrong_no_worse = 0
    for _ in range(STUDIES):
        base = random.normal(80, 0.2, 5)
        (verdict,) = judge([paired(base - MARGIN + random.normal(0, 0.2, 5), base, MARGIN)], MARGIN)
        wrong_equivalent += verdict.word == "equivalent"
        wrong_no_worse += verdict.no_worse
    assert wrong_equivalent / STUDIES <= 0.05
    assert 0.03 <= wrong_no_worse / STUDIES <= 0.05  # exact, not just conservative


def test_power_is_what_seeds_needed_promises() -> None:
    random = np.random.default_rng(3)
    n = seeds_needed(0.5, 0.6, power=0.8)
    assert n is not None
    found = 0
    for _ in range(STUDIES):
        base = random.normal(80, 1, n)
        (verdict,) = judge([paired(base + random.normal(0.5, 0.6, n), base, MARGIN)], MARGIN)
        found += verdict.word == "better"
    assert 0.77 <= found / STUDIES <= 0.87


def test_seeds_needed_is_the_smallest_and_grows_with_the_family() -> None:
    # Textbook value: half a standard deviation, 80 % power, paired t-test: 34 pairs.
    assert seeds_needed(0.5, 1.0, alpha=0.05) == 34
    assert seeds_needed(1.0, 1.0, alpha=0.05) == 10
    more = seeds_needed(1.0, 1.0, comparisons=18)
    assert more is not None
    assert more > 10
    assert seeds_needed(1e-4, 1.0) is None
    assert 8192 < (seeds_needed(0.0305, 1.0) or 0) <= 10_000
    assert seeds_needed(0.3, math.nan) is None


def test_paired_test_agrees_with_scipy() -> None:
    random = np.random.default_rng(0)
    a, b = random.normal(80, 1, 12), random.normal(79.5, 1, 12)
    ours = paired(a, b, MARGIN)
    assert ours.p == pytest.approx(stats.ttest_rel(a, b).pvalue)
    upper = stats.ttest_1samp(a - b, MARGIN, alternative="less").pvalue
    lower = stats.ttest_1samp(a - b, -MARGIN, alternative="greater").pvalue
    assert ours.p_equivalent == pytest.approx(max(upper, lower))
    assert ours.p_no_worse == pytest.approx(lower)


def test_lower_is_better_turns_the_words_and_not_the_numbers() -> None:
    base = np.array([10.0, 11.0, 12.0, 13.0, 14.0])
    faster = base - np.array([5.0, 5.1, 4.9, 5.2, 4.8])
    (verdict,) = judge(
        [paired(faster, base, 0.5, higher_is_better=False)], 0.5, higher_is_better=False
    )
    assert verdict.word == "better"
    assert verdict.no_worse
    assert verdict.paired.mean == pytest.approx(-5.0)


def test_holm_worked_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])
    assert len(holm([])) == 0


@pytest.mark.slow
@pytest.mark.parametrize("n", [3, 5, 8, 15, 40])
def test_intervals_cover_the_mean(n: int) -> None:
    random = np.random.default_rng(n)
    covered = 0
    for _ in range(STUDIES):
        low, high = mean_interval(random.normal(1.0, 2.0, n))
        covered += low <= 1.0 <= high
    assert 0.93 <= covered / STUDIES <= 0.975


def test_the_bootstrap_gives_the_same_interval_each_time_and_stays_in_range() -> None:
    values = np.array([0.1, 0.4, 0.2, 0.9, 0.5, 0.3, 0.8, 0.6])
    assert bootstrap_interval(values) == bootstrap_interval(values)
    low, high = bootstrap_interval(values)
    assert values.min() <= low < values.mean() < high <= values.max()
    wide = bootstrap_interval(values, draws=BOOTSTRAP_DRAWS, alpha=0.01)
    assert wide[0] < low
    assert wide[1] > high


def test_one_seed_says_nothing_and_two_say_little() -> None:
    one = paired([90.0], [50.0], MARGIN)
    two = paired([90.0, 91.0], [50.0, 50.5], MARGIN)
    none = paired([], [], MARGIN)
    words = [verdict.word for verdict in judge([one, two, none], MARGIN)]
    assert words[0] == words[2] == "not enough runs"
    assert (one.interval, one.p) == ((-math.inf, math.inf), 1)
    text = sentence(judge([one], MARGIN)[0], "network", "full")
    assert "One seed gives a difference of +40.00 points" in text
    assert two.p < 0.05 < judge([two] * 18, MARGIN)[0].p  # significant alone, not among 18


@pytest.mark.parametrize(
    ("difference", "spread", "word", "says"),
    [
        (1.0, 0.05, "better", "network is better than full ("),
        (-1.0, 0.05, "worse", "network is worse than full ("),
        (0.2, 0.01, "better", "but by less than 0.3 points"),
        (0.0, 0.05, "equivalent", "equivalent within 0.3 points"),
        (0.0, 2.0, "not enough runs", "Detecting a difference of 0.3 points takes about"),
    ],
)
def test_sentences(difference: float, spread: float, word: str, says: str) -> None:
    base = np.array([80.0, 80.5, 79.5, 81.0, 80.2])
    wiggle = spread * np.array([1.0, -1.0, 0.5, -0.5, 0.0])
    (verdict,) = judge([paired(base + difference + wiggle, base, MARGIN)], MARGIN)
    assert verdict.word == word
    assert says in sentence(verdict, "network", "full")


def test_small_differences_are_shown_with_enough_digits() -> None:
    losses = np.array([0.0310, 0.0320, 0.0305, 0.0315])
    lower = losses - np.array([0.0012, 0.0014, 0.0013, 0.0013])
    tested = paired(lower, losses, 0.0005, higher_is_better=False)
    text = sentence(judge([tested], 0.0005)[0], "network", "full", "loss")
    assert "mean difference -0.0013 loss, 95 % interval -0.0014 to -0.0012" in text
    assert decimals(0.0, 3e-17, math.inf) == decimals(40.0) == 2


def test_the_interval_of_equal_rounded_differences_has_a_width() -> None:
    """With eight seeds or more it was a bootstrap of the differences, from +0.1 to +0.1."""
    baseline = 90 + np.arange(10) / 10
    tested = paired(baseline + 0.1, baseline, 0.3, resolution=0.1)
    half = stats.t.ppf(0.975, 9) * math.sqrt(0.1**2 / 6 / 10)
    assert tested.interval == pytest.approx((0.1 - half, 0.1 + half))
    spread = np.random.default_rng(0).normal(0, 0.2, 10)
    usual = paired(baseline + spread, baseline, 0.3, resolution=0.01)
    assert usual.interval == usual.bootstrap


def test_an_interval_without_zero_is_explained_when_the_verdict_is_open() -> None:
    base = np.array([80.0, 80.5, 79.5, 81.0])
    tested = paired(base + np.array([1.0, 0.6, 1.6, 0.7]), base, MARGIN)
    assert tested.interval[0] > 0
    alone, *_ = judge([tested], MARGIN)
    among, *_ = judge([tested] * 12, MARGIN)
    assert alone.word == "better"
    assert "not significant after correction for 12 comparisons" in sentence(among, "a", "b")
    strict, *_ = judge([tested], MARGIN, alpha=alone.p / 2)
    assert f"It is not significant (level {50 * alone.p:.2g} %)." in sentence(strict, "a", "b")


def test_judging_nothing_is_no_error() -> None:
    empty: list[Paired] = []
    assert judge(empty, MARGIN) == []


@pytest.mark.slow
def test_many_degrees_of_freedom_are_written_out() -> None:
    arm, baseline = np.random.default_rng(1).normal(80, 1, (2, 1501))
    (verdict,) = judge([paired(arm, baseline, MARGIN)], MARGIN)
    assert "1501 seeds, 1,500 degrees of freedom" in sentence(verdict, "network", "full")
