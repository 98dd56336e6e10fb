"""Training in fp16, whose loss is multiplied by a scale."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from quick_tiny import _quick_tiny  # noqa: F401
from thresher.paths import RunPaths
from thresher.training import checkpoint
from thresher.training.config import TrainConfig
from thresher.training.train import train

pytest_plugins = ["train_data"]


def _config(few: Path, out: Path, **more: Any) -> TrainConfig:
    """Three steps of a few samples: a CPU takes a hundred times longer in fp16."""
    options: dict[str, Any] = {"epochs": 1 / 6, "batch_size": 16, "evaluate_every": 0}
    options |= {"lr": 0.01, "device": "cpu"}
    return TrainConfig(**{"data": str(few), "out": str(out), **options, **more})


@pytest.mark.parametrize(
    "options",
    [{"micro_batch": "auto"}, pytest.param({"workers": 2}, marks=pytest.mark.slow)],
    ids=["micro_batch", "workers"],
)
def test_runs_that_rehearse_a_step_train(few: Path, tmp_path: Path, options: Any) -> None:
    result = train(_config(few, tmp_path / "run", precision="fp16", **options), quiet=True)
    assert (result.status, result.steps) == ("finished", 3)


def _errors(few: Path, out: Path, precision: str) -> torch.Tensor:
    """Return what compression left out in all steps, summed over the workers."""
    more = {"workers": 2, "compress": "topk", "keep_checkpoint": True}
    more |= {"epochs": 0.5, "batch_size": 48}
    train(_config(few, out, precision=precision, **more), quiet=True)
    saved = checkpoint.newest(RunPaths(out).checkpoints)
    assert saved is not None
    assert precision != "fp16" or saved.meta["scaler"]["scale"] > 1000
    kept = [saved.part(f"rank.{rank}.exchange") for rank in range(2)]
    return torch.stack([torch.cat([part[n] for n in sorted(part)]) for part in kept]).sum(0)


@pytest.mark.slow  # trains on two processes
def test_what_compression_leaves_out_is_kept_without_the_scale(few: Path, tmp_path: Path) -> None:
    half, full = (_errors(few, tmp_path / kind, kind) for kind in ("fp16", "fp32"))
    assert half.isfinite().all()
    assert (half - full).norm() < 0.2 * full.norm()


@pytest.mark.slow  # trains twice on two processes
def test_a_worker_resumes_with_its_own_scale_and_counts(few: Path, tmp_path: Path) -> None:
    """With local SGD, the workers skip different steps: one scale falls earlier than the other."""
    more: dict[str, Any] = {"workers": 2, "average_every": 2, "batch_norm": "ghost:4", "seed": 4}
    more |= {"batch_size": 11, "optimizer": "adamw", "epochs": 0.5, "precision": "fp16"}
    more |= {"checkpoint_every": 8, "keep_checkpoint": True, "threads": 1}
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(_config(few, whole, **more), quiet=True)
    first, *_ = sorted((whole / "checkpoints").iterdir())
    saved = checkpoint.read(first)
    assert saved is not None
    scales = [saved.tensors[f"rank.{rank}.fp16.scale"].item() for rank in range(2)]
    assert scales[0] != scales[1], "choose another seed: the workers skipped the same steps"
    (broken / "checkpoints").mkdir(parents=True)
    shutil.copy(first, broken / "checkpoints")
    shutil.copy(whole / "run.json", broken)
    train(_config(few, broken, **more, resume=True), quiet=True)
    x, y = (load_file(run / "model.safetensors") for run in (whole, broken))
    assert all(torch.equal(x[name], y[name]) for name in x)
