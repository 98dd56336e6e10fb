"""Studies on SLURM without one: options, and commands that fail for a while."""

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from thresher.errors import ThresherError
from thresher.paths import write_json
from thresher.study import slurm_commands, slurm_job
from thresher.study.executors import executor_config
from thresher.study.slurm import SlurmConfig, SlurmExecutor, check_folder
from thresher.study.slurm_job import outcome_file
from thresher.study.slurm_queue import largest_array
from thresher.study.study import Study
from thresher.study.tasks import StudyTask
from thresher.training.stop import listen


def _book(out: Path) -> Any:
    return json.loads((out / "slurm" / "jobs.json").read_text())


def test_settings() -> None:
    assert SlurmConfig(workers_per_node=4).layout(8) == (2, 4)
    assert SlurmConfig().layout(8) == (1, 8)
    with pytest.raises(ThresherError, match="must divide the 8 workers of a trial, got 3"):
        SlurmConfig(workers_per_node=3).layout(8)
    with pytest.raises(ThresherError, match='did you mean "partition"'):
        executor_config({"kind": "slurm", "partitoin": "gpu"})
    for keys, message in (
        ({"gpus": 2}, r"gpus must be in \[0, 1\], got 2"),
        ({"save_seconds": 0}, "save_seconds must be at least 1, got 0"),
        ({"minutes": 2}, "save_seconds must be less than the 120 seconds of `minutes`, got 120"),
        ({"extra": {"job_name": "mine"}}, "extra cannot set job_name, which Thresher sets"),
        ({"extra": {"ntasks-per-node": 2}}, "extra cannot set ntasks-per-node"),
    ):
        with pytest.raises(ThresherError, match=message):
            executor_config({"kind": "slurm", **keys})
    executor_config({"kind": "slurm", "minutes": 2, "save_seconds": 119})
    chosen = SlurmConfig(gpus=1, partition="gpu", memory_gb=4).parameters(2, "n")
    assert (chosen["gpus_per_node"], chosen["mem"], chosen["partition"]) == (2, "4096M", "gpu")


def test_srun_gets_the_cores_of_a_worker_too() -> None:
    """From SLURM 22.05 on, srun does not take them from sbatch."""
    chosen = SlurmConfig(cpus=8).parameters(1, "n")
    assert (chosen["cpus_per_task"], chosen["srun_args"]) == (8, ["--cpus-per-task=8"])


def test_other_jobs_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    squeue = tmp_path / "squeue"
    squeue.write_text(
        "#!/bin/sh\necho CLUSTER: main\necho 'a|b|c|N/A|RUNNING (None)'\n"
        "echo 'thresher-1|3|PENDING (Priority)'\n"
    )
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    queue = SlurmExecutor(tmp_path / "study", SlurmConfig())._queue()
    assert queue == {("a|b|c", 0): "RUNNING", ("thresher-1", 3): "PENDING (Priority)"}


def _program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\ncd {folder}\n{script}\n")
    (folder / name).chmod(0o755)


def test_an_array_whose_submission_got_no_answer_is_submitted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("submitit")
    bin = tmp_path / "bin"
    # The first job arrives, but sbatch does not hear of it.
    _program(
        bin,
        "sbatch",
        'sed -n "s/^#SBATCH --job-name=//p" "$1" >> queue\n'
        "[ -e tried ] && echo Submitted batch job 7 && exit\n"
        "touch tried\n"
        "echo 'sbatch: error: Batch job submission failed: "
        "Socket timed out on send/recv operation' >&2\n"
        "exit 1",
    )
    _program(bin, "squeue", "touch queue; sed 's/$/|0|PENDING/' queue")
    _program(bin, "scancel", 'name=${1#--name=}; sed -i "/^$name$/d" queue')
    monkeypatch.setenv("PATH", f"{bin}{os.pathsep}{os.environ['PATH']}")
    task = StudyTask("trial", "command", {}, tmp_path / "trial", "id", cell={}, seed=0)
    executor = SlurmExecutor(tmp_path / "study", SlurmConfig(poll_seconds=0))
    executor.submit([task])
    (entry,) = _book(tmp_path / "study").values()
    assert (bin / "queue").read_text().split() == [entry["job"]]
    assert entry["attempt"] == 1
    assert executor.running() == {"trial": "SLURM: pending"}
    assert "sbatch failed: Batch job submission failed: Socket timed out" in caplog.text


