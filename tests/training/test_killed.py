"""Nothing is lost: kills, signals, cut checkpoints, and the same bits afterwards."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from forks import forks_in
from thresher.data.pack import Pack
from thresher.errors import ThresherError
from thresher.training import checkpoint
from thresher.training.checkpoint import Checkpoint
from thresher.training.config import TrainConfig
from thresher.training.folder import write_config
from thresher.training.resolved import resolve
from thresher.training.split import split_samples
from thresher.training.stop import listen
from thresher.training.train import train
from thresher.training.trainer import Trainer

pytest_plugins = ["train_data"]

COMMON = {"model": "tiny", "batch_size": "20", "epochs": "4", "lr": "0.05", "checkpoint-every": "4"}


def _command(few: Path, out: Path, *more: str) -> list[str]:
    flags = [x for k, v in COMMON.items() for x in (f"--{k.replace('_', '-')}", v)]
    fixed = ["--data", str(few), "--out", str(out), "--threads", "1", "--json", "--device", "cpu"]
    return [sys.executable, "-m", "thresher", "train", *fixed, *flags, *more]


def _same(a: Path, b: Path) -> bool:
    x, y = load_file(a / "model.safetensors"), load_file(b / "model.safetensors")
    return all(torch.equal(x[name], y[name]) for name in x)


def _last_step(out: Path) -> int:
    """Return the step of the last checkpoint, or 0."""
    return max((int(p.stem.split("-")[1]) for p in out.glob("checkpoints/step-*")), default=0)


def _wait_for_checkpoint(
    out: Path, running: subprocess.Popen[str], after: int = 0, pause: float = 0.2
) -> None:
    """Until a checkpoint later than step `after` stands, and up to `pause` seconds more."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        if _last_step(out) > after:
            time.sleep(random.random() * pause)
            return
        assert running.poll() is None, running.communicate()
        time.sleep(0.01)
    raise AssertionError("no checkpoint came")


@pytest.fixture(scope="module")
def unbroken(few: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three workers, never disturbed: DDP's sum of three depends on the order of its buckets."""
    out = tmp_path_factory.mktemp("unbroken") / "run"
    command = _command(few, out, "--workers", "3", "--compress", "int8")
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.slow  # starts three workers four times
def test_a_killed_group_and_a_killed_worker_lose_nothing(
    few: Path, unbroken: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    command = _command(few, out, "--workers", "3", "--compress", "int8")
    # That workers in new interpreters notice the end of their agent is tested in
    # tests/distributed/test_worker.py and tests/faults/test_kills.py.
    running = _start(command, dict(os.environ), tmp_path)
    _wait_for_checkpoint(out, running)
    assert len(forks_in(tmp_path)) == 4
    os.kill(running.pid, signal.SIGKILL)
    running.communicate()
    deadline = time.monotonic() + 20
    while forks_in(tmp_path):
        assert time.monotonic() < deadline, "workers outlived their agent"
        time.sleep(0.05)
    assert not (out / "result.json").exists()
    # The resumed group gets further, then loses a worker and is started again.
    running = _start([*command, "--resume"], dict(os.environ), tmp_path)
    _wait_for_checkpoint(out, running, after=_last_step(out), pause=0)  # it ends soon
    os.kill(random.choice([p for p in forks_in(tmp_path) if p != running.pid]), signal.SIGKILL)
    answer, said = running.communicate(timeout=500)
    assert running.returncode == 0, said
    assert json.loads(answer)["steps"] == 60
    assert _same(unbroken, out)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "step"] == list(range(1, 61))


def _start(command: list[str], env: dict[str, str], folder: Path) -> "subprocess.Popen[str]":
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env, cwd=folder)


def _config(few: Path, out: Path, **more: Any) -> TrainConfig:
    options: dict[str, Any] = {
        "data": str(few),
        "out": str(out),
        "model": "quick_network:QuickNetwork",
        "batch_size": 20,
        "epochs": 4,
        "lr": 0.05,
        "threads": 1,
        "device": "cpu",
        **more,
    }
    return TrainConfig(**options)


