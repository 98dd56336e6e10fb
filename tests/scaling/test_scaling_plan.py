import dataclasses
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from scaling_profiles import digits_profile, make_profile

from thresher.cli.plan import plan as plan_command
from thresher.data.write import write_pack
from thresher.errors import ThresherError
from thresher.scaling.candidates import (
    PILOT_SHARE,
    SAFE,
    Budget,
    CandidateRun,
    Machine,
    candidate_run,
    candidate_runs,
    efficient,
    recommend,
    uncertainty,
)
from thresher.scaling.catalog import load_cluster
from thresher.scaling.plan import PlanConfig, plan, plan_table
from thresher.scaling.sample_fit import FORM_ERROR
from thresher.scaling.sample_model import SampleModel
from thresher.training.config import TrainConfig

sys.path.append(str(Path(__file__).parent.parent / "study"))
from few_digits import make_pack

from quick_tiny import _quick_tiny  # noqa: F401

STATS = SampleModel(critical_batch=512, samples=1e6, batch_size=64, lr=0.1, train_samples=50_000)


def on_summit(max_workers: int) -> list[CandidateRun]:
    return candidate_runs(STATS, Machine(make_profile(), load_cluster("summit")), max_workers)


def test_a_faster_option_is_never_passed_over_within_the_rules() -> None:
    found = on_summit(64)
    best, reason = recommend(found, STATS.critical_batch, Budget())
    sound = [o for o in found if o.batch_size <= STATS.critical_batch / 4]
    assert best in sound
    thrifty = min(o.device_hours for o in sound)
    for o in sound:
        if o.device_hours <= 2 * thrifty:
            assert best.seconds <= 1.021 * o.seconds
    assert "critical batch" in reason


@pytest.mark.parametrize("share", [SAFE, PILOT_SHARE])
def test_a_recommended_batch_is_at_most_a_share_of_the_critical_one(share: float) -> None:
    best, _ = recommend(on_summit(64), STATS.critical_batch, Budget(), share=share)
    assert best.batch_size <= STATS.critical_batch * share < 2 * best.batch_size


def test_a_much_faster_run_at_a_larger_batch_is_mentioned() -> None:
    found = on_summit(64)
    best, reason = recommend(found, STATS.critical_batch, Budget(), share=1 / 64)
    quick = min(found, key=lambda run: run.seconds)
    assert best.batch_size == 8 < quick.batch_size
    samples = (1 + quick.batch_size / 512) / (1 + 8 / 512)
    words = f"batch {quick.batch_size:,} on {quick.workers} workers would need"
    assert (
        f"{words} {100 * quick.seconds / best.seconds:.0f} % of the time, and {samples:.2g} times"
        in reason
    )
    alone = [run for run in found if run.batch_size == 8]
    assert "budget" not in recommend(alone, STATS.critical_batch, Budget())[1]


def test_the_overhead_is_that_of_pilots_which_train_in_fp32() -> None:
    profile, cluster = make_profile(), load_cluster("summit")
    step_s = 10 * 3e-4 * 64 + 1e-3
    plain = Machine(profile, cluster).with_overhead(64, 64 / (1.5 * step_s))
    assert plain.overhead == pytest.approx(1.5)
    # Pilots in fp32 say nothing about the overhead of steps in fp16.
    half = Machine(dataclasses.replace(profile, precision="fp16"), cluster, "fp16")
    assert half.with_overhead(64, 64 / (1.5 * step_s)).overhead == 1.0