def test_variables_of_the_user_and_of_a_job_do_not_reach_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit")
    bin = tmp_path / "bin"
    seen = "env | grep -E '^(SLURM|SBATCH|SQUEUE)_' | sort >"
    _program(bin, "sbatch", f"{seen} sbatch.env; echo Submitted batch job 7")
    _program(bin, "squeue", f"{seen} squeue.env")
    monkeypatch.setenv("PATH", f"{bin}{os.pathsep}{os.environ['PATH']}")
    names = ("SBATCH_JOB_NAME", "SBATCH_PARTITION", "SBATCH_ACCOUNT", "SQUEUE_STATES", "SLURM_CONF")
    for name in (*names, "SLURM_EXIT_ERROR"):
        monkeypatch.setenv(name, "x")
    task = StudyTask("trial", "command", {}, tmp_path / "trial", "id", cell={}, seed=0)
    executor = SlurmExecutor(tmp_path / "study", SlurmConfig(poll_seconds=0, partition="gpu"))
    executor.submit([task])
    assert (bin / "sbatch.env").read_text().split() == [
        "SBATCH_ACCOUNT=x", "SLURM_CONF=x", "SLURM_EXIT_ERROR=x", "SQUEUE_STATES=x"
    ]  # fmt: skip
    assert "SQUEUE_STATES" not in (bin / "squeue.env").read_text()
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "4")
    executor.submit([task])
    left = (bin / "sbatch.env").read_text().split()
    assert left == ["SBATCH_ACCOUNT=x", "SLURM_CONF=x", "SQUEUE_STATES=x"]
    assert os.environ["SLURM_ARRAY_JOB_ID"] == "4"


def test_an_answer_of_sbatch_without_a_job_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit")
    bin = tmp_path / "bin"
    _program(bin, "sbatch", "echo hello")
    _program(bin, "squeue", "exit 0")
    monkeypatch.setenv("PATH", f"{bin}{os.pathsep}{os.environ['PATH']}")
    task = StudyTask("trial", "command", {}, tmp_path / "trial", "id", cell={}, seed=0)
    executor = SlurmExecutor(tmp_path / "study", SlurmConfig(poll_seconds=0))
    with pytest.raises(ThresherError, match=r'sbatch failed: .* sense of sbatch output "hello"'):
        executor.submit([task])
    assert _book(tmp_path / "study") == {}


def test_a_job_that_waits_for_a_person_is_mentioned_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("submitit")
    bin = tmp_path / "bin"
    _program(bin, "sbatch", 'grep -o "thresher-[0-9a-f]*" "$1" > n; echo Submitted batch job 7')
    held = "launch failed requeued held"
    _program(bin, "squeue", f'[ ! -e n ] || echo "$(cat n)|N/A|PENDING ({held})"')
    monkeypatch.setenv("PATH", f"{bin}{os.pathsep}{os.environ['PATH']}")
    task = StudyTask("trial", "command", {}, tmp_path / "trial", "id", cell={}, seed=0)
    executor = SlurmExecutor(tmp_path / "study", SlurmConfig(poll_seconds=0))
    executor.submit([task])
    assert [executor.wait(), executor.wait()] == [[], []]
    assert executor.running() == {"trial": f"SLURM: pending ({held})"}
    assert caplog.text.count(f"trial: its job is pending ({held})") == 1