def test_a_run_heeds_each_signal_that_is_not_ignored() -> None:
    """As SIGHUP is with `nohup`."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        with listen() as request:
            signal.raise_signal(number)
        assert request.stop
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with listen() as request:
            signal.raise_signal(signal.SIGHUP)
        assert not request.stop
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.slow  # trains in three processes
def test_sigterm_saves_and_a_resumed_run_is_the_same_to_the_bit(few: Path, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    more = ("--record-dynamics", "--dynamic", "infobatch", "--optimizer", "lamb")
    subprocess.run(_command(few, whole, *more), check=True, capture_output=True, timeout=300)
    command = _command(few, broken, *more)
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    _wait_for_checkpoint(broken, running)
    running.send_signal(signal.SIGTERM)
    answer, said = running.communicate(timeout=120)
    assert running.returncode == 143, said
    assert json.loads(answer)["status"] == "stopped"
    done = subprocess.run(
        [*command, "--resume"], capture_output=True, text=True, timeout=300, check=True
    )
    assert json.loads(done.stdout)["status"] == "finished"
    assert _same(whole, broken)
    import pyarrow.parquet as pq

    tables = [pq.read_table(run / "dynamics.parquet").to_pydict() for run in (whole, broken)]
    # A sample seen in one epoch has no uncertainty: NaN, which differs from itself.
    np.testing.assert_equal(*tables)


@pytest.mark.slow  # resumes on two processes
def test_resuming_on_another_number_of_workers_takes_the_same_path(
    few: Path, tmp_path: Path
) -> None:
    exact: dict[str, Any] = {"precision": "fp64", "batch_norm": "sync", "checkpoint_every": 7}
    exact["epochs"] = 2
    train(_config(few, tmp_path / "whole", **exact), quiet=True)
    _stop_at(few, tmp_path / "broken", 14, **exact)
    result = train(_config(few, tmp_path / "broken", **exact, resume=True, workers=2), quiet=True)
    assert result.resolved.workers == 2
    x = load_file(tmp_path / "whole" / "model.safetensors")
    y = load_file(tmp_path / "broken" / "model.safetensors")
    assert max((x[k].double() - y[k].double()).abs().max().item() for k in x) < 1e-10


def _stop_at(few: Path, out: Path, step: int, **more: Any) -> None:
    """Train in this process and stop, as SIGTERM does, once the checkpoint of `step` stands."""
    real = checkpoint.write

    def write(folder: Path, at: int, taken: Checkpoint) -> Path:
        written = real(folder, at, taken)
        if at == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return written

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "write", write)
        assert train(_config(few, out, **more), quiet=True).status == "stopped"


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0, 1])
def test_a_run_killed_after_its_last_step_still_closes_the_epoch(
    few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delay: int
) -> None:
    """The last checkpoint stands, the last evaluation and the epoch's record do not.

    A delayed gradient is still to be applied, with the rate of the last step.
    """
    options: dict[str, Any] = {"epochs": 2, "validation": 47, "checkpoint_every": 4}
    options["delay"] = delay
    whole = train(_config(few, tmp_path / "whole", **options), quiet=True)
    assert whole.steps % 4 == 0, "a checkpoint must fall on the last step"

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    real = Trainer._evaluate
    monkeypatch.setattr(
        Trainer, "_evaluate", lambda run: killed() if run.state.progress.epoch == 2 else real(run)
    )
    with pytest.raises(KeyboardInterrupt):
        train(_config(few, tmp_path / "broken", **options), quiet=True)
    monkeypatch.undo()
    resumed = train(_config(few, tmp_path / "broken", **options, resume=True), quiet=True)
    for key in ("train_loss", "validation_loss", "validation_accuracy", "loss", "epochs"):
        assert getattr(resumed, key) == getattr(whole, key), key
    records = [
        (tmp_path / run / "metrics.jsonl").read_text().splitlines() for run in ("whole", "broken")
    ]
    assert len(records[0]) == len(records[1])
    assert _same(tmp_path / "whole", tmp_path / "broken")


def test_weak_scaling_does_not_resume_with_another_batch(few: Path, tmp_path: Path) -> None:
    """Its batch is that of all workers: the rest of the run would be another one."""
    config, pack = _config(few, tmp_path, scaling="weak"), Pack.open(few)
    split = split_samples(config, pack)
    write_config(config, resolve(config, split.count, workers=2), pack, split)
    write_config(config, resolve(config, split.count, workers=2), pack, split)
    with pytest.raises(
        ThresherError, match="batch of 40, but with weak scaling on 1 worker it is 20"
    ):
        write_config(config, resolve(config, split.count, workers=1), pack, split)


def dropping(classes: int, channels: int) -> nn.Module:
    """Return a network that draws random numbers in every step."""
    layers = nn.Flatten(), nn.Linear(64 * channels, 16), nn.Dropout(), nn.Linear(16, classes)
    return nn.Sequential(*layers)


def test_dropout_is_the_same_in_a_second_run_and_in_a_resumed_one(
    few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"epochs": 2, "model": "test_killed:dropping", "checkpoint_every": 5}
    torch.manual_seed(1)
    before = torch.get_rng_state()
    train(_config(few, tmp_path / "whole", **options), quiet=True)
    assert torch.equal(before, torch.get_rng_state()), "the caller's random numbers were used up"
    torch.manual_seed(2)
    train(_config(few, tmp_path / "again", **options), quiet=True)
    assert _same(tmp_path / "whole", tmp_path / "again")

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    # The epoch is recorded, and the newest checkpoint is that of its last step.
    monkeypatch.setattr(Trainer, "_grow_batch", killed)
    with pytest.raises(KeyboardInterrupt):
        train(_config(few, tmp_path / "broken", **options), quiet=True)
    monkeypatch.undo()
    resumed = train(_config(few, tmp_path / "broken", **options, resume=True), quiet=True)
    assert _same(tmp_path / "whole", tmp_path / "broken")
    files = (tmp_path / run / "metrics.jsonl" for run in ("whole", "broken"))
    records = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    keys = [[(line["kind"], line["step"]) for line in record] for record in records]
    assert keys[0] == keys[1], "a line twice"
    assert resumed.wall_seconds >= resumed.seconds, "time before the checkpoint was forgotten"


@pytest.mark.slow
def test_a_cut_checkpoint_is_skipped_and_named(
    few: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(_config(few, whole), quiet=True)
    _stop_at(few, broken, 28, checkpoint_every=7)
    newest = sorted((broken / "checkpoints").glob("step-*"))[-1]
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
    train(_config(few, broken, resume=True), quiet=True)
    assert newest.name in caplog.text
    assert _same(whole, broken)


def test_when_every_checkpoint_is_cut_the_run_is_refused(few: Path, tmp_path: Path) -> None:
    _stop_at(few, tmp_path / "run", 14, checkpoint_every=7)
    files = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))
    for file in files:
        file.write_bytes(file.read_bytes()[:-100])
    before = {file: file.read_bytes() for file in files}
    with pytest.raises(ThresherError, match=r"no checkpoint in .* is intact"):
        train(_config(few, tmp_path / "run", resume=True), quiet=True)
    assert {file: file.read_bytes() for file in files} == before


def test_a_flipped_bit_in_a_checkpoint_is_found(tmp_path: Path) -> None:
    taken = Checkpoint({"step": 1}, {"x": torch.arange(100.0)})
    path = checkpoint.write(tmp_path, 1, taken)
    read = checkpoint.read(path)
    assert read is not None
    assert torch.equal(read.tensors["x"], taken.tensors["x"])
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)
    assert checkpoint.read(path) is None


@pytest.mark.slow  # trains in a process
def test_usr1_saves_and_goes_on(few: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = _command(few, out)
    command[command.index("--checkpoint-every") + 1] = "1000"
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (out / "run.json").exists():
        assert running.poll() is None, running.communicate()
        time.sleep(0.01)
    running.send_signal(signal.SIGUSR1)
    _wait_for_checkpoint(out, running)
    answer, said = running.communicate(timeout=300)
    assert running.returncode == 0, said
    assert json.loads(answer)["status"] == "finished"
