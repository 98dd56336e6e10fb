"""What a growing batch is predicted to save."""

import pytest

from thresher.scaling.schedule_offer import offer_schedule


def test_a_growing_critical_batch_saves_steps() -> None:
    offer = offer_schedule([(0.0, 100.0), (1.0, 2000.0)], 16, 50_000.0, 5_000)
    assert offer is not None
    assert offer.constant_steps == 3130  # 10 epochs of 312 batches and one of 8 samples
    begins, batches = zip(*offer.phases, strict=True)
    assert batches == (16, 32, 64, 128, 256)[: len(batches)]
    assert len(batches) >= 4
    assert begins == tuple(sorted(set(begins)))
    assert offer.steps_saved == pytest.approx(1 - offer.steps / 3130, abs=1e-3)
    assert offer.steps_saved > 0.3
    # At most a quarter of the critical batch: 1.25 times the samples of the smallest batch.
    assert 0 < offer.samples_added < 0.25
    assert offer.samples == pytest.approx(50_000 * (1 + offer.samples_added))


def test_steps_and_samples_follow_from_the_phases() -> None:
    """Two epochs, the second at twice the batch: it costs (1 + 32/128)/(1 + 16/128) as much."""
    offer = offer_schedule([(0.0, 128.0), (1.0, 128.0)], 16, 4000.0, 2000)
    assert offer is not None
    assert offer.phases == ((0, 16), (1, 32))
    cost = 1.25 / 1.125
    assert offer.samples == pytest.approx(2000 + 2000 * cost)
    assert offer.steps == pytest.approx(125 + 63 * cost, abs=1)  # epochs end with a smaller batch


def test_the_batch_does_not_grow_before_training_has_measured_enough() -> None:
    """Epochs of 23 steps, of which one in ten measures: the tenth is in the fourth epoch."""
    offer = offer_schedule([(0.0, 9000.0), (1.0, 9000.0)], 64, 10 * 1437.0, 1437)
    assert offer is not None
    assert offer.phases[:2] == ((0, 64), (4, 128))


def test_a_batch_that_cannot_grow_is_not_offered() -> None:
    assert offer_schedule([(0.0, 60.0), (1.0, 100.0)], 16, 50_000.0, 5_000) is None
    assert offer_schedule([], 16, 50_000.0, 5_000) is None
    # It may grow only when nearly all is done.
    assert offer_schedule([(0.9, 60.0), (1.0, 1000.0)], 16, 50_000.0, 5_000) is None