def test_jobs_of_trials_that_left_the_study_are_mentioned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _program(tmp_path / "bin", "squeue", "echo 'thresher-1|0|RUNNING (None)'")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    records = {name: {"job": f"thresher-{n}", "index": 0} for n, name in ((1, "old"), (2, "older"))}
    entries = {name: {**record, "attempt": 1, "time": 0.0} for name, record in records.items()}
    write_json(tmp_path / "slurm" / "jobs.json", entries)
    executor = SlurmExecutor(tmp_path, SlurmConfig())
    executor.mention_others(["old"])
    assert not caplog.text
    executor.mention_others(["new"])
    expected = "1 job is in SLURM, of tasks that the study does not have any more, such as old"
    assert f"{expected} (job name thresher-1)" in caplog.text


# Takes as many jobs as the file `limit` says, and counts each job of an array.
LIMITED = """
name=$(sed -n 's/^#SBATCH --job-name=//p' "$1")
last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$1")
if [ $(($(cat queue | wc -l) + ${last:-0} + 1)) -gt $(cat limit) ]; then
  echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2
  echo "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy" >&2
  exit 1
fi
for n in $(seq 0 ${last:-0}); do echo "$name|$n|RUNNING" >> queue; done
echo >> submitted
echo Submitted batch job $(cat submitted | wc -l)
"""


def test_tasks_wait_while_slurm_takes_no_more_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any, capfd: Any
) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setattr(slurm_commands.time, "sleep", lambda _: None)
    bin = tmp_path / "bin"
    _program(bin, "sbatch", LIMITED)
    _program(bin, "squeue", "cat queue")
    _program(bin, "scontrol", "echo MaxArraySize = 100")
    (bin / "queue").touch()
    (bin / "limit").write_text("3")
    monkeypatch.setenv("PATH", f"{bin}{os.pathsep}{os.environ['PATH']}")
    tasks = [
        StudyTask(f"t{n}", "command", {}, tmp_path / f"t{n}", "id", cell={}, seed=n)
        for n in range(10)
    ]
    step = StudyTask("step", "select", {}, tmp_path / "step", "id")
    executor = SlurmExecutor(tmp_path / "study", SlurmConfig(poll_seconds=0))
    executor.submit(tasks)
    assert list(executor.submitted) == ["t0", "t1", "t2"]
    executor.submit([step])
    assert executor.wait() == []
    assert list(executor.running()) == ["t0", "t1", "t2"] == list(_book(tmp_path / "study"))
    # The jobs of two tasks end; the step goes before the trials.
    book = _book(tmp_path / "study")
    for name in ("t0", "t1"):
        write_json(tmp_path / name / "result.json", {})
        line = f"{book[name]['job']}|{book[name]['index']}|RUNNING\n"
        (bin / "queue").write_text((bin / "queue").read_text().replace(line, ""))
    assert [outcome.name for outcome in executor.wait()] == ["t0", "t1"]
    assert list(executor.running()) == ["t2", "step", "t3"]
    (bin / "limit").write_text("100")
    executor.wait()
    assert set(executor.running()) == {"step", *(f"t{n}" for n in range(2, 10))}
    assert {entry["attempt"] for entry in _book(tmp_path / "study").values()} == {1}
    jobs = tmp_path / "study" / "slurm" / "jobs"
    assert len(list(jobs.glob("*.pkl"))) == 11, "what was refused is left behind"
    assert caplog.text.count("SLURM takes no more jobs for now (QOSMaxSubmitJobPerUserLimit)") == 1
    assert "sbatch: error" not in capfd.readouterr().err


