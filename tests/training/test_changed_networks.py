"""The file of a network of one's own that is changed between two calls is noticed."""

import importlib
import json
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from thresher.auditing.audit import audit
from thresher.auditing.config import AuditConfig
from thresher.data.digest import file_sha256
from thresher.data.pack import Pack
from thresher.errors import InvalidValueError, ThresherError
from thresher.models.embed import features_of_run
from thresher.models.registry import build, source_digest
from thresher.paths import RunPaths, write_json
from thresher.scaling.measure import MeasureConfig, measure
from thresher.scaling.profile import Profile
from thresher.study.analysis import analyse
from thresher.study.study import Study
from thresher.training import trainer
from thresher.training.config import TrainConfig
from thresher.training.train import train

pytest_plugins = ["train_data"]
NETWORK = """
from torch import nn

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body, self.fc = nn.Linear(64, 8), nn.Linear(8, classes)

    def forward(self, x):
        return self.fc({factor} * self.body(x.flatten(1)))
"""
MODEL = "net_that_changes:Net"


class Source:
    """The file of the network; each version is imported as by a new process."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "net_that_changes.py"

    def write(self, factor: int) -> None:
        # Files of different sizes: Python compares these and the times, in seconds.
        self.file.write_text(NETWORK.format(factor=factor) + "#" * factor)
        importlib.invalidate_caches()
        sys.modules.pop("net_that_changes", None)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    monkeypatch.syspath_prepend(tmp_path)
    made = Source(tmp_path)
    made.write(1)
    return made


def _config(few: Path, out: Path, **options: Any) -> TrainConfig:
    return TrainConfig(data=str(few), out=str(out), model=MODEL, epochs=1, device="cpu", **options)


def _forget(run: Path, key: str) -> None:
    """Remove a digest from run.json, as in runs of an earlier version."""
    content = json.loads(RunPaths(run).config.read_text())
    del content[key]
    write_json(RunPaths(run).config, content)


@pytest.mark.parametrize("state", ["finished", "begun"])
def test_a_run_is_not_resumed_with_another_network(
    few: Path, tmp_path: Path, source: Source, state: str
) -> None:
    config = _config(few, tmp_path / "run", resume=True)
    first = train(config, quiet=True)
    if state == "begun":
        RunPaths(tmp_path / "run").result.unlink()
    source.write(2)
    with pytest.raises(InvalidValueError, match=r"net_that_changes.py was changed after the run"):
        train(config, quiet=True)
    source.write(1)
    assert train(config, quiet=True).accuracy == first.accuracy
    source.write(2)
    _forget(tmp_path / "run", "model_source")
    assert train(config, quiet=True).accuracy == first.accuracy


def test_a_run_is_not_resumed_with_other_initial_weights(few: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "weights.pt", tmp_path / "run"
    torch.save(build("tiny", 10, 1).state_dict(), file)
    config = TrainConfig(
        data=str(few), out=str(out), epochs=1, device="cpu", weights=str(file), resume=True
    )
    train(config, quiet=True)
    RunPaths(out).result.unlink()
    torch.save(build("tiny", 10, 1).state_dict(), file)
    with pytest.raises(InvalidValueError, match=r"weights.pt was changed after the run in"):
        train(config, quiet=True)


def test_a_branch_has_the_network_of_its_run(few: Path, tmp_path: Path, source: Source) -> None:
    train(_config(few, tmp_path / "run", keep_checkpoint=True), quiet=True)
    source.write(2)
    branch = _config(few, tmp_path / "branch", branch_from=str(tmp_path / "run"))
    with pytest.raises(InvalidValueError, match=r"net_that_changes.py was changed after the run"):
        train(branch, quiet=True)
    assert not (tmp_path / "branch").exists()


def test_a_file_counts_as_it_was_imported(few: Path, tmp_path: Path, source: Source) -> None:
    """The worker of a study trains on with the network that it has imported."""
    train(_config(few, tmp_path / "run"), quiet=True)
    used = source_digest(MODEL)
    source.file.write_text("changed, but not imported")
    assert source_digest(MODEL) == used
    source.write(2)
    build(MODEL, 10, 1)
    assert source_digest(MODEL) != used


def test_a_file_that_is_changed_while_a_run_starts_counts_as_it_was_imported(
    few: Path, tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`run.json` held the digest of a file that the run had not used."""
    used, prepare = file_sha256(source.file), trainer.prepare

    def edited(*arguments: Any) -> Any:
        source.file.write_text("changed after the network was built")
        return prepare(*arguments)

    monkeypatch.setattr(trainer, "prepare", edited)
    train(_config(few, tmp_path / "run"), quiet=True)
    assert json.loads(RunPaths(tmp_path / "run").config.read_text())["model_source"] == used


