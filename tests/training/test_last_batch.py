"""An epoch's last batch: a tiny one is warned of, and `drop_last` leaves it out."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from quick_tiny import _quick_tiny  # noqa: F401
from thresher import Pack, Selection, train
from thresher.errors import InvalidValueError
from thresher.training.config import TrainConfig
from thresher.training.epochs import EpochPlanner, EpochSamples, Progress
from thresher.training.pruners import DynamicRandom, InfoBatch, matching_ratio
from thresher.training.remarks import tiny_last_batches
from thresher.training.resolved import Resolved, resolve
from thresher.training.split import TrainingSplit


@pytest.mark.parametrize(
    ("samples", "batch", "few"), [(1437, 718, 1), (1437, 480, 0), (640, 64, 0), (1000, 333, 1)]
)
def test_only_a_tiny_rest_is_tiny(samples: int, batch: int, few: int) -> None:
    config = TrainConfig(data="d", out="o", batch_size=batch)
    assert tiny_last_batches(resolve(config, samples, samples, 1)) == (
        [(few, batch)] if few else []
    )


@pytest.mark.parametrize(("epochs", "tiny"), [(3, [(1, 718)]), (2, []), (2.5, [])])
def test_batches_that_the_schedule_grows_to_may_leave_a_tiny_rest(
    epochs: float, tiny: list[tuple[int, int]]
) -> None:
    schedule = "0:64,2:718,10:359"
    config = TrainConfig(data="d", out="o", batch_size=64, batch_schedule=schedule, epochs=epochs)
    assert tiny_last_batches(resolve(config, 1437, 1437, 1)) == tiny


@pytest.mark.slow
def test_the_run_says_so(
    thresher: Callable[..., subprocess.CompletedProcess[str]], digits: Path, tmp_path: Path
) -> None:
    done = thresher(
        *("train", "--data", digits, "--batch-size", 718, "--epochs", 1, "--out", tmp_path / "run")
    )
    assert done.returncode == 0, done.stderr
    assert "the last batch of each epoch holds 1 of 718 samples" in done.stderr


# ---- drop_last -------------------------------------------------------------------------------


def _dropping(samples: int, full: int, **options: Any) -> tuple[TrainConfig, Resolved]:
    config = TrainConfig(data="d", out="o", drop_last=True, **options)
    return config, resolve(config, samples, full)


@pytest.mark.parametrize(
    ("budget", "steps"), [("epochs", 2 * 3), ("samples", 2 * 5), ("steps", 2 * 5)]
)
def test_every_step_has_a_whole_batch(budget: str, steps: int) -> None:
    """580 samples, of which 310 are kept, in batches of 100, for two epochs."""
    config, numbers = _dropping(310, 580, batch_size=100, epochs=2, budget=budget)
    assert (numbers.total_steps, numbers.total_samples) == (steps, 100 * steps)
    assert (numbers.steps_per_epoch, numbers.last_batch, numbers.dropped) == (3, 100, 10)
    assert numbers.batch_counts() == {100: 3}
    planner, done, order = EpochPlanner(config, numbers, pruned=False), Progress(), np.arange(310)
    sizes = []
    while not planner.is_over(done):
        for begin, end in planner.plan(order, done).cuts:
            sizes.append(end - begin)
            done.step, done.samples, done.offset = done.step + 1, done.samples + end - begin, end
        done.epoch, done.offset = done.epoch + 1, 0
    assert sizes == [100] * steps


def test_a_run_that_was_stopped_before_its_dropped_rest_goes_on_with_the_next_epoch() -> None:
    config, numbers = _dropping(310, 310, batch_size=100, epochs=2)
    planner = EpochPlanner(config, numbers, pruned=False)
    done = Progress(step=3, samples=300, offset=300)
    assert planner.plan(np.arange(310), done).cuts == []
    assert not planner.is_over(done)


@pytest.mark.parametrize(("epochs", "steps"), [(2.1, 6), (2.5, 7), (3, 9)])
def test_a_pruned_run_that_prunes_nothing_takes_the_steps_of_one_without_a_pruner(
    epochs: float, steps: int
) -> None:
    """Batches and rates; 2.1 epochs ended with a batch of 31 samples at a rate of zero."""
    config, numbers = _dropping(310, 310, batch_size=100, epochs=epochs)
    order, plans = np.arange(310), []
    for pruned in (False, True):
        planner, done = EpochPlanner(config, numbers, pruned), Progress()
        taken = []
        while not planner.is_over(done):
            plan = planner.plan(order, done)
            for (begin, end), rate in zip(plan.cuts, plan.rates, strict=True):
                taken.append((end - begin, pytest.approx(rate)))
                done.step, done.samples, done.offset = done.step + 1, done.samples + end - begin, 0
            done.epoch += 1
        plans.append(taken)
    assert len(plans[0]) == steps
    assert plans[0] == plans[1]


def test_the_last_epoch_of_a_run_that_drops_its_rest_is_not_pruned() -> None:
    """2.1 epochs are two, as the third would be less than a batch."""
    config, numbers = _dropping(310, 310, batch_size=100, epochs=2.1)
    pruner = InfoBatch()
    nothing = np.empty(0, np.int64)
    split = TrainingSplit(np.arange(310), np.ones(310, bool), nothing, nothing)
    samples = EpochSamples(config, split, pruner, numbers)
    pruner.losses[:] = np.arange(310)
    assert len(samples.order(0)) < 310
    samples.end_epoch(None)
    assert len(samples.order(1)) == 310


def test_a_matched_random_run_makes_up_for_pruned_samples_only(tmp_path: Path) -> None:
    """16 epochs of 1,437 samples in batches of 480, of which each drops 477 and prunes none."""
    config, numbers = _dropping(1437, 1437, batch_size=480, epochs=16)
    result = {"status": "finished", "samples": 16 * 960, "config": config.to_dict()}
    (tmp_path / "result.json").write_text(json.dumps({**result, "resolved": asdict(numbers)}))
    pruner = DynamicRandom(ratio=matching_ratio(tmp_path))
    pruner.begin(np.arange(1437), 16, 0, 480)
    sizes = [int(pruner.choose(epoch)[0].sum()) for epoch in range(16)]
    assert sum(size // 480 for size in sizes) == 16 * 2


def test_nothing_is_dropped_where_batches_divide_the_samples() -> None:
    config, numbers = _dropping(300, 300, batch_size=100, epochs=2.5)
    kept = resolve(replace(config, drop_last=False), 300, 300)
    assert replace(numbers, dropped=None, total_steps=0, total_samples=0, passes=0) == replace(
        kept, total_steps=0, total_samples=0, passes=0
    )
    assert (numbers.dropped, numbers.total_samples, kept.total_samples) == (0, 700, 750)


def test_a_dropped_rest_is_not_warned_of() -> None:
    assert not tiny_last_batches(_dropping(1437, 1437, batch_size=718)[1])


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("budget", ["epochs", "samples", "steps"])
def test_a_run_without_a_step_is_refused_under_each_budget(budget: str, drop_last: bool) -> None:
    """By steps it ended at once, with the initial weights, and was called finished."""
    options: dict[str, Any] = {"budget": budget, "drop_last": drop_last, "epochs": 0.001}
    with pytest.raises(InvalidValueError, match=r"0\.001 epochs are less than one"):
        resolve(TrainConfig(data="d", out="o", batch_size=8, **options), 300, 400)


def test_less_than_a_batch_is_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"0\.1 epochs are less than one batch"):
        _dropping(310, 310, batch_size=100, epochs=0.1)


@pytest.mark.parametrize("option", [{"batch_schedule": "double@1"}, {"branch_from": "run"}])
def test_options_that_change_the_size_of_an_epoch_are_refused(option: dict[str, str]) -> None:
    with pytest.raises(InvalidValueError, match="`drop_last` does not work with"):
        _dropping(310, 310, batch_size=100, **option)


def test_full_and_filtered_runs_of_equal_steps_train_on_equally_many_samples(
    digits: Path, tmp_path: Path
) -> None:
    pack = Pack.open(digits)
    where = pack.indices("train")
    keep = np.arange(len(where)) % 5 > 0
    Selection(
        ids=pack.ids.take(where).to_pylist(),
        labels=pack.labels[where],
        keep=keep,
        score=np.zeros(len(keep), np.float32),
        reason=["" if kept else "test" for kept in keep],
        fingerprint=pack.fingerprint,
    ).save(tmp_path / "some.parquet")
    seen = {}
    for drop_last in (False, True):
        for selection in (None, str(tmp_path / "some.parquet")):
            options: dict[str, Any] = {"model": "tiny", "batch_size": 400, "epochs": 3}
            options |= {"budget": "steps", "drop_last": drop_last, "selection": selection}
            run = tmp_path / f"{drop_last}-{selection is None}"
            result = train(TrainConfig(data=str(digits), out=str(run), **options))
            seen[drop_last, selection is None] = (result.steps, result.samples)
            lines = (run / "metrics.jsonl").read_text().splitlines()
            steps = [m for m in map(json.loads, lines) if m["kind"] == "step"]
            assert steps[-1]["samples"] == result.samples
    assert seen[False, True][0] == seen[False, False][0]
    assert seen[False, True][1] != seen[False, False][1]
    assert seen[True, True] == seen[True, False] == (9, 3600)


def test_another_rest_is_dropped_in_each_epoch(digits: Path, tmp_path: Path) -> None:
    """Every sample is trained on in some epoch."""
    options: dict[str, Any] = {"model": "tiny", "batch_size": 400, "epochs": 12}
    run = tmp_path / "run"
    config = TrainConfig(
        data=str(digits), out=str(run), drop_last=True, record_dynamics=True, **options
    )
    assert train(config).samples == 12 * 1200
    assert pq.read_table(run / "dynamics.parquet").num_rows == 1437
