"""The probabilities of a run's network belong to the classes that it was trained on."""

from pathlib import Path

import numpy as np
import pytest

from planted import ArraySource
from thresher.data.pack import Pack
from thresher.data.write import write_pack
from thresher.models.embed import embed_pack, features_of_run
from thresher.models.embed_config import EmbedConfig
from thresher.training.config import TrainConfig
from thresher.training.train import train

pytest_plugins = ["train_data"]


def test_another_data_set_with_as_many_classes_gets_no_probabilities(
    few: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They were stored as those of its own classes, and filters took them for that."""
    pack, run = Pack.open(few), tmp_path / "run"
    config = TrainConfig(data=str(few), model="tiny", epochs=1, batch_size=64, out=str(run))
    train(config, quiet=True)
    assert features_of_run(run, pack).probabilities is not None
    rows = np.arange(len(pack) - 1)
    images, ids = pack.images(rows), pack.ids.take(rows).to_pylist()
    splits = ["train"] * len(rows)
    fewer = ArraySource(images, pack.labels[rows], splits, ids, pack.classes)
    same = features_of_run(run, write_pack(fewer, tmp_path / "same"))
    assert same.probabilities is not None
    assert "other classes" not in caplog.text
    turned = ArraySource(images, 9 - pack.labels[rows], splits, ids, pack.classes[::-1])
    other = features_of_run(run, write_pack(turned, tmp_path / "other"))
    assert other.probabilities is None
    assert np.array_equal(other.array, same.array)
    assert "was trained on other classes than those of planted" in caplog.text
    # The head is that of the run, though of other classes.
    logits = EmbedConfig(run=run, features_from="output")
    assert embed_pack(logits, Pack.open(tmp_path / "other"), tmp_path / "f").array.shape[1] == 10
