"""A last batch of a handful of samples is trained on, and warned of."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from thresher.training.config import TrainConfig
from thresher.training.resolved import resolve, tiny_last_batch


@pytest.mark.parametrize(
    ("samples", "batch", "few"), [(1437, 718, 1), (1437, 480, 0), (640, 64, 0), (1000, 333, 1)]
)
def test_only_a_tiny_rest_is_tiny(samples: int, batch: int, few: int) -> None:
    config = TrainConfig(data="d", out="o", batch_size=batch)
    assert tiny_last_batch(resolve(config, samples, samples, 1)) == few


@pytest.mark.slow
def test_the_run_says_so(
    thresher: Callable[..., subprocess.CompletedProcess[str]], digits: Path, tmp_path: Path
) -> None:
    done = thresher(
        *("train", "--data", digits, "--batch-size", 718, "--epochs", 1, "--out", tmp_path / "run")
    )
    assert done.returncode == 0, done.stderr
    assert "the last batch of each epoch holds 1 of 718 samples" in done.stderr
