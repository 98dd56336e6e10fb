"""Samples by batch size, and what pilots say about them."""

import dataclasses
import math

import numpy as np
import pytest

from thresher.errors import ThresherError
from thresher.scaling.batch_table import BatchRow
from thresher.scaling.pilot import Pilot, critical_of, fit_curves, runs_needed
from thresher.scaling.pilot_runs import samples_until
from thresher.scaling.sample_fit import fit_samples
from thresher.scaling.sample_model import SampleModel

STATS = SampleModel(critical_batch=512, samples=1e6, batch_size=64, lr=0.1, train_samples=50_000)


def test_steps_and_samples_obey_the_hyperbola() -> None:
    samples_min = STATS.samples_min
    steps_min = samples_min / STATS.critical_batch
    for batch in (8, 64, 512, 4096):
        samples = STATS.samples_at(batch)
        steps = samples / batch
        assert (steps / steps_min - 1) * (samples / samples_min - 1) == pytest.approx(1)
    assert STATS.samples_at(64) == pytest.approx(1e6)
    assert STATS.samples_at(512) == pytest.approx(2 * samples_min)


def test_the_rate_is_linear_in_small_batches_and_flat_in_large_ones() -> None:
    rates = {batch: STATS.rate_at(batch) or 0.0 for batch in (1, 2, 64, 2**19, 2**20)}
    assert rates[64] == pytest.approx(0.1)
    assert rates[2] / rates[1] == pytest.approx(2, rel=0.01)
    assert rates[2**20] / rates[2**19] == pytest.approx(1, rel=0.01)


def test_rates_that_are_known_count_and_others_lie_between_them() -> None:
    known = dataclasses.replace(STATS, rates={16: 0.02, 256: 0.05})
    assert known.rate_at(16) == 0.02
    assert known.rate_at(256) == 0.05
    assert known.rate_at(64) == pytest.approx(math.sqrt(0.02 * 0.05))
    assert known.rate_at(8) == pytest.approx(0.01, rel=0.02)
    assert known.rate_at(512) == pytest.approx(0.05 * (1 + 512 / 256) / (1 + 512 / 512))
    assert dataclasses.replace(STATS, lr=None).rate_at(64) is None


def test_pilots_are_repeated_if_their_samples_scatter() -> None:
    generator = np.random.default_rng(0)
    for scatter, fewest, most in [(0.05, 3, 3), (0.2, 4, 5), (0.27, 6, 9), (1.0, 9, 9)]:
        counts = np.exp(8 + scatter * generator.standard_normal((3, 40)))
        assert fewest <= runs_needed(counts.tolist()) <= most
    assert runs_needed([[1e3, 2e3, 9e3], [1e3, None, 9e3]]) == 3


def test_warm_up_is_that_of_the_published_runs_at_equal_steps_per_epoch() -> None:
    for images, batches in [(1_281_167, (7_680, 30_720)), (50_000, (299.7, 1_198.9))]:
        stats = dataclasses.replace(
            STATS, samples=90 * images, critical_batch=1e12, train_samples=images
        )
        assert [stats.warmup_at(b) for b in batches] == pytest.approx([5, 10], rel=1e-3)
        assert stats.warmup_at(10**7) == pytest.approx(0.2 * 90, rel=1e-3)


def test_the_critical_batch_comes_out_of_the_courses_it_went_into() -> None:
    def course(batch: int, critical: float) -> list[tuple[float, float]]:
        """Accuracy 0.1 an epoch's worth of useful samples: those seen, over 1 + B/B_crit."""
        return [(n * 1000.0, 0.1 * n / (1 + batch / critical)) for n in range(1, 8)]

    for critical in (20.0, 100.0, 500.0):
        curves = {batch: 2 * [course(batch, critical)] for batch in (16, 64, 256)}
        fit = fit_curves(curves, 1000)
        assert fit is not None
        assert fit.b_crit == pytest.approx(critical, rel=1e-3)
        # The highest accuracy that the largest batch reached, or the target if that is lower.
        assert fit.target == f"{0.7 / (1 + 256 / critical):g}"
        early = fit_curves(curves, 1000, target=0.05)
        assert early is not None
        assert early.target == "0.05"
        assert early.b_crit == pytest.approx(critical, rel=1e-3)
    # Samples that do not grow with the batch, runs that were never evaluated, and too short ones.
    assert fit_curves({b: [course(16, 1e9)] for b in (16, 64, 256)}, 1000) is None
    assert fit_curves({16: [[]], 64: [course(64, 100)], 256: [course(256, 100)]}, 1000) is None
    assert fit_curves({b: [course(b, 100)] for b in (16, 64, 256)}, 20_000) is None