def test_the_result_of_a_run_outlives_the_package_of_its_network(
    few: Path, tmp_path: Path, source: Source
) -> None:
    """An error in the package, as torchvision's without its operators, ended in a traceback."""
    package = tmp_path / "package_that_breaks"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "net.py").write_bytes(source.file.read_bytes())
    config = replace(
        _config(few, tmp_path / "run", resume=True), model="package_that_breaks.net:Net"
    )
    result = train(config, quiet=True)
    for name in ("package_that_breaks", "package_that_breaks.net"):
        sys.modules.pop(name)
    (package / "__init__.py").write_text("raise RuntimeError('operator does not exist')")
    importlib.invalidate_caches()
    assert train(config, quiet=True).accuracy == result.accuracy


def test_features_of_another_network_are_computed_anew(
    few: Path, tmp_path: Path, source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    pack, run = Pack.open(few), tmp_path / "run"
    train(_config(few, run), quiet=True)
    first = features_of_run(run, pack)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    source.write(2)
    second = features_of_run(run, pack)
    assert "net_that_changes:Net was changed after" in caplog.text
    np.testing.assert_allclose(second.array, 2 * first.array, rtol=1e-2, atol=1e-3)
    assert features_of_run(run, pack).path == second.path
    source.write(1)
    assert features_of_run(run, pack).path == first.path
    source.write(1)
    source.file.unlink()  # stored features need no network
    assert features_of_run(run, pack).path == first.path


@pytest.mark.slow
def test_an_audit_by_another_network_is_refused(few: Path, tmp_path: Path, source: Source) -> None:
    train(_config(few, tmp_path / "run"), quiet=True)
    config = AuditConfig(run=tmp_path / "run", device="cpu")
    audit(str(few), tmp_path / "audit", config)
    source.write(2)
    with pytest.raises(ThresherError, match="with other options or another network"):
        audit(str(few), tmp_path / "audit", config)
    source.write(1)
    audit(str(few), tmp_path / "audit", config)


def test_a_study_does_not_mix_networks(few: Path, tmp_path: Path, source: Source) -> None:
    values: dict[str, Any] = {
        "seeds": 1,
        "base": {"data": str(few), "model": MODEL, "epochs": 1, "device": "cpu"},
        "executor": {"kind": "in-process"},
    }
    assert Study.from_dict(values, tmp_path / "out").run().count("finished") == 1
    more = Study.from_dict({**values, "seeds": 2}, tmp_path / "out")
    source.write(2)
    with pytest.raises(InvalidValueError, match=r"changes.py was changed after 1 run of the study"):
        more.run()
    source.write(1)
    assert more.run().count("finished") == 2
    assert not [note for note in analyse(more).notes if "versions" in note]
    run = sorted((tmp_path / "out" / "trials").iterdir())[0]
    content = json.loads(RunPaths(run).config.read_text())
    write_json(RunPaths(run).config, content | {"model_source": "0" * 64})
    said = f"The file of network {MODEL} was changed between runs: 2 versions of it are compared."
    assert said in analyse(more).notes
    source.write(2)
    for run in (tmp_path / "out" / "trials").iterdir():  # a study of an earlier version
        _forget(run, "model_source")
    assert Study.from_dict({**values, "seeds": 3}, tmp_path / "out").run().count("finished") == 3


def test_a_profile_of_another_network_is_refused(few: Path, tmp_path: Path, source: Source) -> None:
    options = MeasureConfig(
        model=MODEL, batch_size=4, data=str(few), seconds_per_batch=0.01, device="cpu"
    )
    measure(options).save(tmp_path / "p.json")
    assert Profile.load(tmp_path / "p.json", MODEL).model == MODEL
    source.write(2)
    with pytest.raises(InvalidValueError, match=r"Net was changed after profile .* measured"):
        Profile.load(tmp_path / "p.json", MODEL)
    assert Profile.load(tmp_path / "p.json").model == MODEL
