"""Runs say that they look at their target only at the end if, and only if, they do."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quick_tiny import _quick_tiny  # noqa: F401
from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.training.config import TrainConfig
from thresher.training.record import late_target
from thresher.training.train import train

pytest_plugins = ["train_data"]
SENTENCE = "target_accuracy is looked at only when a run ends"


@pytest.mark.parametrize(("every", "late"), [(4, False), (99, True)])
def test_the_epochs_of_a_run_count_and_not_those_of_the_full_one(
    few: Path, tmp_path: Path, every: int, late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A tenth of the samples under the budget of all: twenty epochs for two."""
    pack = Pack.open(few)
    positions = pack.indices("train")
    Selection(
        ids=pack.ids.take(positions).to_pylist(),
        labels=pack.labels[positions],
        keep=np.arange(len(positions)) % 10 == 0,
        score=np.zeros(len(positions), np.float32),
        reason=[""] * len(positions),
        fingerprint=pack.fingerprint,
    ).save(tmp_path / "tenth.parquet")
    options: dict[str, Any] = {"selection": str(tmp_path / "tenth.parquet"), "batch_size": 8}
    config = TrainConfig(
        data=str(few),
        out=str(tmp_path / "run"),
        epochs=2,
        budget="samples",
        evaluate_every=every,
        target_accuracy=1.0,
        lr=0.0,
        threads=1,
        device="cpu",
        **options,
    )
    with caplog.at_level(logging.WARNING):
        result = train(config)
    assert result.resolved.passes == pytest.approx(2 * 287 / 29)
    assert (SENTENCE in caplog.text) == late


def test_a_run_of_unknown_length_is_mentioned_only_if_it_does_not_evaluate() -> None:
    values = {"target_accuracy": 0.9, "epochs": 2, "evaluate_every": 4}
    assert late_target(values).startswith(SENTENCE)
    assert late_target({**values, "budget": "samples"}) == ""
    assert late_target({**values, "budget": "samples", "evaluate_every": 0}).startswith(SENTENCE)
