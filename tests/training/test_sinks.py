"""`--log`: metrics of a run in TensorBoard, Weights & Biases and MLflow.

The packages are the real ones; wandb works offline here and MLflow in a folder.
"""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from quick_tiny import _quick_tiny  # noqa: F401
from thresher.errors import MissingDependencyError, ThresherError
from thresher.training import sinks
from thresher.training.config import TrainConfig, check
from thresher.training.record import Metrics
from thresher.training.sinks import SINKS, Sink, SinkName


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path / 'mlflow'}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    yield
    if wandb := sys.modules.get("wandb"):
        wandb.teardown()  # ends its process


def _log(run: Path, name: SinkName, begin: int, end: int) -> None:
    """Log the steps after `begin` up to `end`, as a run does that continues at `begin`."""
    run.mkdir(exist_ok=True)
    metrics = Metrics(run / "metrics.jsonl", True)
    metrics.begin(begin, 0, [name], {"lr": 0.1, "model": None})
    for step in range(begin + 1, end + 1):
        metrics.write("step", step, loss=1.0 / step, samples=step, note="text")
    metrics.close()


def _losses(run: Path, name: SinkName) -> list[tuple[int, float]]:
    """Return the (step, loss) pairs that the service has."""
    if name == "tensorboard":
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(run / "tensorboard")).Reload()
        assert events.Tags()["scalars"] == ["step/loss"]
        return [(event.step, event.value) for event in events.Scalars("step/loss")]
    if name == "mlflow":
        from mlflow import MlflowClient

        made = json.loads((run / "log.json").read_text())["mlflow"]
        assert MlflowClient().get_run(made).info.status == "FINISHED"
        history = MlflowClient().get_metric_history(made, "step/loss")
        return sorted({metric.step: metric.value for metric in history}.items())
    sys.modules["wandb"].teardown()  # as at the end of a process: its own process ends its files
    made = json.loads((run / "log.json").read_text())["wandb"]
    files = sorted((run / "wandb").glob(f"offline-run-*-{made}/run-{made}.wandb"))
    assert len(files) == 2, "one for each start"
    rows = [row for file in files for row in _history(file) if "step/loss" in row]
    return sorted({int(row["step"]): row["step/loss"] for row in rows}.items())


def _history(file: Path) -> Iterator[dict[str, float]]:
    """Yield the rows of a small offline record of wandb: protobuf messages, each after 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at = file.read_bytes(), 7
    while at + 7 <= len(data):
        size = int.from_bytes(data[at + 4 : at + 6], "little")
        assert data[at + 6] == 1, "the record is in one piece"
        record = Record.FromString(data[at + 7 : at + 7 + size])
        if record.HasField("history"):
            items = record.history.item
            yield {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items}
        at += 7 + size


@pytest.mark.slow  # real packages, and a process of wandb's
@pytest.mark.parametrize("name", SINKS)
def test_a_resumed_run_continues_its_record(name: SinkName, tmp_path: Path) -> None:
    pytest.importorskip(name)
    run = tmp_path / "run"
    _log(run, name, 0, 5)
    ids = (run / "log.json").read_text() if name != "tensorboard" else ""
    if name == "wandb":
        time.sleep(1.1)  # the second is part of the name of its record
    _log(run, name, 3, 7)  # killed after step 5; its checkpoint was that of step 3
    assert _losses(run, name) == [(step, pytest.approx(1.0 / step)) for step in range(1, 8)]
    if ids:
        assert (run / "log.json").read_text() == ids
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 8))


@pytest.mark.parametrize("name", SINKS)
def test_a_missing_package_is_named_before_training(
    name: SinkName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # cannot be imported
    config = TrainConfig(data="digits", out=str(tmp_path / "run"), log=(name,))
    with pytest.raises(MissingDependencyError) as error:
        check(config)
    assert str(error.value) == f"`log` {name} needs the package {name}; pip install {name}"


class _Failing(Sink):
    def __init__(self, run: Path, step: int, options: Mapping[str, Any]) -> None:
        if step == 1:
            raise OSError("nobody is logged in.")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        raise OSError("the server is gone")

    def close(self) -> None:
        raise AssertionError("a sink that failed is not used again")


def test_a_service_that_fails_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sinks.SINKS, "wandb", _Failing)
    _log(tmp_path, "wandb", 0, 3)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3
    assert [record.getMessage() for record in caplog.records] == [
        "wandb failed and gets no more metrics: the server is gone"
    ]


def test_a_service_that_cannot_be_opened_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sinks.SINKS, "mlflow", _Failing)
    with pytest.raises(ThresherError, match="mlflow cannot be opened: nobody is logged in; log in"):
        _log(tmp_path, "mlflow", 1, 3)
    assert not (tmp_path / "metrics.jsonl").exists()


def test_sinks_are_named_once() -> None:
    config = TrainConfig(data="d", out="o", log=("tensorboard", "mlflow"), tensorboard=True)
    assert config.sinks == ("tensorboard", "mlflow")