def test_a_queue_that_cannot_be_read_for_long_ends_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bin = tmp_path / "bin"
    down = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    _program(bin, "squeue", f"[ -e up ] && exit\necho '{down}' >&2\nexit 1")
    monkeypatch.setenv("PATH", f"{bin}{os.pathsep}{os.environ['PATH']}")
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(slurm_commands.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(slurm_commands.time, "sleep", sleep)
    executor = SlurmExecutor(tmp_path / "study", SlurmConfig(poll_seconds=1200))
    # Before the first answer, it is more likely that SLURM is not set up here.
    with pytest.raises(ThresherError, match=r"squeue failed: .*Unable to contact"):
        executor.running()
    assert clock == [0.0]
    (bin / "up").touch()
    assert executor.running() == {}
    (bin / "up").unlink()
    with pytest.raises(ThresherError, match=r"squeue has been failing for 24 hours: .*Unable"):
        executor.running()
    assert clock == [24 * 3600.0]
    assert caplog.text.count("squeue failed: ") == 1
    assert "squeue has been failing for 20 minutes" in caplog.text


def test_other_commands_wait_for_the_controller_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bin = tmp_path / "bin"
    # Fails the first time, as while the controller restarts.
    script = 'if [ ! -e "$1" ]; then touch "$1"; echo "{}" >&2; exit 1; fi\necho MaxArraySize = 7'
    _program(bin, "scontrol", script.format("Unable to contact slurm controller"))
    monkeypatch.setenv("PATH", f"{bin}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(slurm_commands.time, "sleep", lambda _: None)
    executor = SlurmExecutor(tmp_path / "study", SlurmConfig())
    executor.commands.answered("squeue")
    assert largest_array(executor.commands) == 7
    _program(bin, "scontrol", "echo 'Access denied' >&2; exit 1")
    assert largest_array(executor.commands) == 1001
    _program(bin, "scontrol", script.format("Unexpected message received for job 1"))
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    with contextlib.ExitStack() as after:
        before = signal.getsignal(signal.SIGTERM)
        after.callback(signal.signal, signal.SIGTERM, before)
        slurm_job._requeue()
    assert (bin / "requeue").exists()


def test_the_end_of_the_time_limit_is_told_again_or_passed_on() -> None:
    """Again if it was dropped, as Python does in a destructor; to what has its own way to stop."""
    outside = signal.signal(signal.SIGUSR2, signal.SIG_DFL)  # `perf record` ignores it
    limit = slurm_job._TimeLimit()

    def work() -> None:
        with limit:
            with contextlib.suppress(slurm_job.OutOfTime):
                signal.raise_signal(signal.SIGUSR2)
            time.sleep(20)

    try:
        with pytest.raises(slurm_job.OutOfTime):
            work()
        assert limit.near
        signal.raise_signal(signal.SIGUSR2)  # does nothing any more
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)
        with slurm_job._TimeLimit(), listen() as request:
            signal.raise_signal(signal.SIGUSR2)
        assert request.stop
    finally:
        signal.signal(signal.SIGUSR2, outside)


@pytest.mark.parametrize("name", ["10%a", "50%4a", "a\\b"])
def test_a_folder_whose_name_slurm_would_change_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    pytest.importorskip("submitit")
    for program in ("sbatch", "squeue", "scancel", "scontrol"):
        _program(tmp_path / "bin", program, "exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    content = {"seeds": 1, "base": {"command": "true {seed} {out}"}, "executor": {"kind": "slurm"}}
    with pytest.raises(ThresherError, match="SLURM would replace"):
        Study.from_dict(content, tmp_path / name).run()
    assert not (tmp_path / name).exists()
    check_folder(tmp_path / "50% done")


@pytest.mark.parametrize("killed", [False, True])
def test_only_a_killed_task_that_no_process_watched_is_submitted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    pytest.importorskip("submitit")
    bin, root = tmp_path / "bin", tmp_path / "study"
    _program(bin, "sbatch", "touch called; echo Submitted batch job 7")
    _program(bin, "squeue", "exit 0")
    monkeypatch.setenv("PATH", f"{bin}{os.pathsep}{os.environ['PATH']}")
    task = StudyTask("trial", "command", {}, tmp_path / "trial", "id", cell={}, seed=0)
    write_json(outcome_file(root, "trial"), {"name": "trial", "error": "it", "killed": killed})
    executor = SlurmExecutor(root, SlurmConfig(poll_seconds=0))
    executor.submit([task])
    assert (bin / "called").exists() == killed
    errors = [outcome.error for outcome in executor.wait()]
    assert errors == ([] if killed else ["it"])
    assert not outcome_file(root, "trial").exists()
