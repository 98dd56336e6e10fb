"""Everything derived from a configuration: parts, pieces, budgets and rates."""

from typing import Any

import pytest

from thresher.training.batches import piece_count, slices
from thresher.training.config import TrainConfig
from thresher.training.remarks import unchanged_batch
from thresher.training.resolved import Resolved, resolve, schedule


def _resolve(samples: int, full: int | None = None, **options: Any) -> Resolved:
    return resolve(TrainConfig(data="d", out="o", **options), samples, full)


def test_strong_scaling_splits_the_batch_and_weak_scaling_multiplies_it() -> None:
    strong = _resolve(1000, batch_size=100, workers=3, lr_rule="linear", base_batch=50)
    assert (strong.global_batch, strong.per_worker_batch, strong.peak_lr) == (100, 34, 0.2)
    weak = _resolve(
        1000, batch_size=100, workers=3, scaling="weak", lr_rule="linear", base_batch=50
    )
    assert (weak.global_batch, weak.per_worker_batch) == (300, 100)
    assert weak.peak_lr == pytest.approx(0.6)


def test_legw_scales_rate_and_warm_up() -> None:
    found = _resolve(4000, batch_size=400, base_batch=100, lr_rule="legw", warmup_epochs=1)
    assert found.peak_lr == pytest.approx(0.2)
    assert found.warmup_epochs == 4
    assert found.warmup_steps == 40


def test_steps_of_the_warm_up_count_the_last_batch_of_each_epoch() -> None:
    common: dict[str, Any] = {"batch_size": 300, "epochs": 4, "warmup_epochs": 2}
    assert _resolve(1000, **common).warmup_steps == 2 * 4
    assert _resolve(1000, **common, batch_schedule="double@1").warmup_steps == 4 + 2
    assert _resolve(1000, **{**common, "warmup_epochs": 1.31}).warmup_steps == 4 + 2


@pytest.mark.parametrize(
    ("budget", "steps", "samples"),
    [("epochs", 2 * 4, 2 * 310), ("samples", 3 * 4 + 1, 1000), ("steps", 10, 2 * 310 + 200)],
)
def test_budgets(budget: str, steps: int, samples: int) -> None:
    """500 samples, of which 310 are kept, in batches of 100, for two epochs."""
    found = _resolve(310, 500, batch_size=100, epochs=2, budget=budget)
    assert (found.total_steps, found.total_samples) == (steps, samples)


def test_a_filtered_run_with_the_full_budget_lowers_its_rate_at_the_same_sample() -> None:
    common: dict[str, Any] = {"schedule": "step", "step_epochs": (1.0,), "epochs": 2}
    for samples, budget in ((500, "epochs"), (310, "samples")):
        options = {**common, "batch_size": 100, "budget": budget}
        config = TrainConfig(data="d", out="o", **options)
        course = schedule(config, resolve(config, samples, 500))
        assert course.factor(499, 1) == 1
        assert course.factor(500, 1) == pytest.approx(0.1)


@pytest.mark.parametrize("budget", ["epochs", "samples", "steps"])
def test_epochs_of_the_schedule_are_exact_if_the_run_ends_within_one(budget: str) -> None:
    """2.5 epochs of 287 samples are rounded to 718, and 718 / 2.5 is more than an epoch."""
    options: dict[str, Any] = {"epochs": 2.5, "batch_size": 33, "budget": budget}
    options |= {"schedule": "step", "step_epochs": (1.0, 2.0), "warmup_epochs": 1.0}
    config = TrainConfig(data="d", out="o", **options)
    resolved = resolve(config, 287)
    assert (resolved.samples_per_epoch, resolved.warmup_steps) == (287, 9)
    factors = [schedule(config, resolved).factor(seen, 33) for seen in (286, 287, 573, 574)]
    assert factors == pytest.approx([1, 0.1, 0.1, 0.01])
    filtered = resolve(config, 200, 287)
    assert budget == "steps" or filtered.samples_per_epoch == {"epochs": 200}.get(budget, 287)


def test_cuts_lose_nothing_and_fall_between_groups() -> None:
    assert slices(7, 4) == [(0, 2), (2, 4), (4, 6), (6, 7)]
    assert slices(7, 4, align=4) == [(0, 4), (4, 7), (7, 7), (7, 7)]
    assert piece_count(100, 3, None) == 1
    assert piece_count(100, 3, 10) == 4
    assert piece_count(100, 1, 25, align=10) == 5


@pytest.mark.parametrize(
    ("options", "remark"),
    [
        ({"batch_schedule": "double@2,4"}, "the batch does not change"),
        ({"batch_schedule": "double@1,4"}, ""),
        ({"batch_schedule": "0:100,2:200"}, "the batch does not change"),
        ({"batch_schedule": "noise", "max_batch": 199}, "the batch does not grow"),
        ({"batch_schedule": "noise"}, ""),
        ({}, ""),
    ],
)
def test_a_batch_schedule_that_changes_nothing_is_mentioned(
    options: dict[str, Any], remark: str
) -> None:
    said = unchanged_batch(_resolve(1000, batch_size=100, epochs=2, **options))
    assert said.startswith(remark)
    assert bool(said) == bool(remark)
