"""How far a verdict depends on its test images."""

import numpy as np
import pytest
from scipy import stats

from thresher import analyse
from thresher.study.images import image_spread, mcnemar
from thresher.study.results import Trial


def test_mcnemar_is_a_binomial_test_of_the_images_that_differ() -> None:
    random = np.random.default_rng(0)
    arm, baseline = random.random((2, 500)) < 0.8
    gained, lost = (arm & ~baseline).sum(), (baseline & ~arm).sum()
    expected = stats.binomtest(int(gained), int(gained + lost), 0.5).pvalue
    assert mcnemar(arm, baseline) == pytest.approx(expected)
    assert mcnemar(arm, arm) == 1.0


def test_the_bootstrap_over_images_has_the_standard_error_of_their_mean() -> None:
    random = np.random.default_rng(1)
    pairs = [(*(random.random((2, 2000)) < 0.9), 1 / 3) for _ in range(3)]
    spread = image_spread(pairs)
    assert spread is not None
    per_image = np.mean([100.0 * a - 100.0 * b for a, b, _ in pairs], axis=0)
    error = per_image.std() / np.sqrt(2000)
    assert (spread.high - spread.low) / 2 == pytest.approx(1.96 * error, rel=0.08)
    assert spread.low < per_image.mean() < spread.high
    assert spread.p_mcnemar is None
    assert image_spread(pairs) == spread


def test_runs_on_different_images_are_not_compared() -> None:
    bits = np.ones(10, bool)
    assert image_spread([(bits, bits, 0.5), (bits[:9], bits[:9], 0.5)]) is None
    assert image_spread([]) is None


def test_a_verdict_says_how_far_it_depends_on_the_images() -> None:
    random = np.random.default_rng(2)
    trials = []
    for arm, rate in (("full", 0.8), ("network", 0.9)):
        for seed in range(2):
            bits = random.random(400) < rate
            trials.append(
                Trial(cell={"arm": arm}, seed=seed, value=100 * bits.mean(), correct=bits)
            )
    (comparison,) = analyse(trials).verdicts
    assert comparison.images_low is not None
    assert comparison.images_low < comparison.difference < (comparison.images_high or 0)
    assert "(95 % bootstrap over 400 images)" in comparison.sentence
    (single,) = analyse([t for t in trials if t.seed == 0]).verdicts
    assert single.p_mcnemar is not None
    assert "McNemar p = " in single.sentence


def test_images_are_resampled_only_if_every_run_records_them() -> None:
    random = np.random.default_rng(3)

    def trial(arm: str, batch: int, seed: int) -> Trial:
        bits = random.random(200) < 0.8
        recorded = bits if (batch, seed) != (64, 1) else None
        cell = {"batch_size": batch, "arm": arm}
        return Trial(cell=cell, seed=seed, value=100 * bits.mean(), correct=recorded)

    arms, batches = ("full", "network"), (32, 64)
    trials = [trial(a, b, s) for a in arms for b in batches for s in range(3)]
    intervals = {tuple(one.cell.values()): one.images_low for one in analyse(trials).verdicts}
    assert intervals[(32,)] is not None
    assert intervals[(64,)] is None
    assert intervals[()] is None


def test_images_are_paired_only_if_they_are_the_same() -> None:
    """Two data sets may have as many test images, and a pack may be packed in another order."""
    random = np.random.default_rng(3)

    def trial(arm: str, data: str, seed: int, tested_on: str) -> Trial:
        bits = random.random(200) < 0.8
        cell, value = {"data": data, "arm": arm}, 100 * bits.mean()
        return Trial(cell=cell, seed=seed, value=value, correct=bits, tested_on=tested_on)

    places = [("a", "x", "x"), ("b", "y", "y"), ("c", "x", "z"), ("d", "x", "")]
    trials = [
        trial(arm, data, seed, tested_on)
        for data, *both in places
        for arm, tested_on in zip(("full", "network"), both, strict=True)
        for seed in range(3)
    ]
    intervals = {tuple(one.cell.values()): one.images_low for one in analyse(trials).verdicts}
    known = {key: low is not None for key, low in intervals.items()}
    assert known == {(): False, ("a",): True, ("b",): True, ("c",): False, ("d",): True}


def test_images_are_resampled_with_the_weights_of_the_difference() -> None:
    """Seeds that share a draw count as one, and seeds that some settings lack do not count."""
    random = np.random.default_rng(4)
    rates = {0: 0.5, 1: 0.5, 2: 0.9}

    def trial(arm: str, batch: int, seed: int) -> Trial:
        bits = random.random(5000) < (rates[seed] if arm == "network" else 0.5)
        draws = {"net": "one" if seed < 2 else "two"} if arm == "network" else {}
        cell = {"batch_size": batch, "arm": arm}
        return Trial(cell=cell, seed=seed, value=100 * bits.mean(), correct=bits, draws=draws)

    cases = [(a, b, s) for a in ("full", "network") for b in (32, 64) for s in range(3)]
    for chosen, expected in ((cases, 20.0), ([c for c in cases if c[1:] != (64, 1)], 20.0)):
        overall = analyse([trial(*case) for case in chosen]).overall[0]
        assert overall.difference == pytest.approx(expected, abs=2)
        assert overall.images_low is not None
        assert overall.images_high is not None
        assert (overall.images_low + overall.images_high) / 2 == pytest.approx(
            overall.difference, abs=0.2
        )
