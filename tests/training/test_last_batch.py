"""A last batch of a handful of samples is trained on, and warned of."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from thresher.training.config import TrainConfig
from thresher.training.resolved import resolve, tiny_last_batches


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
