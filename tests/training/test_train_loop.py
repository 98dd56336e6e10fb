"""What a run does, records and refuses, on real digits."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from quick_network import NAME
from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.errors import ThresherError
from thresher.training.config import TrainConfig
from thresher.training.result import RunResult
from thresher.training.step import Step
from thresher.training.train import train

pytest_plugins = ["train_data"]


def _run(few: Path, out: Path, **more: Any) -> RunResult:
    options: dict[str, Any] = {
        "data": str(few),
        "out": str(out),
        "model": NAME,
        "batch_size": 32,
        "epochs": 2,
        "lr": 0.05,
        "threads": 1,
        "device": "cpu",
        **more,
    }
    result = train(TrainConfig(**options), quiet=True)
    # `timeout pytest` sends SIGTERM, on which a run saves, stops and returns without a loss.
    assert result.status != "stopped", "a signal from outside stopped the run"
    return result


def _selection(few: Path, path: Path, share: float = 0.5) -> Path:
    pack = Pack.open(few)
    train_positions = pack.indices("train")
    keep = np.arange(len(train_positions)) < share * len(train_positions)
    Selection(
        ids=pack.ids.take(train_positions).to_pylist(),
        labels=pack.labels[train_positions],
        keep=keep,
        score=np.zeros(len(keep), np.float32),
        reason=["" if kept else "test" for kept in keep],
        fingerprint=pack.fingerprint,
    ).save(path)
    return path


def _lines(out: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def test_a_run_learns_and_leaves_a_whole_record(few: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    rates: dict[str, Any] = {"lr": 0.1, "warmup_epochs": 2}
    result = _run(few, out, model="tiny", epochs=12, validation=47, evaluate_every=5, **rates)
    assert result.status == "finished"
    assert result.accuracy is not None
    assert result.validation_accuracy is not None
    assert min(result.accuracy, result.validation_accuracy) > 0.6
    steps = _lines(out, "step")
    assert [line["step"] for line in steps] == list(range(1, result.steps + 1))
    assert steps[-1]["samples"] == result.samples == 12 * 240
    assert steps[0]["lr"] < steps[14]["lr"]
    assert steps[-1]["lr"] < steps[20]["lr"]
    epochs = _lines(out, "epoch")
    assert len(epochs) == 12
    assert epochs[-1]["train_loss"] < epochs[0]["train_loss"] / 2
    assert [line["epoch"] for line in epochs if line["accuracy"] is not None] == [5, 10, 12]
    saved = json.loads((out / "run.json").read_text())
    assert saved["resolved"] == asdict(result.resolved)
    assert json.loads((out / "result.json").read_text()) == result.to_dict()
    assert RunResult.load(out) == result
    for key in ("versions", "hardware", "git_commit", "config", "images_per_s", "train_loss"):
        assert key in result.to_dict()
    assert not (out / "checkpoints").exists()
    assert load_file(out / "model.safetensors")


def test_a_run_records_which_test_images_it_predicts_correctly(few: Path, tmp_path: Path) -> None:
    result = _run(few, tmp_path / "run")
    data = json.loads((tmp_path / "run" / "run.json").read_text())["data"]
    bits = np.unpackbits(np.load(tmp_path / "run" / "correct.npy"), count=data["test"])
    assert result.accuracy == pytest.approx(bits.mean())
    assert 0 < bits.mean() < 1


@pytest.mark.slow
def test_a_selection_trains_on_what_it_keeps_under_each_budget(few: Path, tmp_path: Path) -> None:
    half = str(_selection(few, tmp_path / "half.parquet"))
    full = _run(few, tmp_path / "full", epochs=1)
    by_epochs = _run(few, tmp_path / "epochs", epochs=1, selection=half)
    by_samples = _run(few, tmp_path / "samples", epochs=1, selection=half, budget="samples")
    by_steps = _run(few, tmp_path / "steps", epochs=1, selection=half, budget="steps")
    assert full.samples == 287
    assert by_epochs.samples == 144
    assert by_samples.samples == full.samples
    assert by_steps.steps == full.steps
    assert by_samples.epochs == pytest.approx(287 / 144)


@pytest.mark.slow
def test_a_target_stops_the_run_and_says_when(few: Path, tmp_path: Path) -> None:
    result = _run(few, tmp_path / "run", epochs=50, target_accuracy=0.5, lr=0.1)
    assert result.status == "target"
    target = result.time_to_target
    assert target is not None
    assert target.steps == result.steps < 50 * 9
    assert target.samples == result.samples
    assert 0 < target.seconds <= result.seconds
    assert result.accuracy is not None
    assert result.accuracy >= 0.5


def test_a_diverged_run_is_a_result(few: Path, tmp_path: Path) -> None:
    result = _run(few, tmp_path / "run", model="tiny", lr=1e20, epochs=3, validation=20)
    assert result.status == "diverged"
    # A network of nan predicts nothing: argmax would give it the share of the first class.
    assert result.accuracy is result.validation_accuracy is result.loss is None
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "diverged"


def test_a_run_may_diverge_in_its_last_step(few: Path, tmp_path: Path) -> None:
    result = _run(few, tmp_path / "run", lr=1e25, epochs=1, batch_size=287)
    assert result.steps == 1
    assert (result.status, result.accuracy, result.train_loss) == ("diverged", None, None)


@pytest.mark.slow
def test_dynamics_are_recorded_for_every_sample(few: Path, tmp_path: Path) -> None:
    _run(few, tmp_path / "run", epochs=3, record_dynamics=True)
    table = pq.read_table(tmp_path / "run" / "dynamics.parquet").to_pydict()
    pack = Pack.open(few)
    assert sorted(table["id"]) == sorted(pack.ids.take(pack.indices("train")).to_pylist())
    el2n = np.array(table["el2n"])
    assert (el2n > 0).all()
    assert (el2n <= np.sqrt(2) + 1e-5).all()
    assert max(table["learned_epoch"]) <= 2
    never = np.array(table["learned_epoch"]) < 0
    assert (np.array(table["forgetting"])[never] == 0).all()
    margin = np.array(table["margin"])
    assert np.isfinite(margin).all()
    assert margin[~never].mean() > margin[never].mean() or not never.any()
    assert (np.array(table["uncertainty"]) > 0).all()


def test_an_epochs_table_holds_margins_and_probabilities() -> None:
    from thresher.distributed.group import Group, Placement
    from thresher.training.dynamics import EpochTable

    table = EpochTable(4, Group(Placement(), torch.device("cpu")))
    logits = torch.tensor([[2.0, 1.0, -1.0], [0.0, 3.0, 1.0]])
    table.note(torch.tensor([2, 0]), torch.tensor([0, 2]), torch.ones(2), logits)
    seen, _, _, correct, margin, likely = table.summed().numpy()
    assert seen.tolist() == [1, 0, 1, 0]
    assert correct.tolist() == [0, 0, 1, 0]
    np.testing.assert_allclose(margin, [-2, 0, 1, 0])
    np.testing.assert_allclose(likely[[2, 0]], logits.softmax(1)[[0, 1], [0, 2]], rtol=1e-6)


@pytest.mark.slow
def test_the_noise_scale_does_not_change_the_run(few: Path, tmp_path: Path) -> None:
    plain = _run(few, tmp_path / "plain")
    measured = _run(few, tmp_path / "noise", noise_scale=True)
    assert measured.noise_scale is None or measured.noise_scale > 0
    assert _lines(tmp_path / "noise", "epoch")[-1]["noise_scale"] == measured.noise_scale
    assert plain.loss == measured.loss


def test_the_noise_scale_agrees_with_its_definition() -> None:
    """Gradients of known mean and noise: B_noise = tr(Σ) / |G|²."""
    from thresher.distributed.group import Group, Placement
    from thresher.training.noise_observer import NoiseObserver

    random = np.random.default_rng(0)
    mean, spread, small, big = 0.5, 2.0, 8, 64
    noise = NoiseObserver(Group(Placement(), torch.device("cpu")))
    for _ in range(4000):
        samples = mean + spread * random.standard_normal((big, 20))
        for batch, tell in ((small, noise.small), (big, noise.big)):
            norm = (samples[:batch].mean(0) ** 2).sum()
            tell(torch.tensor(norm), batch)
    noise.settle()
    assert noise.estimate.value == pytest.approx(spread**2 / mean**2, rel=0.1)


@pytest.mark.slow
def test_auto_survives_an_out_of_memory_error(
    few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device with room for ten samples, and from the ninth step on for five."""
    piece, seen = Step._piece, {"steps": 0}

    def crowded(self: Step, part: Any, begin: int, end: int, count: int) -> torch.Tensor:
        seen["steps"] += begin == 0
        if end - begin > (10 if seen["steps"] < 12 else 5):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return piece(self, part, begin, end, count)

    plain = _run(few, tmp_path / "plain", batch_norm="ghost:4", precision="fp64")
    monkeypatch.setattr(Step, "_piece", crowded)
    result = _run(
        few, tmp_path / "auto", micro_batch="auto", batch_norm="ghost:4", precision="fp64"
    )
    assert result.resolved.accumulation == 8
    assert result.resolved.micro_batch == 4
    assert result.loss == pytest.approx(plain.loss, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        {"precision": "bf16", "epochs": 0.2},
        {"deterministic": True, "epochs": 0.5},
        {"delay": 1, "optimizer": "nesterov", "allreduce": "ring"},
        {"optimizer": "lars", "schedule": "poly", "label_smoothing": 0.1},
        {"optimizer": "adamw", "lr": 0.002, "schedule": "step", "step_epochs": (1.0,)},
        {"tensorboard": True, "trace": True, "cutout": 3},
    ],
    ids=lambda more: "-".join(more),
)
def test_options_train(few: Path, tmp_path: Path, more: dict[str, Any]) -> None:
    result = _run(few, tmp_path / "run", **more)
    assert result.status == "finished"
    losses = [line["loss"] for line in _lines(tmp_path / "run", "step")]
    assert all(loss is not None for loss in losses)
    assert not torch.are_deterministic_algorithms_enabled()
    if "trace" in more:
        trace = json.loads((tmp_path / "run" / "trace.json").read_text())
        assert trace["traceEvents"]
        assert list((tmp_path / "run" / "tensorboard").iterdir())


