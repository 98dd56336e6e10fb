"""What only a GPU can show: captured steps, and no memory left behind."""

from pathlib import Path
from typing import Any

import pytest

from thresher.train.config import TrainConfig
from thresher.train.loop import train

pytest_plugins = ["train_data"]

pytestmark = pytest.mark.gpu


def _run(few: Path, out: Path, **more: Any) -> dict[str, Any]:
    options: dict[str, Any] = {
        "data": str(few),
        "out": str(out),
        "model": "resnet20",
        "batch_size": 32,
        "epochs": 2,
        "lr": 0.02,
        "device": "cuda",
        **more,
    }
    return train(TrainConfig(**options), quiet=True)


def test_a_captured_step_takes_the_eager_steps_path(few: Path, tmp_path: Path) -> None:
    eager = _run(few, tmp_path / "eager", graph="off")
    captured = _run(few, tmp_path / "captured", graph="on")
    assert captured["train_loss"] == pytest.approx(eager["train_loss"], rel=1e-2)
    assert captured["steps"] == eager["steps"] == 18


@pytest.mark.parametrize("optimizer", ["sgd", "nesterov", "lars", "lamb", "adamw"])
def test_every_optimizer_can_be_captured(few: Path, tmp_path: Path, optimizer: str) -> None:
    assert _run(few, tmp_path / "run", optimizer=optimizer, graph="on")["status"] == "finished"


def test_accumulation_and_dynamics_can_be_captured(few: Path, tmp_path: Path) -> None:
    result = _run(few, tmp_path / "run", micro_batch=8, graph="on", record_dynamics=True)
    assert result["resolved"]["accumulation"] == 4
    assert (tmp_path / "run" / "dynamics.parquet").exists()


def test_many_runs_leave_no_memory_behind(few: Path, tmp_path: Path) -> None:
    import torch

    held = []
    for number in range(4):
        _run(few, tmp_path / str(number))
        held.append(torch.cuda.memory_allocated())
    assert held[3] <= held[1]


def test_auto_survives_a_full_device(few: Path, tmp_path: Path) -> None:
    import torch

    free = torch.cuda.mem_get_info()[0]
    torch.cuda.set_per_process_memory_fraction(0.002)
    try:
        result = _run(
            few, tmp_path / "run", model="resnet110", batch_size=256, micro_batch="auto", epochs=1
        )
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert result["status"] == "finished"
    assert free > 0
