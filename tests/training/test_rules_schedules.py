"""Rules and schedules against their closed forms."""

import math
from typing import Any

import pytest

from thresher.errors import ThresherError
from thresher.training.schedules import Rate, RateConfig, Schedule, scaled_rate, unreached


@pytest.mark.parametrize(
    ("rule", "rate", "warmup"),
    [
        ("none", 0.1, 2.5),
        ("linear", 0.8, 2.5),
        ("sqrt", 0.1 * math.sqrt(8), 2.5),
        ("legw", 0.1 * math.sqrt(8), 20),
    ],
)
def test_rules(rule: str, rate: float, warmup: float) -> None:
    got = scaled_rate(rule, 0.1, 2048, 256, 2.5)
    assert got.peak_lr == pytest.approx(rate, rel=1e-15)
    assert got.warmup_epochs == pytest.approx(warmup, rel=1e-15)
    assert scaled_rate(rule, 0.1, 256, 256, 2.5) == Rate(0.1, 2.5)


def test_goyals_table() -> None:
    """Rate 0.1 at 256 gives 3.2 at 8,192 under the linear rule."""
    assert scaled_rate("linear", 0.1, 8192, 256, 5).peak_lr == pytest.approx(3.2)


def test_bad_rules() -> None:
    with pytest.raises(ThresherError, match='unknown rate rule "lineal"; did you mean "linear"'):
        scaled_rate("lineal", 0.1, 1, 1)
    with pytest.raises(ThresherError, match="base_batch must be at least 1, got 0"):
        scaled_rate("linear", 0.1, 128, 0)
    with pytest.raises(ThresherError, match="lr must be at least 0"):
        scaled_rate("linear", -0.1, 128, 64)


def test_warmup_is_linear_and_wastes_no_step() -> None:
    schedule = Schedule("cosine", total=1000, warmup=100)
    assert [schedule.factor(seen, 20) for seen in range(0, 100, 20)] == pytest.approx(
        [0.2, 0.4, 0.6, 0.8, 1.0]
    )
    assert schedule.factor(100, 20) == 1.0
    assert Schedule("constant", total=1000, warmup=100).factor(30, 20) == pytest.approx(0.5)


@pytest.mark.parametrize("seen", [100, 137, 550, 990])
def test_decays(seen: int) -> None:
    t = (seen - 100) / 900
    assert Schedule("cosine", 1000, 100).factor(seen, 10) == pytest.approx(
        0.5 * (1 + math.cos(math.pi * t))
    )
    assert Schedule("poly", 1000, 100, power=3).factor(seen, 10) == pytest.approx((1 - t) ** 3)
    assert Schedule("constant", 1000, 100).factor(seen, 10) == 1.0


def test_step_falls_at_each_milestone() -> None:
    schedule = Schedule("step", 90, milestones=(30, 60, 80))
    assert [schedule.factor(s, 1) for s in (0, 29, 30, 59, 60, 79, 80, 89)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
    )
    early = Schedule("step", 90, warmup=40, milestones=(10,))
    assert early.factor(19, 1) == pytest.approx(0.1 * 20 / 40)


def test_the_factor_depends_on_samples_not_on_steps() -> None:
    """Halving the batch leaves the decay at equal samples as it was."""
    schedule = Schedule("poly", 10_000)
    assert schedule.factor(4096, 64) == schedule.factor(4096, 2048)


def test_the_end_is_zero_and_stays_there() -> None:
    assert Schedule("cosine", 100).factor(100, 1) == pytest.approx(0, abs=1e-15)
    assert Schedule("poly", 100).factor(150, 1) == 0


def test_bad_schedules() -> None:
    with pytest.raises(ThresherError, match='unknown schedule "cosin"; did you mean "cosine"'):
        Schedule("cosin", 10)


@pytest.mark.parametrize(
    ("options", "remarks"),
    [
        ({"schedule": "step"}, ["the learning rate does not fall"]),
        ({"schedule": "step", "step_epochs": (9.0, 30.0)}, []),
        ({"warmup_epochs": 10.0}, []),
        ({"warmup_epochs": 11.0}, ["the learning rate does not reach its peak"]),
        # Five epochs at 32 samples are twenty at 128.
        (
            {"warmup_epochs": 5.0, "lr_rule": "legw", "base_batch": 32},
            ["the learning rate does not reach its peak, because the warm-up of 20 epochs"],
        ),
        ({}, []),
    ],
)
def test_what_a_run_never_comes_to_is_mentioned(
    options: dict[str, Any], remarks: list[str]
) -> None:
    said = unreached(RateConfig(**options), epochs=10, batch=128)
    assert len(said) == len(remarks)
    assert all(map(str.startswith, said, remarks))
