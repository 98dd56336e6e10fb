"""Every way into training prunes while training when `dynamic` says so."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import thresher as api
from quick_tiny import _quick_tiny  # noqa: F401
from thresher.data.pack import Pack
from thresher.errors import InvalidValueError
from thresher.study.study import Study
from thresher.training.config import TrainConfig
from thresher.training.pruners import InfoBatch
from thresher.training.result import RunResult
from thresher.training.split import split_samples
from thresher.training.train import _mention_idle, train

pytest_plugins = ["train_data"]

COMMON: dict[str, Any] = {"batch_size": 32, "epochs": 4, "lr": 0.05, "threads": 1, "device": "cpu"}
FULL = 4 * 287


def _config(few: Path, out: Path, **more: Any) -> TrainConfig:
    return TrainConfig(**{**COMMON, "data": str(few), "out": str(out), **more})


@pytest.fixture(scope="module")
def pruned(few: Path, tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    out = tmp_path_factory.mktemp("pruned") / "run"
    return api.train(_config(few, out, dynamic="infobatch"), quiet=True)


@pytest.mark.slow
def test_the_function_prunes(few: Path, pruned: RunResult, tmp_path: Path) -> None:
    assert pruned.status == "finished"
    assert pruned.samples < FULL
    given = train(_config(few, tmp_path / "given"), pruner=InfoBatch(), quiet=True)
    assert (given.samples, given.loss) == (pruned.samples, pruned.loss)
    assert train(_config(few, tmp_path / "none", dynamic="none"), quiet=True).samples == FULL


@pytest.mark.slow
def test_worker_processes_prune(few: Path, pruned: RunResult, tmp_path: Path) -> None:
    more: dict[str, Any] = {"precision": "fp64", "batch_norm": "sync", "dynamic": "infobatch"}
    alone = train(_config(few, tmp_path / "alone", **more), quiet=True)
    two = train(_config(few, tmp_path / "two", workers=2, **more), quiet=True)
    assert two.samples == alone.samples < FULL
    assert two.train_loss == pytest.approx(alone.train_loss, abs=1e-9)


@pytest.mark.slow
def test_the_recursive_filter_prunes_when_it_trains_again(
    thresher: Callable[..., subprocess.CompletedProcess[str]],
    few: Path,
    pruned: RunResult,
    tmp_path: Path,
) -> None:
    out = tmp_path / "kept.parquet"
    done = thresher(
        *("select", "recursive", "--data", few, "--run", pruned.config.out, "--drop", 0.06),
        *("--rounds", 2, "--perplexity", 10, "--device", "cpu", "--out", out),
    )
    assert done.returncode == 0, done.stderr
    again = RunResult.load(tmp_path / "kept.rounds" / "round-1")
    assert again.config.dynamic == "infobatch"
    assert again.samples < 4 * again.resolved.samples < FULL


@pytest.mark.slow
def test_a_study_prunes(few: Path, tmp_path: Path) -> None:
    content = {
        "seeds": 1,
        "base": {**COMMON, "data": str(few), "base_batch": 0, "crop_padding": -1, "weights": ""},
        "grid": {"dynamic": ["none", "infobatch", "dynamic-random"]},
    }
    study = Study.from_dict(content, tmp_path / "study")
    assert study.run({"kind": "in-process"}).complete
    trials = study.plan().trials.values()
    samples = {t.settings["dynamic"]: RunResult.load(t.out).samples for t in trials}
    assert samples["none"] == FULL
    assert samples["infobatch"] < FULL
    assert samples["dynamic-random"] < FULL


def test_an_unknown_pruner_is_refused(few: Path, tmp_path: Path) -> None:
    for workers in (1, 2):
        config = _config(few, tmp_path / "run", dynamic="infobach", workers=workers)
        with pytest.raises(InvalidValueError, match=r'"infobach"; did you mean "infobatch"\?'):
            train(config)
    with pytest.raises(InvalidValueError, match="cannot be sent to worker processes"):
        train(_config(few, tmp_path / "run", workers=2), pruner=InfoBatch())
    assert not (tmp_path / "run").exists()


def test_workers_that_the_launcher_decides_about_are_mentioned(
    few: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """torchrun and srun start their own, so another number given to `workers` starts nobody."""
    config = _config(few, tmp_path / "run", workers=4)
    pack = Pack.open(few)
    for started in (2, 4):
        _mention_idle(config, pack, split_samples(config, pack), started)
    assert caplog.messages == ["workers 4 has no effect: torchrun or srun has started 2"]
