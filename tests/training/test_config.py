"""The configuration: one declaration per option, groups, None as the default, old files."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from thresher.data.pack import Pack
from thresher.errors import InvalidValueError
from thresher.models.network import Network
from thresher.options import changes_result, describe
from thresher.training.config import TrainConfig, check
from thresher.training.exchange.base import ExchangeConfig
from thresher.training.optimizers import OptimizerConfig
from thresher.training.resolved import resolve
from thresher.training.result import RunResult
from thresher.training.train import train

pytest_plugins = ["train_data"]

OLD = {
    "selection": "",
    "weights": "",
    "base_batch": 0,
    "micro_batch": 0,
    "crop": 0,
    "crop_padding": -1,
    "image_size": 0,
    "cutout": 0,
    "threads": 0,
    "checkpoint_every": 0,
    "dynamic": "none",
}


def _config(**more: Any) -> TrainConfig:
    return TrainConfig(data="d", out="o", **more)


def test_every_option_is_declared_once_with_a_help_text() -> None:
    declared = [
        name
        for base in TrainConfig.__mro__
        for name in vars(base).get("__annotations__", {})
        if dataclasses.is_dataclass(base)
    ]
    assert len(declared) == len(set(declared)) == len(describe(TrainConfig))
    assert not [info.name for info in describe(TrainConfig) if not info.help]
    assert describe(TrainConfig)[0].name == "data"
    assert isinstance(_config(), OptimizerConfig)
    assert isinstance(_config(), ExchangeConfig)


def test_values_that_stood_for_default_load_as_none() -> None:
    old = TrainConfig.from_dict({"data": "d", "out": "o", **OLD})
    assert old == _config()
    assert all(getattr(old, name) is None for name in OLD)
    again = TrainConfig.from_dict(json.loads(json.dumps(old.to_dict())))
    assert again == old
    kept = TrainConfig.from_dict({"data": "d", "out": "o", "crop_padding": 0, "micro_batch": 8})
    assert (kept.crop_padding, kept.micro_batch) == (0, 8)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\), got 1.0"),
        ({"epochs": 0}, "epochs must be greater than 0, got 0"),
        ({"epochs": float("inf")}, "epochs must be"),
        ({"lr": float("nan")}, "lr must be"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"crop": 0}, "crop must be at least 1, got 0"),
        ({"micro_batch": 0}, "micro_batch must be at least 1, got 0"),
        ({"micro_batch": "all"}, 'micro_batch must be an integer or "auto", got .all.'),
        ({"delay": 2}, r"delay must be in \[0, 1\], got 2"),
        ({"target_accuracy": 90}, r"target_accuracy must be in \(0, 1\], got 90"),
        ({"schedule": "cosin"}, 'schedule cannot be "cosin"; did you mean "cosine"'),
        ({"batch_size": 1.5}, "batch_size must be an integer, got 1.5"),
        ({"batch_norm": "ghost"}, 'batch_norm cannot be "ghost"'),
        (
            {"batch_norm": "ghost:1/8", "batch_schedule": "double@1"},
            "batch_norm` ghost:1/8 does not work with `batch_schedule`",
        ),
        ({"batch_norm": "ghost:1/8", "scaling": "weak"}, "weak, which change the batch"),
        ({"batch_norm": "ghost:1/0"}, 'batch_norm cannot be "ghost:1/0"'),
        ({"batch_norm": "ghost:2/8"}, 'batch_norm cannot be "ghost:2/8"'),
        ({"dynamic": "easiest"}, 'unknown pruner "easiest"'),
        ({"delay": 1, "average_every": 2}, "`delay` and `average_every` exclude each other"),
        ({"average_every": 2, "compress": "int8"}, "`compress` and `allreduce` have no effect"),
        ({"delay": 1, "precision": "fp16"}, "`delay` does not work with precision fp16"),
        ({"delay": 1, "engine": "horovod"}, "do not work with engine horovod"),
        ({"compress": "topk", "allreduce": "ring"}, "topk does not work with `allreduce` ring"),
        ({"compress": "int8", "engine": "horovod"}, "int8 does not work with engine horovod"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_wrong_values_are_refused(more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidValueError, match=sentence):
        check(_config(**more))


@pytest.mark.slow
def test_groups_of_batch_norm_may_be_a_share_of_the_batch(few: Path, tmp_path: Path) -> None:
    common: dict[str, Any] = {"data": str(few), "epochs": 1, "batch_size": 32, "device": "cpu"}
    share = TrainConfig(**common, out=str(tmp_path / "share"), batch_norm="ghost:1/5")
    size = TrainConfig(**common, out=str(tmp_path / "size"), batch_norm="ghost:7")
    assert resolve(share, 100) == resolve(size, 100)
    one, other = train(share, quiet=True), train(size, quiet=True)
    assert one.loss == other.loss
    again = train(dataclasses.replace(share, resume=True), quiet=True)
    assert again.wall_seconds == one.wall_seconds  # it has finished, and is not run again
    # The groups follow the batch where the options of the run are used again.
    stored = TrainConfig.load(tmp_path / "share" / "run.json", batch_size=64)
    assert stored.batch_norm == one.config.batch_norm == "ghost:1/5"
    # Earlier versions stored the size.
    resumed = dataclasses.replace(size, batch_norm="ghost:1/5", resume=True)
    assert train(resumed, quiet=True).wall_seconds == other.wall_seconds


def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(InvalidValueError, match='"momentun"; did you mean "momentum"'):
        TrainConfig.from_dict({"data": "d", "out": "o", "momentun": 0.5})


def test_a_run_of_an_older_version_is_resumed_and_read(few: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"data": str(few), "out": str(tmp_path / "run"), "epochs": 1}
    result = train(TrainConfig(**options, device="cpu", threads=1), quiet=True)
    for name in ("run.json", "result.json"):
        file = tmp_path / "run" / name
        content = json.loads(file.read_text())
        content["config"] |= OLD
        file.write_text(json.dumps(content))
    assert not (tmp_path / "run" / "config.json").exists(), "timm would take it for one of its own"
    (tmp_path / "run" / "run.json").rename(tmp_path / "run" / "config.json")  # its name in 0.1
    again = TrainConfig.load(tmp_path / "run" / "config.json", out="elsewhere")
    assert (again.data, again.epochs) == (str(few), 1)
    assert Network.from_run(tmp_path / "run", Pack.open(few)).model is not None
    resumed = train(TrainConfig(**options, resume=True, device="cpu", crop_padding=None))
    assert resumed.loss == result.loss == RunResult.load(tmp_path / "run").loss
    with pytest.raises(InvalidValueError, match="begun with `cutout` None, not 4"):
        train(TrainConfig(**options, resume=True, cutout=4))


@pytest.mark.parametrize("name", ["run.json", "result.json"])
def test_a_run_of_a_newer_version_is_refused(few: Path, tmp_path: Path, name: str) -> None:
    options: dict[str, Any] = {"data": str(few), "out": str(tmp_path / "run"), "epochs": 1}
    train(TrainConfig(**options, device="cpu", threads=1), quiet=True)
    file = tmp_path / "run" / name
    content = json.loads(file.read_text())
    assert content["format"] == 1
    file.write_text(json.dumps(content | {"format": 2}))
    with pytest.raises(InvalidValueError, match=rf"{name} was written by a newer version"):
        train(TrainConfig(**options, resume=True), quiet=True)
    del content["format"]
    file.write_text(json.dumps(content))
    assert train(TrainConfig(**options, resume=True), quiet=True).status == "finished"


def test_only_options_that_change_the_result_stand_in_the_way_of_resuming() -> None:
    free = {info.name for info in describe(TrainConfig)} - changes_result(TrainConfig)
    assert free == {
        *("out", "workers", "resume", "checkpoint_every", "log", "trace", "device"),
        *("tensorboard", "keep_checkpoint"),
        *("graph", "compile", "threads", "micro_batch", "max_restarts", "evaluate_every"),
        *("allreduce", "bucket_mb"),
    }
