"""Runs that take over images and steps from the run before end with the same bits."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from quick_tiny import _quick_tiny  # noqa: F401
from thresher.data.loader import Loader
from thresher.data.overrides import OverrideLog
from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.paths import SelectionPaths
from thresher.training.config import TrainConfig
from thresher.training.prepared import MAY_DIFFER, Prepared
from thresher.training.sharing import sharing
from thresher.training.train import train

pytest_plugins = ["train_data"]


def _options(few: Path, **more: Any) -> dict[str, Any]:
    return {
        **{"data": str(few), "device": "cpu", "batch_size": 64, "epochs": 1, "lr": 0.05},
        **{"threads": 1, **more},
    }


def _train(out: Path, options: dict[str, Any]) -> None:
    train(TrainConfig(out=str(out), **options), quiet=True)


def _same(a: Path, b: Path) -> bool:
    x, y = load_file(a / "model.safetensors"), load_file(b / "model.safetensors")
    return x.keys() == y.keys() and all(x[name].equal(y[name]) for name in x)


@pytest.fixture
def selections(few: Path, tmp_path: Path) -> list[str]:
    """Two that drop seven samples each; the first also relabels one."""
    pack = Pack.open(few)
    train = pack.indices("train")
    ids, labels, files = pack.ids.take(train).to_pylist(), pack.labels[train], []
    for number in range(2):
        keep = np.ones(len(ids), bool)
        keep[number * 50 : number * 50 + 7] = False
        Selection(
            ids=ids,
            labels=labels,
            keep=keep,
            score=np.zeros(len(ids), np.float32),
            reason=[""] * len(ids),
            fingerprint=pack.fingerprint,
        ).save(tmp_path / f"selection-{number}.parquet")
        files.append(tmp_path / f"selection-{number}.parquet")
    log = OverrideLog(SelectionPaths(files[0]).overrides)
    log.relabel({ids[100]: int(labels[100])}, 1 - int(labels[100] > 0), "", {ids[100]: True})
    return [str(file) for file in files]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of images of each loader that read its images."""
    counts: list[int] = []
    original = Loader._read_all

    def counted(self: Loader) -> Any:
        counts.append(len(self))
        return original(self)

    monkeypatch.setattr(Loader, "_read_all", counted)
    return counts


@pytest.mark.slow
def test_runs_share_images_and_not_labels(
    few: Path, selections: list[str], read: list[int], tmp_path: Path
) -> None:
    """After a run with new labels, the next one sees those of the pack again."""
    runs: list[dict[str, Any]] = [
        {"selection": selections[0]},
        {},
        {"selection": selections[1]},
    ]
    with sharing():
        for number, more in enumerate(runs):
            _train(tmp_path / f"shared-{number}", _options(few, **more))
    assert read == [327]
    for number, more in enumerate(runs):
        _train(tmp_path / f"alone-{number}", _options(few, **more))
        assert _same(tmp_path / f"shared-{number}", tmp_path / f"alone-{number}")
    assert len(read) == 4
    assert not _same(tmp_path / "shared-0", tmp_path / "shared-1")


@pytest.mark.slow
def test_other_images_are_read_again(few: Path, read: list[int], tmp_path: Path) -> None:
    with sharing():
        _train(tmp_path / "a", _options(few))
        _train(tmp_path / "b", _options(few, validation=0.2))  # in another order
        _train(tmp_path / "c", _options(few))
    assert read == [327, 327, 327]
    _train(tmp_path / "d", _options(few, validation=0.2))
    assert _same(tmp_path / "b", tmp_path / "d")


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"optimizer": "adamw", "lr": 0.01},
        {"optimizer": "lamb", "batch_norm": "ghost:8"},
        {"optimizer": "muon", "record_dynamics": True, "micro_batch": 32},
        {"dynamic": "infobatch", "epochs": 3},
    ],
    ids=lambda options: "-".join(map(str, options.values())) or "sgd",
)
def test_a_step_taken_over_starts_like_a_new_one(
    few: Path,
    selections: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
) -> None:
    """As on a GPU, where captured steps are kept; here without a graph."""
    monkeypatch.setattr(Prepared, "reusable", True)
    taken = []
    restart = Prepared.restart

    def counted(self: Prepared, *arguments: Any) -> bool:
        taken.append(restart(self, *arguments))
        return taken[-1]

    monkeypatch.setattr(Prepared, "restart", counted)
    runs: list[dict[str, Any]] = [
        {"selection": selections[0]},
        {"selection": selections[1], "seed": 3, "lr": 0.02},
    ]
    with sharing(steps=True):
        for number, more in enumerate(runs):
            _train(tmp_path / f"shared-{number}", _options(few, **{**options, **more}))
    assert taken == [True]
    _train(tmp_path / "alone", _options(few, **{**options, **runs[1]}))
    assert _same(tmp_path / "shared-1", tmp_path / "alone")


@pytest.mark.slow
def test_a_run_that_resumes_makes_its_own_step(
    few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint replaces tensors to which a captured step refers."""
    monkeypatch.setattr(Prepared, "reusable", True)
    monkeypatch.setattr(Prepared, "restart", lambda self, *_: pytest.fail("taken over"))
    with sharing(steps=True):
        _train(tmp_path / "a", _options(few, keep_checkpoint=True))
        (tmp_path / "a" / "result.json").unlink()
        _train(tmp_path / "a", _options(few, keep_checkpoint=True, resume=True))
        _train(tmp_path / "b", _options(few, batch_size=32))  # other shapes
    _train(tmp_path / "c", _options(few, batch_size=32))
    assert _same(tmp_path / "b", tmp_path / "c")


def test_the_options_that_may_differ_exist() -> None:
    assert {field.name for field in fields(TrainConfig)} >= MAY_DIFFER