def _pilot(target: float, fit_target: float) -> Pilot:
    rows = [
        BatchRow(batch, 3000 * (1 + batch / 80) * scatter, f"{fit_target:g}")
        for batch in (16, 64, 256)
        for scatter in (0.9, 1.0, 1.1)
    ]
    fit = fit_samples(rows)
    critical, low, high = critical_of(fit, 240.0, target)
    return Pilot(
        *(16, (16, 64, 256), 0.03, {16: 0.03}, critical, low, high),
        noise_scale=240.0,
        fit=fit,
        images_per_s=100.0,
        samples=5000,
        target=target,
        reached=fit_target == target,
        accuracy=0.9,
        train_samples=1000,
        runs=3,
        folders=(),
    )


def test_a_fit_at_the_target_decides_alone() -> None:
    pilot = _pilot(target=0.9, fit_target=0.9)
    assert pilot.critical_batch == pytest.approx(80, rel=0.01)
    model = pilot.sample_model(30, 1400)
    for batch in (8, 16, 256):
        value = model.estimate_at(batch)
        assert value.value == pytest.approx(2990 * (1 + batch / 80), rel=0.01)
        # A single run scatters by a quarter, beside the error of the fit.
        assert value.low < 0.7 * value.value
        assert value.high > 1.4 * value.value
    assert pilot.critical_batch_low is not None
    assert pilot.critical_batch_low > 80 / 2


def test_predictions_follow_the_pilots_where_they_leave_the_form() -> None:
    """E(B) bends: on CIFAR-10 the form had 20 % more samples at batch 32 than the pilots there."""
    rows = [
        BatchRow(batch, samples * scatter, "0.9")
        for batch, samples in ((32, 223e3), (128, 333e3), (512, 448e3), (2048, 727e3))
        for scatter in (0.9, 1, 1 / 0.9)
    ]
    fit = fit_samples(rows)
    pilot = dataclasses.replace(_pilot(0.9, 0.9), fit=fit, critical_batch=fit.b_crit, batch_size=32)
    model = pilot.sample_model(30, 50_000)
    form = fit.samples_at(32)
    assert form > 1.15 * 223e3
    # Not all the way: the mean of three runs scatters, too.
    assert 1.02 * 223e3 < model.samples_at(32) < 1.1 * 223e3
    assert model.samples_at(64) > model.samples_at(32)
    here = model.estimate_at(32)
    assert here.low < model.samples_at(32) < here.high
    assert math.sqrt(here.low * here.high) == pytest.approx(here.value, rel=0.15)
    # In the limit of small batches nothing is better than it can be.
    assert model.samples_min <= min(model.samples_at(2.0**k) for k in range(12))
    assert model.samples_at(8) / model.samples_at(16) == pytest.approx(
        fit.samples_at(8) / fit.samples_at(16)
    )


def test_a_table_whose_repeats_explain_the_errors_does_not_bend() -> None:
    rows = [
        BatchRow(batch, 1e5 * (1 + batch / 300) * off * scatter)
        for batch, off in ((16, 1.03), (32, 0.98), (64, 0.97), (128, 1.04), (256, 1), (512, 0.99))
        for scatter in (0.8, 1, 1.25)
    ]
    assert fit_samples(rows).bends == ()
    assert fit_samples(rows[::3]).bends == ()  # without repeats nothing tells them apart


def test_a_fit_below_the_target_is_a_guess() -> None:
    pilot = _pilot(target=0.9, fit_target=0.5)
    assert pilot.critical_batch == pytest.approx(math.sqrt(80 * 240), rel=0.01)
    assert pilot.critical_batch_low == pytest.approx(pilot.critical_batch / 4)
    assert pilot.critical_batch_high == pytest.approx(pilot.critical_batch * 4)
    # Epochs are those of the run that is planned, not of the pilots, which hold samples out.
    model = pilot.sample_model(30, 1400)
    assert model.samples_at(16) == pytest.approx(30 * 1400)
    fitted = _pilot(0.9, 0.9).sample_model(30, 1400)
    wide, narrow = model.estimate_at(1024), fitted.estimate_at(1024)
    assert wide.high / wide.low > 2 * narrow.high / narrow.low
    with pytest.raises(ThresherError, match="too short to estimate the critical batch"):
        critical_of(None, None, 0.9)


def test_samples_until_reads_between_evaluations() -> None:
    course = [(100.0, 0.2), (200.0, 0.1), (300.0, 0.6)]
    assert samples_until(course, 0.1) == pytest.approx(50)
    assert samples_until(course, 0.4) == pytest.approx(250)
    assert samples_until(course, 0.7) is None