@pytest.mark.slow
def test_streamed_data_gives_the_same_run(
    few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from thresher.data import loader

    kept = _run(few, tmp_path / "kept")
    monkeypatch.setattr(loader, "_RESIDENT_ON_CPU", 0)
    assert _run(few, tmp_path / "streamed").loss == kept.loss


# ---- refusals ---------------------------------------------------------------------------------


def _refused(few: Path, out: Path, match: str, **more: Any) -> None:
    with pytest.raises(ThresherError, match=match):
        _run(few, out, **more)


def test_bad_input_is_refused_before_anything_is_written(
    few: Path, digits: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    _refused(few, out, 'unknown model "resnet21"', model="resnet21")
    other = str(_selection(few, tmp_path / "half.parquet"))
    _refused(digits, out, "was made on a pack with the fingerprint", selection=other)
    _refused(few, out, "larger than the 287 training samples", batch_size=300)
    _refused(few, out, "cannot share a batch", batch_size=2, workers=3)
    _refused(few, out, "cannot share a batch", batch_size=2, workers=3, resume=True)
    save_file({"x": torch.zeros(3)}, tmp_path / "other.safetensors")
    _refused(
        few, out, "no tensor in .*other.safetensors", weights=str(tmp_path / "other.safetensors")
    )
    _refused(few, out, "there are no weights", weights=str(tmp_path / "none.safetensors"))
    _refused(few, out, "batch_norm cannot be", batch_norm="global")
    _refused(few, out, "crop must be at most 8", crop=100)
    _refused(few, out, "cannot be", lr_rule="cubic")
    _refused(few, out, "exclude each other", delay=1, average_every=2)
    _refused(few, out, "graph cannot be on: there is no GPU", graph="on")
    assert not out.exists()
    with pytest.raises(ThresherError, match="there is no pack"):
        _run(tmp_path / "nowhere", out)


def test_a_run_resumes_if_its_pack_and_selection_were_moved(few: Path, tmp_path: Path) -> None:
    out, old, new = tmp_path / "run", tmp_path / "old", tmp_path / "new"
    shutil.copytree(few, old / "pack")
    chosen: dict[str, Any] = {"epochs": 1, "keep_checkpoint": True, "resume": True}
    selection = _selection(few, old / "half.parquet")
    first = _run(old / "pack", out, selection=str(selection), **chosen)
    old.rename(new)
    chosen["selection"] = str(new / "half.parquet")
    assert _run(new / "pack", out, **chosen).loss == first.loss
    (out / "result.json").unlink()
    assert _run(new / "pack", out, **chosen).loss == first.loss
    _selection(few, new / "other.parquet", 0.25)
    _refused(new / "pack", out, "begun with", **{**chosen, "selection": str(new / "other.parquet")})
    _refused(tmp_path / "nowhere", out, "begun with `data`", **chosen)


def test_a_finished_run_is_kept_and_a_begun_one_too(few: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = _run(few, out, epochs=1)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    _refused(few, out, "holds a finished run", epochs=1)
    _refused(few, out, "begun with `lr` 0.05, not 0.1", epochs=1, resume=True, lr=0.1)
    assert _run(few, out, epochs=1, resume=True) == first
    (out / "result.json").unlink()
    _refused(few, out, "holds an unfinished run", epochs=1)
    (out / "result.json").write_bytes(before[out / "result.json"])
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("years of work")
    _refused(few, tmp_path / "other", "holds other files")


def test_a_second_run_into_the_same_folder_is_refused(few: Path, tmp_path: Path) -> None:
    from thresher.training.folder import locked

    with locked(tmp_path / "run"):
        _refused(few, tmp_path / "run", "another run is writing to")
    assert _run(few, tmp_path / "run", epochs=1).status == "finished"


def test_a_full_disk_is_one_sentence(few: Path, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        full = "no space left on the disk"
        _refused(few, small / "run", full, model="tiny", checkpoint_every=2)
        assert not (small / "run" / "result.json").exists()
    finally:
        subprocess.run(["umount", str(small)], check=True)


# ---- the command line -------------------------------------------------------------------------

KEYS = ("status", "accuracy", "loss", "steps", "seconds", "images_per_s", "resolved")


def _command(few: Path, out: Path, *more: str) -> list[str]:
    return [
        *("-m", "thresher", "train", "--data", str(few), "--model", "tiny", "--batch-size", "32"),
        *("--epochs", "1", "--out", str(out), "--json", "--threads", "1", *more),
    ]


@pytest.mark.slow  # starts up to four processes
@pytest.mark.parametrize("how", ["alone", "workers", "torchrun"])
def test_the_command_prints_one_object(few: Path, tmp_path: Path, how: str) -> None:
    command = [sys.executable, *_command(few, tmp_path / "run")]
    if how == "workers":
        command += ["--workers", "2", "--noise-scale"]
    if how == "torchrun":
        starter = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
        command = [sys.executable, *starter, *_command(few, tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert all(key in result for key in KEYS)
    assert result["resolved"]["workers"] == {"alone": 1, "workers": 2, "torchrun": 3}[how]
    assert "steps per epoch" in done.stderr


@pytest.mark.slow  # starts two commands
def test_the_command_refuses_in_one_sentence(few: Path, tmp_path: Path) -> None:
    for more in (("--model", "resnet21"), ("--workers", "2", "--model", "resnet21")):
        command = [sys.executable, *_command(few, tmp_path / "run", *more)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=400)
        assert done.returncode == 2
        assert done.stdout == ""
        last = done.stderr.strip().splitlines()[-1]
        assert last == 'thresher: unknown model "resnet21"; did you mean "resnet20"?'
        assert "Traceback" not in done.stderr


BROKEN = """
from torch import nn

class Broken(nn.Linear):
    def forward(self, images):
        raise ZeroDivisionError("as planned")

def make(classes):
    return Broken(2, classes)
"""


@pytest.mark.slow
def test_a_worker_of_torchrun_that_breaks_shows_its_traceback_and_does_not_abort(
    few: Path, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    starter = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *starter, *_command(few, tmp_path / "run")]
    command[command.index("tiny")] = "broken:make"
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=environment)
    assert done.returncode == 1
    assert "ZeroDivisionError: as planned" in done.stderr
    assert "terminate called" not in done.stderr