def test_budgets_of_money_and_hours_are_kept() -> None:
    priced = dataclasses.replace(load_cluster("summit"), device_hour=3.0)
    found = candidate_runs(STATS, Machine(make_profile(), priced), max_workers=64)
    costs = sorted(o.cost for o in found if o.cost is not None)
    money = costs[len(costs) // 2]
    best, _ = recommend(found, STATS.critical_batch, Budget(money=money))
    assert best.cost is not None
    assert best.cost <= money
    assert best.seconds == min(o.seconds for o in found if o.cost is not None and o.cost <= money)
    times = sorted(o.seconds for o in found)
    hours = times[len(times) // 2] / 3600
    best, _ = recommend(found, STATS.critical_batch, Budget(hours=hours))
    assert best.seconds <= hours * 3600
    assert best.device_hours == min(o.device_hours for o in found if o.seconds <= hours * 3600)
    with pytest.raises(
        ThresherError, match=r"budget must be at least .* the cost of the cheapest run"
    ):
        recommend(found, STATS.critical_batch, Budget(money=costs[0] / 2))
    with pytest.raises(
        ThresherError, match=r"budget must be at least .* h, the time of the fastest run"
    ):
        recommend(found, STATS.critical_batch, Budget(hours=times[0] / 7200))


@pytest.mark.parametrize("price", [1e-7, 3.0])
def test_the_budget_that_a_message_names_is_enough(price: float) -> None:
    """It was 0.00 for short runs, and could be rounded down."""
    priced = dataclasses.replace(load_cluster("summit"), device_hour=price)
    found = candidate_runs(STATS, Machine(make_profile(), priced), max_workers=8)
    for budget, name in ((Budget(money=1e-12), "money"), (Budget(hours=1e-12), "hours")):
        with pytest.raises(ThresherError, match="budget must be at least") as error:
            recommend(found, STATS.critical_batch, budget)
        least = float(str(error.value).split("at least ")[1].split()[0].rstrip(","))
        recommend(found, STATS.critical_batch, Budget(**{name: least}))


def test_a_budget_of_money_needs_a_price() -> None:
    found = on_summit(8)
    with pytest.raises(ThresherError, match="has no price"):
        recommend(found, STATS.critical_batch, Budget(money=100))


@pytest.fixture
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    from thresher.data.sources.digits import Digits

    monkeypatch.setenv("THRESHER_HOME", str(tmp_path / "home"))
    write_pack(Digits(), tmp_path / "digits")
    return str(tmp_path / "digits")


def quick_profile(path: Path, model: str = "tiny") -> Path:
    profile = dataclasses.replace(digits_profile(), model=model)
    profile.save(path)
    return path


def test_intervals_of_samples_and_step_time_add_as_squares() -> None:
    machine = Machine(make_profile(), dataclasses.replace(load_cluster("summit"), device_hour=2.0))
    exact = candidate_run(STATS, machine, 64, 4)
    assert (exact.samples_low, exact.samples_high) == (None, None)
    assert exact.uncertain == "samples"
    samples = STATS.samples_min
    # Samples between a half and twice the value, at every batch.
    draws = tuple((samples * 2**k, STATS.critical_batch) for k in np.linspace(-1, 1, 201))
    run = candidate_run(dataclasses.replace(STATS, draws=draws), machine, 64, 4)
    assert run.samples_low is not None
    assert run.samples_high is not None
    assert run.samples_low < run.samples < run.samples_high
    parts = (exact.seconds_high / exact.seconds, run.samples_high / run.samples)
    expected = math.exp(math.hypot(*map(math.log, parts)))
    assert run.seconds_high / run.seconds == pytest.approx(expected)
    assert run.seconds == exact.seconds
    assert run.cost is not None
    assert run.cost_high is not None
    assert run.cost_high / run.cost == pytest.approx(expected)
    assert run.uncertain == "samples"
    assert "the samples to the target" in uncertainty(run, assumed=False)
    assert "assumed" in uncertainty(run, assumed=True)
    narrow = tuple((samples * 1.0001**k, STATS.critical_batch) for k in range(-5, 6))
    sure = candidate_run(dataclasses.replace(STATS, draws=narrow), machine, 64, 4)
    assert sure.uncertain == "step time"
    assert "mostly limited by the seconds of a step" in uncertainty(sure, assumed=False)


def test_no_run_beats_one_of_the_frontier() -> None:
    runs = on_summit(64)
    front = efficient(runs)
    assert len(front) > 2
    for run in front:
        assert not any(o.seconds < run.seconds and o.device_hours <= run.device_hours for o in runs)
    for run in runs:
        assert any(o.seconds <= run.seconds and o.device_hours <= run.device_hours for o in front)


def test_a_plan_from_a_table_trains_nothing(digits: str, tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    rows = [f"{batch},{20 * (1 + batch / 300)},0.05" for batch in (16, 64, 256, 1024)]
    table.write_text("\n".join(["batch,epochs,lr", *rows]))
    config = PlanConfig(
        data=digits,
        from_=table,
        cluster="summit",
        profile=quick_profile(tmp_path / "p.json"),
        max_workers=8,
        figure=tmp_path / "plan.png",
    )
    outcome = plan_command(config)
    data = json.loads(json.dumps(outcome.data))
    assert not (tmp_path / "home").exists()
    assert data["pilot"] is None
    assert data["fit"]["b_crit"] == pytest.approx(300, rel=1e-3)
    assert data["samples_to_target"] == "fitted"
    best = data["recommended"]
    assert best["batch_size"] <= 300 / 4
    assert best["epochs"] == pytest.approx(20 * (1 + best["batch_size"] / 300), rel=1e-3)
    assert best["lr"] == pytest.approx(0.05)  # that of the table at the batches around it
    assert best["samples_low"] <= best["samples"] <= best["samples_high"]
    # The rows are exact, but four batch sizes do not show that the form is.
    assert best["samples_high"] / best["samples_low"] > math.exp(2 * FORM_ERROR)
    assert "mostly limited by the samples to the target" in best["reason"]
    assert max(row["batch_size"] for row in data["rows"]) <= 1024
    assert "95 % intervals" in outcome.text
    assert "two published points" in outcome.text
    assert (tmp_path / "plan.png").stat().st_size > 5_000


def test_a_plan_follows_the_rows_of_a_table_that_the_form_does_not_fit(
    digits: str, tmp_path: Path
) -> None:
    table = tmp_path / "runs.csv"
    table.write_text(
        "batch,samples\n32,100000\n128,101000\n512,150000\n1000,240000\n2048,1000000\n"
    )
    profile = quick_profile(tmp_path / "p.json")
    config = PlanConfig(data=digits, from_=table, cluster="summit", profile=profile, max_workers=2)
    made = plan(config)
    assert made.fit is not None
    assert not made.fit.fits
    # A quarter of the critical batch is 64 or less.
    assert made.critical_batch / 4 < 128
    assert made.recommended.batch_size == 128
    assert made.recommended.samples == pytest.approx(101_000)
    assert "the form does not fit" in made.reason


def test_a_plan_takes_batches_and_rates_from_the_table(digits: str, tmp_path: Path) -> None:
    """Rates that were tuned count where they were tuned; the rule is for batches between them."""
    table = tmp_path / "runs.csv"
    rates = {24: 0.02, 96: 0.05, 384: 0.06}
    rows = [f"{batch},{20 * (1 + batch / 300)},{lr}" for batch, lr in rates.items()]
    table.write_text("\n".join(["batch,epochs,lr", *rows]))
    profile = quick_profile(tmp_path / "p.json")
    config = PlanConfig(data=digits, from_=table, cluster="summit", profile=profile, max_workers=64)
    made = plan(config)
    alone = {row.batch_size: row for row in plan_table(config, 1437).rows}
    assert (
        {run.batch_size for run in made.candidates} == set(alone) == {24, 32, 64, 96, 128, 256, 384}
    )
    for run in made.candidates:
        assert run.lr == pytest.approx(alone[run.batch_size].lr)
        assert run.samples == pytest.approx(alone[run.batch_size].samples)
        assert run.lr == pytest.approx(rates.get(run.batch_size, run.lr))
        assert run.batch_size % run.workers == 0


def test_a_plan_recommends_a_row_of_a_table_that_the_form_does_not_fit(
    digits: str, tmp_path: Path
) -> None:
    table = tmp_path / "runs.csv"
    table.write_text("batch,samples,lr\n24,10000,0.01\n96,30000,0.04\n384,11000,0.1\n768,4e4,1\n")
    profile = quick_profile(tmp_path / "p.json")
    config = PlanConfig(data=digits, from_=table, cluster="summit", profile=profile, max_workers=2)
    made = plan(config)
    best = made.recommended
    assert (best.batch_size, best.samples, best.lr) == pytest.approx((384, 11_000, 0.1))
    assert "batch 384 is the largest of the table" in made.reason
    assert {run.batch_size: run.samples for run in made.candidates} == pytest.approx(
        {24: 10_000, 96: 30_000, 384: 11_000}
    )
    assert "--batch-size 384 " in made.command


def test_a_critical_batch_below_one_is_not_written_as_zero(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text("batch,samples\n4,13500\n8,26000\n16,51000\n32,101000\n")
    text = str(plan_command(PlanConfig(from_=table)).text)
    assert "the critical batch is 0.32 (95 % interval unknown to" in text
    assert "(1 + batch / 0.32)" in text


@pytest.mark.slow  # trains pilots and a sweep
def test_the_plan_of_digits_holds_in_a_small_sweep(digits: str, tmp_path: Path) -> None:
    """The recommended batch takes at most twice the samples of the best of three."""
    from thresher.training.train import train

    target = 0.85
    config = PlanConfig(
        data=digits,
        cluster="summit",
        target_accuracy=target,
        pilot_epochs=12,
        pilot_seeds=2,
        profile=quick_profile(tmp_path / "p.json"),
        max_workers=8,
    )
    data = json.loads(json.dumps(plan_command(config).data))
    best = data["recommended"]
    assert {"workers", "batch_size", "lr", "warmup_epochs", "seconds"} <= set(best)
    assert data["samples_to_target"] == "measured"
    assert len(data["rows"]) > 5
    assert f"--batch-size {best['batch_size']}" in best["command"]
    assert best["epochs"] == pytest.approx(best["samples"] / data["pilot"]["train_samples"])

    def samples(batch: int, lr: float) -> float:
        result = train(
            TrainConfig(
                data=digits,
                out=str(tmp_path / f"run{batch}"),
                model="tiny",
                batch_size=batch,
                lr=lr,
                epochs=15,
                schedule="constant",
                validation=0.15,
                target_accuracy=target,
                threads=1,
                seed=7,
            ),
            quiet=True,
        )
        return float(result.samples) if result.status == "target" else float("inf")

    rates = {row["batch_size"]: row["lr"] for row in data["rows"]}
    batches = sorted({best["batch_size"], 16, 128} & set(rates))
    found = {batch: samples(batch, rates[batch]) for batch in batches}
    # One epoch is the step of the count: that much is rounding, not a worse batch.
    assert found[best["batch_size"]] <= 2 * min(found.values()) + 1300


@pytest.mark.slow  # trains ten pilots
def test_a_second_plan_runs_no_second_pilot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THRESHER_HOME", str(tmp_path / "home"))
    config = PlanConfig(
        data=make_pack(tmp_path),
        cluster="summit",
        pilot_epochs=0.5,
        pilot_seeds=1,
        profile=quick_profile(tmp_path / "p.json"),
        max_workers=2,
    )
    first = plan(config).pilot
    assert first is not None
    results = [Path(folder) / "result.json" for folder in first.folders]
    written = [path.stat().st_mtime_ns for path in results]
    assert plan(config).pilot == first
    # Another configuration, be it by another version's defaults, is another pilot.
    elsewhere = plan(dataclasses.replace(config, device="cpu")).pilot
    assert elsewhere is not None
    assert not set(elsewhere.folders) & set(first.folders)
    assert [path.stat().st_mtime_ns for path in results] == written


def test_wrong_plans_are_refused_in_a_sentence(digits: str, tmp_path: Path) -> None:
    config = PlanConfig(data=digits, cluster="summit")
    other = quick_profile(tmp_path / "other.json", "resnet18")
    for change, message in (
        ({"profile": other}, "is of model resnet18, not tiny"),
        ({"target_accuracy": 90.0}, r"target_accuracy must be in \(0, 1\], got 90"),
        ({"budget": "100"}, "cluster summit has no price"),
        ({"precision": "bf16"}, "no peak rate for bf16"),
        ({"lr": 0.0}, "lr must be greater than 0, got 0"),
        ({"epochs": float("inf")}, "epochs must be finite, got inf"),
        ({"pilot_epochs": float("nan")}, "pilot_epochs must be greater than 0, got nan"),
        ({"max_workers": 0}, "max_workers must be at least 1, got 0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
    ):
        with pytest.raises(ThresherError, match=message):
            plan(dataclasses.replace(config, **change))
