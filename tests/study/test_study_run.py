"""Studies on digits give the same results with every executor, also after kills and failures."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from few_digits import make_pack

from quick_tiny import _quick_tiny  # noqa: F401
from thresher.errors import ThresherError
from thresher.paths import RunPaths, StudyPaths, write_json, write_text
from thresher.study.status import Failures, hold
from thresher.study.study import Study
from thresher.study.toml import dumps
from thresher.study.tune import choices, number_of_trials, reported_trials, wanted_trials
from thresher.training.folder import locked

RUN = str(Path(__file__).with_name("run_study.py"))

LOGGING_MODEL = """
import logging
from thresher.models.registry import build as build_known

def build(classes, channels):
    logging.getLogger("thresher.models").info("building the model")
    return build_known("tiny", classes, channels)
"""

KEYS = ("status", "accuracy", "loss", "train_loss", "steps", "samples")

Content = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> Content:
    """Return a study of eight short trials; `base` is merged, other keys are replaced."""
    pack = make_pack(tmp_path_factory.mktemp("packs"))

    def make(base: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        # One thread: sums in another order differ in their last digits.
        plain = {"data": pack, "model": "tiny", "epochs": 3, "device": "cpu", "threads": 1}
        often = {"checkpoint_every": 3, "evaluate_every": 0}
        return {
            "seeds": 2,
            "base": {**plain, **often, **(base or {})},
            "grid": {"batch_size": [32, 96], "lr": [0.05, 0.1]},
            "executor": {"kind": "local", "workers": 2, "threads": 1},
            **more,
        }

    return make


def results(study: Study) -> dict[str, tuple[Any, ...]]:
    """Return the numbers that must not depend on how a study was run, by trial."""
    found = {}
    for name, trial in study.plan().trials.items():
        result = json.loads(RunPaths(trial.out).result.read_text())
        found[name] = tuple(result[key] for key in KEYS)
    return found


@pytest.fixture(scope="module")
def unbroken(
    content: Content, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Any, ...]]:
    """The results of the same study, run in one process without interruption."""
    study = Study.from_dict(content(), tmp_path_factory.mktemp("unbroken"))
    status = study.run({"kind": "in-process"})
    assert status.complete
    return results(study)


def _started(file: Path, out: Path) -> "subprocess.Popen[bytes]":
    """Start a study, and return it when its first trials run, or when it has ended."""
    running, begin = out / "running.json", time.time()
    process = subprocess.Popen([sys.executable, RUN, str(file), str(out)])
    while process.poll() is None and time.time() < begin + 60:
        if running.exists():
            state = json.loads(running.read_text())
            if state["time"] > begin and state["running"]:
                break
        time.sleep(0.05)
    return process


def _workers(out: Path) -> list[int]:
    where = json.loads((out / "running.json").read_text())["running"].values()
    return [int(text.split()[1]) for text in where]


@pytest.mark.slow  # starts six studies
def test_killed_five_times_and_finished_once(
    unbroken: dict[str, tuple[Any, ...]], content: Content, tmp_path: Path
) -> None:
    file, out = tmp_path / "study.toml", tmp_path / "out"
    write_text(file, dumps(content()))
    study = Study.load(file, out)
    chance = random.Random(5)
    marks: dict[str, tuple[int, int]] = {}

    def seen() -> None:
        """Check that no result was written twice."""
        for name, trial in study.plan().trials.items():
            if trial.mark.exists():
                stat = trial.mark.stat()
                now = (stat.st_ino, stat.st_mtime_ns)
                assert marks.setdefault(name, now) == now, f"{name} was finished twice"

    for _ in range(5):
        process = _started(file, out)
        time.sleep(chance.uniform(0, 0.6))
        process.send_signal(signal.SIGKILL)
        process.wait()
        seen()
    last = subprocess.run([sys.executable, RUN, str(file), str(out)], check=True)
    assert last.returncode == 0
    seen()
    assert study.status().complete
    assert len(marks) == 8
    assert results(study) == unbroken
    assert not Failures(out).folder.exists()


@pytest.mark.slow  # starts two workers
def test_a_kill_takes_the_workers_with_it(content: Content, tmp_path: Path) -> None:
    file, out = tmp_path / "study.toml", tmp_path / "out"
    write_text(file, dumps(content({"epochs": 3000})))
    process = _started(file, out)
    workers = _workers(out)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert workers
    limit = time.monotonic() + 10
    while any(_alive(pid) for pid in workers) and time.monotonic() < limit:
        time.sleep(0.1)
    assert not any(_alive(pid) for pid in workers)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie has ended, too.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.slow  # starts two studies
def test_interrupted_politely_it_saves_and_goes_on(content: Content, tmp_path: Path) -> None:
    file, out = tmp_path / "study.toml", tmp_path / "out"
    base = {"epochs": 100, "checkpoint_every": 100_000}
    small = content(base=base, grid={"batch_size": [16]}, seeds=1)
    write_text(file, dumps(small))
    study = Study.load(file, out)
    (trial,) = study.plan().trials.values()
    process = subprocess.Popen([sys.executable, RUN, str(file), str(out)])
    limit = time.monotonic() + 60
    while not RunPaths(trial.out).config.exists() and time.monotonic() < limit:
        time.sleep(0.1)
    time.sleep(0.5)
    process.terminate()
    assert process.wait(30) != 0
    if not trial.finished:  # on a fast machine the trial may have ended first
        assert any(RunPaths(trial.out).checkpoints.iterdir())
    assert study.run().complete
    whole = Study.from_dict(small, tmp_path / "whole")
    whole.run({"kind": "in-process"})
    assert results(study) == results(whole)


@pytest.mark.slow  # starts three workers
def test_a_study_of_two_worker_trials(content: Content, tmp_path: Path) -> None:
    base = {"epochs": 1, "workers": 2, "batch_norm": "sync"}
    study = Study.from_dict(content(base=base, grid={"lr": [0.05]}, seeds=1), tmp_path)
    assert study.run().complete
    (trial,) = study.plan().trials.values()
    result = json.loads(RunPaths(trial.out).result.read_text())
    assert result["resolved"]["workers"] == 2


@pytest.mark.slow  # three runs with two workers
def test_a_failure_is_kept_and_retried_on_request(content: Content, tmp_path: Path) -> None:
    # A batch larger than the data set fails; the other trial does not.
    study = Study.from_dict(content(grid={"batch_size": [64, 5000]}, seeds=1), tmp_path)
    status = study.run()
    assert (status.count("finished"), status.count("failed")) == (1, 1)
    (failed,) = [trial for trial in status.trials if trial.state == "failed"]
    assert "larger than the" in failed.error
    assert len(Failures(tmp_path).history(failed.name)) == 1
    study.run()  # failed trials are not retried by default
    assert len(Failures(tmp_path).history(failed.name)) == 1
    study.run(retry=True)
    errors = [entry for entry in Failures(tmp_path).history(failed.name) if entry.error]
    assert len(errors) == 2


def test_a_killed_task_is_run_again_three_times_but_not_one_that_failed(tmp_path: Path) -> None:
    failures = Failures(tmp_path)
    assert not failures.stands("a")
    for _ in range(3):
        failures.add("a", "its process ended with SIGKILL", "", killed=True)
        assert not failures.stands("a")
        assert failures.last("a") is not None
    failures.add("a", "its process ended with SIGKILL", "", killed=True)
    assert failures.stands("a")
    failures.retry(["a"])
    assert not failures.stands("a")
    failures.add("a", "it failed", "")
    failures.add("a", "its process ended with SIGKILL", "", killed=True)
    assert failures.stands("a")


@pytest.mark.slow  # starts a worker for every trial
def test_a_worker_that_dies_costs_its_trial_and_no_other(content: Content, tmp_path: Path) -> None:
    base = {"model": "dying_model:build"}
    study = Study.from_dict(content(base=base, grid={"lr": [0.05, 0.1]}, seeds=1), tmp_path / "out")
    (tmp_path / "dying_model.py").write_text(
        "import os\ndef build(*args, **kwargs):\n    os.kill(os.getpid(), 9)\n"
    )
    old = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{old}"
    try:
        status = study.run()
    finally:
        os.environ["PYTHONPATH"] = old
    assert status.count("failed") == 2
    assert all("SIGKILL" in trial.error for trial in status.trials)
    assert not any(Failures(tmp_path / "out").stands(trial.name) for trial in status.trials)


@pytest.mark.slow
def test_the_log_of_a_trial_holds_the_log_records_of_training(
    content: Content, tmp_path: Path
) -> None:
    base = {"model": "logging_model:build"}
    study = Study.from_dict(content(base=base, grid={"lr": [0.05]}, seeds=1), tmp_path / "out")
    (tmp_path / "logging_model.py").write_text(LOGGING_MODEL)
    old = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{old}"
    try:
        assert study.run().complete
    finally:
        os.environ["PYTHONPATH"] = old
    (trial,) = study.trials()
    assert trial.value is not None
    log = (tmp_path / "out" / "logs" / f"{trial.name}.log").read_text()
    assert "building the model" in log


def test_a_second_run_into_the_folder_is_told_who_holds_it(
    content: Content, tmp_path: Path
) -> None:
    with (
        hold(tmp_path),
        pytest.raises(ThresherError, match=f"run by process {os.getpid()} on "),
    ):
        Study.from_dict(content(), tmp_path).run()


@pytest.mark.slow
def test_a_trial_that_another_process_runs_is_not_a_failure(
    content: Content, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As a job of SLURM does while the study is run with another executor."""
    only = content({"epochs": 1}, seeds=1, grid={"batch_size": [96]})
    study = Study.from_dict(only, tmp_path)
    (trial,) = study.plan().trials.values()
    with locked(trial.out):
        assert study.run({"kind": "in-process"}).count("waiting") == 1
    assert f"another run is writing to {trial.out}; run the study again" in caplog.text
    assert study.run({"kind": "in-process"}).complete


