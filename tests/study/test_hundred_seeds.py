"""The study of a hundred seeds, the order of its trials, and the reading of what is beside it."""

from collections import deque
from pathlib import Path
from types import SimpleNamespace

import pytest
from benchmarks.fast_cifar import Workload, read_airbench

from thresher.study.local import (
    BEHIND,
    LocalConfig,
    LocalExecutor,
    Mps,
    gpu_environment,
    in_order,
    next_task,
)
from thresher.study.reading import load
from thresher.study.tasks import StudyTask

ROOT = Path(__file__).parent.parent.parent
PRINTED = """\
---------------------------------------------------------------------
|  run   |  epoch  |  train_acc  |  val_acc  |  tta_val_acc  |  time_seconds  |
---------------------------------------------------------------------
|  warmup  |  eval  |      0.9500 |    0.9300 |        0.9400 |         9.0000 |
|       0  |  eval  |      0.9510 |    0.9310 |        0.9420 |         2.0000 |
|       1  |  eval  |      0.9520 |    0.9320 |        0.9440 |         3.0000 |
Mean: 0.9430    Std: 0.0014
"""


def test_the_example_trains_a_hundred_seeds() -> None:
    study = load(ROOT / "examples" / "hundred-seeds.toml")
    assert study.seeds == tuple(range(100))
    assert study.base == Workload("cifar10", 100, 0.0, {}).base()


def test_what_airbench_prints_is_read_without_its_warm_up() -> None:
    read = read_airbench(PRINTED, 2, 20.0)
    assert read == {"runs": 2, "accuracy": pytest.approx(94.3), "seconds": 2.5}


def test_without_times_the_wall_time_is_divided() -> None:
    assert read_airbench("done\n", 4, 20.0) == {"runs": 4, "accuracy": None, "seconds": 5.0}


def _trial(batch: int, lr: float, seed: int) -> StudyTask:
    settings = {"batch_size": batch, "lr": lr}
    return StudyTask(f"{batch}-{lr}-{seed}", "train", settings, Path(), "", cell=settings)


def test_a_worker_goes_on_with_the_cell_of_its_last_trial() -> None:
    """If a trial of it is as long as the first in the queue: long ones still come first."""
    queue = [_trial(64, 0.1, 1), _trial(64, 0.2, 0), _trial(64, 0.2, 1), _trial(512, 0.1, 0)]
    assert next_task(queue, None) is queue[0]
    assert next_task(queue, {"batch_size": 64, "lr": 0.2}) is queue[1]
    assert next_task(queue, {"batch_size": 512, "lr": 0.1}) is queue[0]


def test_steps_come_before_trials_and_long_trials_before_short_ones() -> None:
    step = StudyTask("features", "embed", {}, Path(), "")
    trials = [_trial(512, 0.1, 0), _trial(64, 0.1, 0)]
    assert in_order([*trials, step]) == [step, trials[1], trials[0]]


@pytest.mark.parametrize(("gpus", "mps", "beside"), [(1, True, 4), (2, True, 8), (1, False, 8)])
def test_half_of_the_trials_run_beside_a_step_on_a_shared_gpu(
    gpus: int, mps: bool, beside: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where trials share a GPU; other steps and trials after the step have all slots."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus))))
    executor = LocalExecutor(tmp_path, LocalConfig(workers=8))
    if mps:
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))  # a daemon of somebody else
        executor.mps = Mps()
    step = StudyTask("features", "embed", {}, Path(), "")
    executor.workers = [SimpleNamespace(task=step)]  # type: ignore[list-item]
    assert executor._open_slots(_trial(64, 0.1, 0)) == beside
    assert executor._open_slots(step) == 8
    executor.workers = [SimpleNamespace(task=_trial(64, 0.1, 1))]  # type: ignore[list-item]
    assert executor._open_slots(_trial(64, 0.1, 0)) == 8


def test_the_last_short_trials_wait_for_the_end_of_a_training_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They fill the GPU while the steps that follow it use little of it."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    executor = LocalExecutor(tmp_path, LocalConfig(workers=8, mps=True))
    short = [_trial(10_000, 0.1, seed) for seed in range(9)]
    settings = {"model": "resnet18", "batch_size": 10_000}
    step = StudyTask("extractor", "train", settings, Path(), "")
    executor.workers = [SimpleNamespace(task=step)]  # type: ignore[list-item]
    for count, slots in ((9, 4), (4, 0)):
        executor.queue = deque(short[:count])
        assert executor._open_slots(short[0]) == slots
    after = StudyTask("features", "embed", {}, Path(), "")
    for running, slots in ((after, 4), (short[5], 8)):
        executor.workers = [SimpleNamespace(task=running)]  # type: ignore[list-item]
        assert executor._open_slots(short[0]) == slots


def test_the_first_worker_of_a_gpu_goes_before_the_others() -> None:
    """It gets the step that the trials of the others wait for."""
    shared = {"CUDA_MPS_PIPE_DIRECTORY": "pipe"}
    workers = [gpu_environment(number, ["3", "5"], shared) for number in range(4)]
    assert [worker["CUDA_VISIBLE_DEVICES"] for worker in workers] == ["3", "5", "3", "5"]
    assert [BEHIND.items() <= worker.items() for worker in workers] == [False, False, True, True]
    # A daemon that somebody else started needs no variables.
    assert gpu_environment(3, ["0"], {}) == {"CUDA_VISIBLE_DEVICES": "0", **BEHIND}
    assert gpu_environment(3, ["0"], None) == {"CUDA_VISIBLE_DEVICES": "0"}
    assert gpu_environment(3, [], shared) == {}
