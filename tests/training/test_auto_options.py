"""Options that are chosen by the device: precision and decoder."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from made_images import class_folder
from quick_tiny import _quick_tiny  # noqa: F401
from thresher import Pack, RunResult, TrainConfig, train
from thresher.data.sources.folder import Folder
from thresher.data.write import write_pack
from thresher.errors import InvalidValueError
from thresher.training import train as train_module
from thresher.training.folder import as_begun
from thresher.training.train import _on_device

pytest_plugins = ["train_data"]


@pytest.fixture(scope="module")
def finished(few: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """A run with the defaults on the CPU."""
    out = tmp_path_factory.mktemp("auto") / "run"
    config = TrainConfig(
        data=str(few), out=str(out), epochs=0.1, batch_size=16, device="cpu", keep_checkpoint=True
    )
    train(config, quiet=True)
    return replace(config, resume=True)


def _begun_with(config: TrainConfig, out: Path, **changed: Any) -> TrainConfig:
    """Return a configuration that resumes a run which was begun with other options."""
    begun = json.loads((Path(config.out) / "run.json").read_text())
    for name, value in changed.items():
        begun["config"].pop(name)
        if value is not None:
            begun["config"][name] = value
    out.mkdir()
    (out / "run.json").write_text(json.dumps(begun))
    return replace(config, out=str(out))


def test_the_result_has_the_precision_that_was_used(finished: TrainConfig) -> None:
    result = RunResult.load(finished.out)
    assert finished.precision == "auto"
    assert (result.config.precision, result.resolved.precision) == ("fp32", "fp32")
    assert (result.config.decoder, result.resolved.decoder) == ("cpu", None)
    assert "precision" in result.resolved.table()


def test_a_run_that_was_moved_is_where_it_lies(finished: TrainConfig, tmp_path: Path) -> None:
    shutil.copytree(finished.out, tmp_path / "moved")
    assert RunResult.load(tmp_path / "moved").config.out == str(tmp_path / "moved")


def test_an_old_result_was_computed_as_was_usual_then(finished: TrainConfig) -> None:
    values = RunResult.load(finished.out).to_dict()
    old = {name: value for name, value in values["config"].items() if name != "decoder"}
    assert RunResult.from_dict({**values, "config": old}).config.decoder == "cpu"


@pytest.mark.parametrize("precision", ["auto", "fp32"])
def test_a_run_is_resumed_with_auto_or_with_what_it_stands_for(
    finished: TrainConfig, precision: Any, tmp_path: Path
) -> None:
    assert train(replace(finished, precision=precision), quiet=True).steps == 2
    branch = replace(finished, out=str(tmp_path / "b"), branch_from=finished.out, epochs=0.2)
    assert train(replace(branch, precision=precision), quiet=True).steps > 2


def test_a_run_of_another_precision_is_refused(finished: TrainConfig, tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="begun with `precision` fp32, not bf16"):
        train(replace(finished, precision="bf16"), quiet=True)
    branch = replace(finished, out=str(tmp_path / "b"), branch_from=finished.out, precision="bf16")
    with pytest.raises(InvalidValueError, match="has `precision` fp32, not bf16"):
        train(branch, quiet=True)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16", "fp64"])
def test_a_resumed_run_and_a_branch_keep_the_precision(
    finished: TrainConfig, precision: Any, tmp_path: Path
) -> None:
    """As on another device than the one on which the run was begun."""
    begun = replace(finished, out=str(tmp_path / "a"), precision=precision, resume=False)
    train(begun, quiet=True)
    for file in ("result.json", "model.safetensors"):
        (tmp_path / "a" / file).unlink()
    resumed = train(replace(begun, precision="auto", resume=True), quiet=True)
    assert resumed.config.precision == resumed.resolved.precision == precision
    branch = replace(finished, out=str(tmp_path / "b"), branch_from=begun.out, resume=False)
    assert train(branch, quiet=True).resolved.precision == precision


@pytest.mark.parametrize("decoder", [None, "cpu", "gpu"])
def test_a_resumed_run_keeps_its_decoder(
    finished: TrainConfig, decoder: str | None, tmp_path: Path
) -> None:
    """A run.json without decoder is of a version that had only one."""
    resumed = _begun_with(finished, tmp_path / "run", decoder=decoder)
    assert as_begun(resumed).decoder == (decoder or "cpu")
    if decoder == "gpu":
        with pytest.raises(InvalidValueError, match="decoder cannot be gpu"):
            train(resumed, quiet=True)


def test_the_gpu_decodes_where_it_can(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = write_pack(Folder(class_folder(tmp_path / "images", each=2)), tmp_path / "pack")
    config = TrainConfig(data="-", out=str(tmp_path / "r"), image_size=8, precision="fp32")

    def chosen(pack: Pack, device: str, **options: Any) -> str:
        return _on_device(replace(config, **options), pack, torch.device(device)).decoder

    for missing, wanted in (("triton", "cpu"), (None, "gpu")):
        monkeypatch.setattr(train_module, "missing_package", lambda name=missing: name)
        assert chosen(encoded, "cuda") == wanted
        assert chosen(encoded, "cpu") == "cpu"
        assert chosen(encoded, "cuda", augment="cifar") == "cpu"
        assert chosen(encoded, "cuda", decoder="cpu") == "cpu"
        assert chosen(Pack.open(digits), "cuda") == "cpu"