@pytest.mark.slow
def test_only_the_steps_are_run_on_request(content: Content, tmp_path: Path) -> None:
    steps = {"half": {"do": "select", "filter": "random", "drop": 0.5, "each": ["seed"]}}
    grid = {"selection": ["full", "half"]}
    study = Study.from_dict(content({"batch_size": 32}, grid=grid, steps=steps), tmp_path)
    status = study.run("in-process", steps_only=True)
    assert [step.state for step in status.steps] == ["finished"] * 2
    assert [trial.state for trial in status.trials] == ["waiting"] * 4
    before = study.output("half", seed=0).stat().st_mtime_ns
    assert study.run("in-process").complete
    assert study.output("half", seed=0).stat().st_mtime_ns == before


def test_status_of_a_study_that_was_begun(content: Content, tmp_path: Path) -> None:
    study = Study.from_dict(content(seeds=1), tmp_path)
    before = study.status()
    assert before.count("waiting") == 4
    Study.from_dict(content(seeds=1, grid={"batch_size": [32], "lr": [0.05]}), tmp_path).run()
    # A larger grid keeps the finished trials.
    after = study.status()
    assert (after.count("finished"), after.count("waiting")) == (1, 3)
    done = next(trial for trial in after.trials if trial.state == "finished")
    assert done.accuracy is not None
    assert Study.open(tmp_path).status().complete


