"""Single runs that a plan compares: their time, cost and memory, and the budget they must meet."""

import dataclasses

import pytest
from scaling_profiles import make_profile

from thresher.errors import ThresherError
from thresher.scaling.candidates import (
    Budget,
    Machine,
    candidate_run,
    candidate_runs,
    memory_bytes,
    parse_budget,
)
from thresher.scaling.catalog import load_cluster
from thresher.scaling.predict import powers
from thresher.scaling.sample_model import SampleModel

STATS = SampleModel(critical_batch=512, samples=1e6, batch_size=64, lr=0.1, train_samples=50_000)


@pytest.mark.parametrize("text", ["much", "-3h", "0", "inf", "nanh"])
def test_a_budget_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ThresherError, match="budget"):
        parse_budget(text)


def test_budgets_are_read() -> None:
    assert parse_budget("3h") == Budget(hours=3)
    assert parse_budget("250") == Budget(money=250)
    assert parse_budget(None) == Budget()
    assert powers(8, 64) == [8, 16, 32, 64]


def test_batches_beyond_the_memory_are_left_out() -> None:
    profile = make_profile()
    small = load_cluster("summit")
    room = memory_bytes(profile, 64) / 1e9
    small = dataclasses.replace(small, device=dataclasses.replace(small.device, memory_gb=room))
    for o in candidate_runs(STATS, Machine(profile, small), max_workers=64):
        assert o.batch_size / o.workers <= 64
    none = dataclasses.replace(small, device=dataclasses.replace(small.device, memory_gb=0.1))
    with pytest.raises(ThresherError, match="does not fit the memory"):
        candidate_runs(STATS, Machine(profile, none), max_workers=1)


def test_an_option_multiplies_out() -> None:
    o = candidate_run(STATS, Machine(make_profile(), load_cluster("summit")), 64, 4)
    assert o.seconds == pytest.approx(o.steps * o.step_s)
    assert o.device_hours == pytest.approx(4 * o.seconds / 3600)
    assert o.seconds_low <= o.seconds <= o.seconds_high
    assert o.sample_efficiency == pytest.approx(1 / (1 + 64 / 512))


def test_the_smaller_last_batch_of_each_epoch_is_a_step_too() -> None:
    """As in `thresher train`: an epoch of 1,437 samples at batch 1,024 has two steps."""
    machine = Machine(make_profile(), load_cluster("summit"))
    few = dataclasses.replace(STATS, samples=20 * 1437, batch_size=1024, train_samples=1437)
    run = candidate_run(few, machine, 1024, 4)
    assert (run.epochs, run.steps) == (pytest.approx(20), 40)
    first, last = (machine.steps(batch, 4)[1].step_s for batch in (1024, 413))
    assert last < first
    assert run.seconds == pytest.approx(20 * (first + last))
    even = dataclasses.replace(few, samples=20 * 2048, train_samples=2048)
    assert candidate_run(even, machine, 1024, 4).seconds == pytest.approx(40 * first)
