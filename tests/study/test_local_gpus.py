"""Which GPUs the trials of a local study see; the machine need not have any."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from few_digits import make_pack

from thresher.environment import core_count
from thresher.study import local
from thresher.study.local import LocalConfig, LocalExecutor
from thresher.study.study import Study
from thresher.study.tasks import StudyTask

MODEL = """
import os
from thresher.models.registry import build as build_known

def build(classes, channels):
    with open(os.environ["SEEN"], "a") as file:
        file.write(f"{os.environ.get('WORLD_SIZE', '1')} {os.environ['CUDA_VISIBLE_DEVICES']}\\n")
    return build_known("tiny", classes, channels)
"""


def _trial(workers: int) -> StudyTask:
    return StudyTask("a", "train", {"workers": workers}, Path(), "", cell={})


def test_a_trial_has_a_gpu_for_each_of_its_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    executor = LocalExecutor(tmp_path, LocalConfig())
    assert executor._gpus_for(1, _trial(1)) == ["1"]
    assert executor._gpus_for(1, _trial(2)) == ["1", "0"]
    busy = SimpleNamespace(number=0, task=_trial(2), gpus=["0", "2"])
    idle = SimpleNamespace(number=2, task=None, gpus=["2"])
    executor.workers = [busy, idle]  # type: ignore[list-item]
    assert executor._gpus_for(1, _trial(2)) == ["1", "3"]
    assert sorted(executor._gpus_for(1, _trial(9))) == ["0", "1", "2", "3"]
    # Its GPU is used by the others' trial, so that one of a new process is better.
    spawned: list[int] = []
    monkeypatch.setattr(executor, "_spawn", spawned.append)
    executor._free_worker()
    assert spawned == [1]


@pytest.mark.parametrize(
    ("visible", "config", "seen"),
    [("-1", LocalConfig(), "-1"), ("", LocalConfig(), ""), ("0,1", LocalConfig(gpus=0), "")],
)
def test_without_gpus_there_is_a_trial_for_each_core(
    visible: str,
    config: LocalConfig,
    seen: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Trials of a study with gpus = 0 took the first GPU, as many of them as there are cores."""
    environments: list[dict[str, str]] = []

    def worker(number: int, threads: int, environment: dict[str, str]) -> SimpleNamespace:
        environments.append(environment)
        return SimpleNamespace(replies=None)

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(local, "_Worker", worker)
    executor = LocalExecutor(tmp_path, config)
    executor.select = SimpleNamespace(register=lambda *_: None)  # type: ignore[assignment]
    assert (executor.gpus, executor.slots) == ([], core_count())
    executor._spawn(0)
    assert environments[0]["CUDA_VISIBLE_DEVICES"] == seen


@pytest.mark.slow
def test_workers_of_a_trial_see_all_of_its_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial of two workers saw one GPU, so that it trained on the CPU without a word."""
    (tmp_path / "seen_gpus.py").write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("SEEN", str(tmp_path / "seen.txt"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    base = {
        **{"data": str(make_pack(tmp_path / "pack")), "model": "seen_gpus:build"},
        **{"epochs": 1, "device": "cpu"},
    }
    content = {"seeds": 1, "base": base, "grid": {"workers": [1, 2]}}
    status = Study.from_dict(content, tmp_path / "study").run({"kind": "local"})
    assert status.complete
    seen = set((tmp_path / "seen.txt").read_text().splitlines())
    assert {line for line in seen if line.startswith("1")} <= {"1 4", "1 7"}
    assert {line for line in seen if line.startswith("2")} <= {"2 4,7", "2 7,4"}
    assert len(seen) == 2


def test_fewer_gpus_than_asked_for_are_mentioned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for visible in ("-1", "0", "0,1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        LocalExecutor(tmp_path, LocalConfig(gpus=2))
    assert [record.getMessage() for record in caplog.records] == [
        "gpus = 2, but no GPU is visible here",
        "gpus = 2, but 1 GPU is visible here",
    ]