def test_jobs_in_a_queue_do_not_run_yet(
    content: Content, tmp_path: Path, thresher: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    text = dumps(content(seeds=1, grid={"batch_size": [32, 64, 96]}))
    write_text(tmp_path / "study.toml", text)
    names = list(Study.open(tmp_path).plan().trials)
    running = {names[0]: "SLURM: running", names[1]: "SLURM: pending (Priority)"}
    write_json(StudyPaths(tmp_path).running, {"time": 0, "running": running})
    with hold(tmp_path):
        status = Study.open(tmp_path).status()
        assert [trial.state for trial in status.trials] == ["running", "queued", "waiting"]
        done = thresher("study", "report", tmp_path)
    assert "not complete: 1 running, 1 queued, 1 waiting" in done.stdout, done.stderr
    page = (tmp_path / "report" / "index.html").read_text()
    assert "3 trials not finished" in page


@pytest.mark.slow
def test_tuning_runs_every_candidate_once_and_the_chosen_one_with_every_seed(
    content: Content, tmp_path: Path
) -> None:
    tuned = content(
        {"validation": 0.2, "epochs": 1},
        grid={"batch_size": [32, 96], "lr": [0.05, 1e-6]},
        tune=["lr"],
        tune_seeds=1,
    )
    study = Study.from_dict(tuned, tmp_path)
    before = study.status()
    assert (before.count("waiting"), before.count("not chosen")) == (8, 0), "nothing is chosen yet"
    plan = study.plan()
    wanted = wanted_trials(study.definition, plan)
    assert (len(wanted), number_of_trials(study.definition, plan, wanted)) == (4, 6)
    status = study.run({"kind": "in-process"})
    assert status.complete
    assert (status.count("finished"), status.count("not chosen")) == (6, 2)
    found = choices(study.definition, study.plan())
    assert [choice.chosen for choice in found] == [{"lr": 0.05}] * 2
    second = [t for t in study.plan().trials.values() if t.seed == 1 and t.finished]
    assert {t.settings["lr"] for t in second} == {0.05}
    # Results of rejected candidates are not reported.
    assert {t.settings["lr"] for t in reported_trials(study.definition, study.plan())} == {0.05}


@pytest.mark.slow  # starts workers
def test_what_trials_warn_of_is_shown_once(
    content: Content, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    base = {"batch_schedule": "noise", "max_batch": 40, "lr_rule": "none", "epochs": 1}
    study = Study.from_dict(content(base, grid={"batch_size": [32, 36]}), tmp_path / "out")
    assert study.run().complete
    (remark,) = (text for text in caplog.messages if "the batch does not grow" in text)
    assert re.match(r"batch_size=3[26],.*: the batch does not grow, because twice 3[26]", remark)
