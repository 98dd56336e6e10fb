"""A batch that changes between epochs: its steps and rates, restarts and workers."""

import itertools
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from quick_tiny import _quick_tiny  # noqa: F401
from thresher.errors import InvalidValueError
from thresher.training import checkpoint
from thresher.training.batch_schedule import batch_phases
from thresher.training.checkpoint import Checkpoint
from thresher.training.config import TrainConfig, check
from thresher.training.resolved import resolve
from thresher.training.result import RunResult
from thresher.training.train import train

pytest_plugins = ["train_data"]


def _config(few: Path | str = "d", out: Path | str = "o", **more: Any) -> TrainConfig:
    options: dict[str, Any] = {
        "data": str(few),
        "out": str(out),
        "model": "tiny",
        "batch_size": 20,
        "batch_schedule": "double@1,2",
        "epochs": 3,
        "lr": 0.02,
        "lr_rule": "linear",
        "schedule": "constant",
        "threads": 1,
        "device": "cpu",
        **more,
    }
    return TrainConfig(**options)


def _steps(out: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "step"]


def test_phases_are_read_from_every_form(tmp_path: Path) -> None:
    expected = ((0, 20), (1, 40), (2, 80))
    table = tmp_path / "batches.csv"
    table.write_text("epoch,batch\n0,20\n1,40\n2,80\n")
    spreadsheet = tmp_path / "semicolons.csv"
    spreadsheet.write_text("epoch;batch\n0;20\n1;40\n2;80\n;\n")
    for text in ("double@1,2", "0:20,1:40,2:80", str(table), str(spreadsheet)):
        assert batch_phases(_config(batch_schedule=text), 20) == expected
    assert batch_phases(_config(batch_schedule=None), 20) == ((0, 20),)


def test_steps_are_counted_over_the_phases() -> None:
    resolved = resolve(_config(), 287)
    assert resolved.batches == [20, 40, 80]
    assert [resolved.batch_at(epoch) for epoch in (0, 1, 2, 9)] == [20, 40, 80, 80]
    assert resolved.total_steps == 15 + 8 + 4
    assert resolve(_config(epochs=1.5), 287).total_steps == 15 + 4
    assert resolve(_config(epochs=1), 287).total_steps == 15
    # Sizes to capture: those of full batches and of the rests 7, 7 and 47.
    assert resolved.batch_counts() == {20: 14, 40: 7, 80: 3, 7: 1, 47: 1}
    assert resolve(_config(batch_schedule=None), 287).batch_phases == []
    assert resolve(_config(batch_schedule=None), 287).batch_counts() == {20: 14, 7: 1}


@pytest.mark.slow
def test_the_batch_and_the_rate_change_between_epochs(few: Path, tmp_path: Path) -> None:
    result = train(_config(few, tmp_path / "run", noise_scale=True), quiet=True)
    assert result.steps == 27
    assert result.samples == 3 * 287
    steps = _steps(tmp_path / "run")
    samples = [0, *(step["samples"] for step in steps)]
    sizes = [after - before for before, after in itertools.pairwise(samples)]
    assert sizes == 14 * [20] + [7] + 7 * [40] + [7] + 3 * [80] + [47]
    for step in steps:
        assert step["lr"] == pytest.approx(0.02 * 2 ** step["epoch"])
    assert RunResult.load(tmp_path / "run") == result


@pytest.mark.slow
def test_without_a_rule_the_rate_stays(few: Path, tmp_path: Path) -> None:
    train(_config(few, tmp_path / "run", lr_rule="none", epochs=2), quiet=True)
    assert {step["lr"] for step in _steps(tmp_path / "run")} == {0.02}


@pytest.mark.slow
@pytest.mark.parametrize("step", [10, 20])
def test_a_resumed_run_is_the_same_to_the_bit(few: Path, tmp_path: Path, step: int) -> None:
    """Stopped in the first and in the second phase, and the schedule's file is gone since."""
    table = tmp_path / "batches.csv"
    table.write_text("epoch,batch\n0,20\n1,40\n2,80\n")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(_config(few, whole), quiet=True)
    real = checkpoint.write

    def write(folder: Path, at: int, taken: Checkpoint) -> Path:
        written = real(folder, at, taken)
        if at == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return written

    options = {"checkpoint_every": 10, "batch_schedule": str(table)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "write", write)
        assert train(_config(few, broken, **options), quiet=True).status == "stopped"
    table.unlink()
    stored = json.loads((broken / "run.json").read_text())["config"]["batch_schedule"]
    assert stored == "0:20,1:40,2:80"
    train(_config(few, broken, resume=True, batch_schedule=stored), quiet=True)
    x, y = (load_file(run / "model.safetensors") for run in (whole, broken))
    assert all(torch.equal(x[name], y[name]) for name in x)


@pytest.mark.slow  # trains on two processes
def test_two_workers_take_the_path_of_one(few: Path, tmp_path: Path) -> None:
    exact: dict[str, Any] = {"precision": "fp64", "batch_norm": "sync", "micro_batch": 16}
    for workers in (1, 2):
        train(_config(few, tmp_path / str(workers), **exact, workers=workers), quiet=True)
    x, y = (load_file(tmp_path / run / "model.safetensors") for run in ("1", "2"))
    assert max((x[k].double() - y[k].double()).abs().max().item() for k in x) < 1e-10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_schedule": "nothing"}, 'batch_schedule cannot be "nothing"; write double@EPOCHS'),
        ({"batch_schedule": "double@"}, 'cannot be "double@"'),
        ({"batch_schedule": "double@x"}, 'cannot be "double@x"'),
        ({"batch_schedule": "double@2,1"}, "must have ascending epochs above 0"),
        ({"batch_schedule": "double@0"}, "must have ascending epochs above 0"),
        ({"batch_schedule": "0:20,1:2:3"}, 'cannot be "0:20,1:2:3"'),
        ({"batch_schedule": "1:20,2:40"}, "must begin with epoch 0 and `batch_size`, 0:20"),
        ({"batch_schedule": "0:10,2:40"}, r"0:20, got 0:10"),
        ({"batch_schedule": "0:20,1:0"}, "cannot be"),
        ({"batch_schedule": "double@1,2,3,4,5"}, "the batch of 320 is larger than the 287"),
        ({"scaling": "weak"}, "`batch_schedule` does not work with `scaling` weak"),
        ({"budget": "steps"}, "`batch_schedule` does not work with `budget` steps"),
        ({"dynamic": "random:0.3"}, "`batch_schedule` does not work with `dynamic`"),
    ],
)
def test_wrong_schedules_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        resolve(_config(**change), 287)


def test_a_file_without_the_columns_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "batches.csv"
    for content, message in {
        "": "is not a CSV file: it has no header",
        "epoch,size\n0,20\n": "is not a CSV file with columns epoch",
        "epoch,batch\n": "is not a CSV file with columns epoch",
        "epoch,batch\n0,20\n1,1,024\n": "line 3 of .* has 3 values, but the header has 2",
    }.items():
        table.write_text(content)
        with pytest.raises(InvalidValueError, match=message):
            resolve(_config(batch_schedule=str(table)), 287)
    check(_config(batch_schedule="double@1"))
