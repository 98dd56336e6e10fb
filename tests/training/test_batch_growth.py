"""A batch that grows with the gradient noise scale: its bound, rates, restarts and workers."""

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
from thresher.training import checkpoint, trainer
from thresher.training.batch_growth import MEASURED_LEAST, largest_batch, next_batch
from thresher.training.checkpoint import Checkpoint
from thresher.training.config import TrainConfig, check
from thresher.training.noise_estimate import NoiseEstimate
from thresher.training.resolved import resolve
from thresher.training.result import RunResult
from thresher.training.train import train

pytest_plugins = ["train_data"]


def _config(few: Path | str = "d", out: Path | str = "o", **more: Any) -> TrainConfig:
    options: dict[str, Any] = {
        "data": str(few),
        "out": str(out),
        "model": "tiny",
        "batch_size": 4,
        "batch_schedule": "noise",
        "max_batch": 12,
        "epochs": 3,
        "lr": 0.01,
        "lr_rule": "linear",
        "schedule": "constant",
        "threads": 1,
        "device": "cpu",
        "seed": 2,  # whose batch grows in the third epoch
        **more,
    }
    return TrainConfig(**options)


def _estimate(value: float, measured: int = MEASURED_LEAST) -> NoiseEstimate:
    return NoiseEstimate(measured, noise=[value], signal=[1.0])


def _sizes(out: Path) -> dict[int, tuple[int, float]]:
    """Return the batch and the rate of the first step of each epoch."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    before = [0, *(step["samples"] for step in steps)]
    sizes: dict[int, tuple[int, float]] = {}
    for step, (start, end) in zip(steps, itertools.pairwise(before), strict=True):
        sizes.setdefault(step["epoch"], (end - start, step["lr"]))
    return sizes


@pytest.fixture(scope="module")
def whole(few: Path, tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """An unbroken run on one worker."""
    return train(_config(few, tmp_path_factory.mktemp("growth") / "run"), quiet=True)


def test_the_batch_doubles_up_to_a_quarter_of_the_noise_scale() -> None:
    assert next_batch(8, 64, _estimate(64)) == 16
    assert next_batch(8, 64, _estimate(63)) == 8
    assert next_batch(8, 64, _estimate(10_000)) == 16  # one doubling at a time
    assert next_batch(64, 64, _estimate(10_000)) == 64
    assert next_batch(32, 64, _estimate(1)) == 32  # it never shrinks
    assert next_batch(8, 64, _estimate(64, MEASURED_LEAST - 1)) == 8
    assert next_batch(8, 64, NoiseEstimate(99, [-1.0], [1.0])) == 8


def test_the_bound_is_a_power_of_two_times_the_first_batch() -> None:
    assert largest_batch(4, 12, 287) == 8
    assert largest_batch(4, None, 287) == 64
    assert largest_batch(20, None, 287) == 160
    assert largest_batch(20, 20, 287) == 20
    resolved = resolve(_config(max_batch=None), 287)
    assert resolved.batches == [4, 8, 16, 32, 64]
    assert resolved.batch_phases == []
    assert resolved.total_steps == 3 * 72


@pytest.mark.slow
@pytest.mark.xdist_group("growth")  # shares a run
def test_the_batch_grows_and_the_rate_follows(whole: RunResult) -> None:
    phases = whole.resolved.batch_phases
    assert [batch for _, batch in phases] == [4, 8]
    (_, (epoch, _)) = phases
    sizes = _sizes(Path(whole.config.out))
    assert sizes == {n: (4, 0.01) if n < epoch else (8, pytest.approx(0.02)) for n in range(3)}
    assert whole.steps == epoch * 72 + (3 - epoch) * 36
    assert whole.samples == 3 * 287
    assert whole.noise_scale is not None
    assert RunResult.load(whole.config.out) == whole


@pytest.mark.slow  # trains
@pytest.mark.parametrize(("epochs", "warned"), [(2.0, True), (1.5, False)])
def test_a_batch_that_grew_and_leaves_a_tiny_rest_is_warned_of(
    few: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    epochs: float,
    warned: bool,
) -> None:
    """287 samples are two batches of 142 and three samples; half an epoch does not get there."""
    monkeypatch.setattr(trainer, "next_batch", lambda *_: 142)
    options = {"batch_size": 71, "max_batch": 142, "epochs": epochs}
    train(_config(few, tmp_path / "run", **options), quiet=True)
    assert ("last batch of each epoch holds 3 of 142 samples" in caplog.text) == warned
    assert "of 71 samples" not in caplog.text


@pytest.mark.slow
@pytest.mark.xdist_group("growth")  # shares a run
@pytest.mark.parametrize("step", [70, 160])
def test_a_resumed_run_is_the_same_to_the_bit(
    few: Path, whole: RunResult, tmp_path: Path, step: int
) -> None:
    """Stopped before the batch grows, and after."""
    broken = tmp_path / "broken"
    real = checkpoint.write

    def write(folder: Path, at: int, taken: Checkpoint) -> Path:
        written = real(folder, at, taken)
        if at == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return written

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "write", write)
        stopped = train(_config(few, broken, checkpoint_every=10), quiet=True)
    assert stopped.status == "stopped"
    resumed = train(_config(few, broken, resume=True), quiet=True)
    assert resumed.resolved.batch_phases == whole.resolved.batch_phases
    assert resumed.noise_scale == whole.noise_scale
    x, y = (load_file(Path(run) / "model.safetensors") for run in (whole.config.out, broken))
    assert all(torch.equal(x[name], y[name]) for name in x)


@pytest.mark.slow  # trains on two processes
def test_two_workers_choose_the_batches_of_one(few: Path, tmp_path: Path) -> None:
    """Also in pieces of three samples, into which neither half can be cut evenly."""
    exact: dict[str, Any] = {"precision": "fp64", "batch_norm": "sync", "epochs": 2.25}
    runs = [
        train(_config(few, tmp_path / name, **exact, **more), quiet=True)
        for name, more in (
            ("one", {}),
            ("pieces", {"micro_batch": 3}),
            ("two", {"workers": 2}),
        )
    ]
    assert [batch for _, batch in runs[0].resolved.batch_phases] == [4, 8]
    assert len({str(run.resolved.batch_phases) for run in runs}) == 1
    for run in runs[1:]:
        assert run.noise_scale == pytest.approx(runs[0].noise_scale, rel=1e-8)
    x, *others = (load_file(Path(run.config.out) / "model.safetensors") for run in runs)
    for y in others:
        assert max((x[k].double() - y[k].double()).abs().max().item() for k in x) < 1e-10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_batch": 3}, "max_batch must be at least batch_size 4, got 3"),
        ({"batch_schedule": None}, "`max_batch` has an effect only with `batch_schedule` noise"),
        ({"scaling": "weak"}, "`batch_schedule` does not work with `scaling` weak"),
        ({"dynamic": "random:0.3"}, "`batch_schedule` does not work with `dynamic`"),
        ({"average_every": 2}, "`batch_schedule` noise works only where DDP reduces the gradients"),
    ],
)
def test_wrong_options_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        check(_config(**change))
