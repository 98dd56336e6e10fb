"""Training in fp16, whose loss is multiplied by a scale."""

from pathlib import Path
from typing import Any

import pytest

from thresher.training.config import TrainConfig
from thresher.training.train import train

pytest_plugins = ["train_data"]


def _config(few: Path, out: Path, **more: Any) -> TrainConfig:
    options = {"epochs": 1, "batch_size": 96, "evaluate_every": 0, "lr": 0.01, "device": "cpu"}
    return TrainConfig(**{"data": str(few), "out": str(out), **options, **more})


@pytest.mark.parametrize(
    "options",
    [{"micro_batch": "auto"}, pytest.param({"workers": 2}, marks=pytest.mark.slow)],
    ids=["micro_batch", "workers"],
)
def test_runs_that_rehearse_a_step_train(few: Path, tmp_path: Path, options: Any) -> None:
    result = train(_config(few, tmp_path / "run", precision="fp16", **options), quiet=True)
    assert (result.status, result.steps) == ("finished", 3)
