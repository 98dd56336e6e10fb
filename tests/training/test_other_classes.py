"""The probabilities of a run's network belong to the classes that it was trained on."""

from pathlib import Path

import numpy as np
import pytest

from planted import ArraySource
from quick_network import NAME
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


def test_features_of_a_run_that_cannot_be_written_are_in_the_cache(
    few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of a colleague; it was refused, and no other folder could be given."""
    monkeypatch.setenv("THRESHER_HOME", str(tmp_path / "home"))
    pack, run = Pack.open(few), tmp_path / "run"
    train(TrainConfig(data=str(few), model=NAME, epochs=1, batch_size=64, out=str(run)), quiet=True)
    before = sorted(run.rglob("*"))
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != run)  # root may write all
    first = features_of_run(run, pack)
    assert first.path is not None
    assert first.path.is_relative_to(tmp_path / "home")
    assert features_of_run(run, pack).path == first.path
    assert sorted(run.rglob("*")) == before
    monkeypatch.undo()
    own = features_of_run(run, pack)
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != run)
    assert features_of_run(run, pack).path == own.path
