"""Studies on a real SLURM of two nodes: job arrays, two-node trials, time limits, resuming."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from few_digits import make_pack
from slurm_bed import SlurmBed, missing

from few_steps import SCRIPT
from thresher.errors import ThresherError
from thresher.paths import RunPaths, write_text
from thresher.study.study import Study
from thresher.study.toml import dumps

SLOW = """
import os, time
from thresher.models.resnet import BasicBlock, ResNet

def build(classes, channels):
    model = ResNet(BasicBlock, (1, 1, 1), (4, 8, 16), classes, channels, "cifar", "subsample")
    if "SLURM_RESTART_COUNT" not in os.environ:
        model.register_forward_pre_hook(lambda *_: time.sleep(0.3))
    return model
"""
COMMAND = """
import json, os, sys, time
out = sys.argv[1]
if not os.path.exists(out + "/begun"):
    open(out + "/begun", "w").close()
    time.sleep(600)
json.dump({"score": float(sys.argv[2])}, open(out + "/result.json", "w"))
"""
STUDY = [sys.executable, str(Path(__file__).with_name("run_study.py"))]
pytestmark = pytest.mark.xdist_group("slurm")

EXECUTOR: dict[str, Any] = {
    "kind": "slurm",
    "minutes": 10,
    "save_seconds": 90,
    "workers_per_node": 1,
    "poll_seconds": 0.5,
    # Only SLURM can resolve the names of the test bed's nodes.
    "setup": ["export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))"],
}


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmBed]:
    why = missing()
    if why:
        pytest.skip(why)
    with SlurmBed(tmp_path_factory.mktemp("slurm")) as bed:
        yield bed


@pytest.fixture(autouse=True)
def _no_job_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Wait for the jobs of a test to leave the queue: they end shortly after their results."""
    yield
    if "bed" in request.fixturenames:
        bed = request.getfixturevalue("bed")
        _until(lambda: not bed.command("squeue", "-h") and not bed.steps())


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pack = make_pack(tmp_path_factory.mktemp("packs"))
    return {"data": pack, "model": "tiny", "device": "cpu", "evaluate_every": 0, "threads": 1}


@pytest.mark.slow  # waits for SLURM's time limit
def test_four_trials_one_of_two_workers_one_out_of_time(
    bed: SlurmBed, base: dict[str, Any], tmp_path: Path
) -> None:
    content = {
        "seeds": 1,
        "base": {**base, "epochs": 1, "checkpoint_every": 1_000_000},
        "arms": {
            **{f"rate {n}": {"lr": 0.02 * n} for n in (1, 2)},
            "two workers": {"workers": 2, "batch_norm": "sync"},
            # 300 steps that sleep for 90 s in total, until the job is requeued.
            "long": {"model": "slow_model:build", "epochs": 20, "batch_size": 16},
        },
        "executor": EXECUTOR,
    }
    file, out = tmp_path / "study.toml", tmp_path / "out"
    write_text(file, dumps(content))
    study = Study.load(file, out)
    (tmp_path / "slow_model.py").write_text(SLOW)
    path = f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}"
    environment = {**os.environ, **bed.environment, "PYTHONPATH": path}
    command = [*STUDY, str(file), str(out)]
    by_arm = {t.cell["arm"]: t for t in study.plan().trials.values() if t.cell is not None}
    long = by_arm["long"]
    log = out / "logs" / f"{long.name}.log"
    # Stop the study on its login node while the long trial trains.
    first = subprocess.Popen(command, env=environment)
    _until(lambda: RunPaths(long.out).config.exists())
    first.terminate()
    first.wait(30)
    before = _book(out)
    # SLURM warns 90 + 30 s before the limit and checks twice a minute.
    _limit(bed, before[long.name], minutes=2)
    _until(lambda: "requeued (requeue 1)" in log.read_text())
    _limit(bed, before[long.name], minutes=10)
    # Run the study again: it finds its jobs.
    subprocess.run(command, env=environment, check=True, timeout=300)
    assert study.status().complete
    assert _book(out) == before, "a job that was there was submitted again"
    # Three trials of one worker in arrays of at most two, and one of two workers.
    assert len({entry["job"] for entry in before.values()}) == 3
    two = json.loads(RunPaths(by_arm["two workers"].out).result.read_text())
    assert two["resolved"]["workers"] == 2
    assert re.search(r"resuming .* from step \d+", log.read_text())
    result = json.loads(RunPaths(long.out).result.read_text())
    assert (result["status"], result["epochs"]) == ("finished", 20)


def _until(seen: Callable[[], bool], seconds: float = 180) -> None:
    limit = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < limit, "it did not happen"
        time.sleep(0.2)


def _limit(bed: SlurmBed, entry: dict[str, Any], minutes: int) -> None:
    """Change the time limit of one task's job."""
    for line in bed.command("squeue", "-h", "-r", "-o", "%j|%K|%i").splitlines():
        name, index, job = line.split("|")
        if name == entry["job"] and index in (str(entry["index"]), "N/A"):
            bed.command("scontrol", "update", f"JobId={job}", f"TimeLimit={minutes}")
            return
    raise AssertionError("the job is not in the queue")


def _book(out: Path) -> Any:
    return json.loads((out / "slurm" / "jobs.json").read_text())


@pytest.mark.slow  # waits for SLURM
def test_a_failure_on_a_node_comes_back_with_its_reason(
    bed: SlurmBed,
    base: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("SLURM_CONF", bed.environment["SLURM_CONF"])
    grid = {"batch_size": [5000]}
    content = {"seeds": 1, "base": {**base, "epochs": 1}, "grid": grid, "executor": EXECUTOR}
    status = Study.from_dict(content, tmp_path).run()
    (trial,) = status.trials
    assert trial.state == "failed"
    assert "larger than the 240 training samples" in trial.error
    content["executor"] = {**EXECUTOR, "partition": "nope"}
    with (
        caplog.at_level("INFO"),
        pytest.raises(ThresherError, match="sbatch failed: invalid partition specified: nope"),
    ):
        Study.from_dict(content, tmp_path / "nowhere").run()
    assert "run the study again to collect" not in caplog.text
    assert _book(tmp_path / "nowhere") == {}


@pytest.mark.slow  # waits for SLURM
def test_a_cancelled_job_is_submitted_again(
    bed: SlurmBed,
    base: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    thresher: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    monkeypatch.setenv("SLURM_CONF", bed.environment["SLURM_CONF"])
    bed.command("scontrol", "update", "PartitionName=all", "State=DOWN")
    content = {"seeds": 1, "base": {**base, "epochs": 1}, "executor": EXECUTOR}
    study = Study.from_dict(content, tmp_path)
    file = tmp_path / "study.toml"
    write_text(file, dumps(content))
    process = subprocess.Popen([*STUDY, str(file), str(tmp_path)])
    try:
        _until(lambda: (tmp_path / "slurm" / "jobs.json").exists())
        (entry,) = _book(tmp_path).values()
        _until(lambda: bool(bed.command("squeue", "-h", "-n", entry["job"])))
        assert "run by process" in thresher("study", "status", tmp_path).stdout
        process.kill()
        process.wait()
        assert "no process collects the results" in thresher("study", "status", tmp_path).stdout
        process = subprocess.Popen([*STUDY, str(file), str(tmp_path)])
        _until(lambda: study.status().count("queued") == 1)
        assert study.status().count("running") == 0
        assert "1 trial: 1 queued; run by" in thresher("study", "status", tmp_path).stdout
        bed.command("scancel", "-n", entry["job"])
        # A job that is missing from the queue twice is submitted again; let that one run.
        _until(lambda: [e["attempt"] for e in _book(tmp_path).values()] == [2])
        bed.command("scontrol", "update", "PartitionName=all", "State=UP")
        assert process.wait(180) == 0
    finally:
        process.kill()
        process.wait()
    assert study.status().complete


@pytest.mark.slow  # waits for SLURM
def test_a_command_out_of_time_is_requeued_with_its_folder(bed: SlurmBed, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(COMMAND)
    command = f"{{python}} -S {tmp_path}/own.py {{out}} {{seed}}"
    content = {"seeds": 2, "base": {"command": command}, "metric": "score", "executor": EXECUTOR}
    file, out = tmp_path / "study.toml", tmp_path / "out"
    write_text(file, dumps(content))
    process = subprocess.Popen([*STUDY, str(file), str(out)], env={**os.environ, **bed.environment})
    try:
        _until(lambda: len(list(out.glob("trials/*/output/begun"))) == 2)
        # What SLURM sends before the time limit, to every process of the jobs.
        (job,) = {entry["job"] for entry in _book(out).values()}
        bed.command("scancel", "--signal=USR2", "--name", job)
        assert process.wait(180) == 0
    finally:
        process.kill()
        process.wait()
    assert [trial.value for trial in Study.open(out).trials()] == [0.0, 1.0]
    logs = [path.read_text() for path in (out / "logs").iterdir()]
    assert all("requeued (requeue 1)" in log for log in logs)


@pytest.mark.slow  # waits for SLURM
def test_a_cancelled_job_that_runs_does_not_come_back_by_itself(
    bed: SlurmBed, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(COMMAND)
    command = f"{{python}} -S {tmp_path}/own.py {{out}} {{seed}}"
    content = {"seeds": 1, "base": {"command": command}, "metric": "score", "executor": EXECUTOR}
    file, out = tmp_path / "study.toml", tmp_path / "out"
    write_text(file, dumps(content))
    process = subprocess.Popen([*STUDY, str(file), str(out)], env={**os.environ, **bed.environment})
    try:
        _until(lambda: bool(list(out.glob("trials/*/output/begun"))))
    finally:
        process.kill()
        process.wait()
    (entry,) = _book(out).values()
    bed.command("scancel", "--name", entry["job"])
    states = set()

    def ended() -> bool:
        states.add(bed.command("squeue", "-h", "-o", "%T"))
        return "" in states

    _until(ended)
    assert states <= {"RUNNING", "COMPLETING", ""}
    (log,) = (out / "logs").iterdir()
    assert "requeued" not in log.read_text()


ONCE = """
import json, os, sys, time
out = sys.argv[1]
with open(out + "/starts", "a") as file:
    file.write("started\\n")
while not os.path.exists(sys.argv[3]):
    time.sleep(0.1)
json.dump({"score": float(sys.argv[2])}, open(out + "/result.json", "w"))
"""


@pytest.mark.slow  # waits for SLURM
def test_a_study_waits_while_the_controller_is_down(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if why := missing():
        pytest.skip(why)
    # Not the bed of the other tests: a controller that this test started must end with it.
    with SlurmBed(tmp_path_factory.mktemp("slurm")) as bed:
        _run_through_an_outage(bed, tmp_path)


def _run_through_an_outage(bed: SlurmBed, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(ONCE)
    command = f"{{python}} -S {tmp_path}/own.py {{out}} {{seed}} {tmp_path}/end"
    content = {"seeds": 2, "base": {"command": command}, "metric": "score", "executor": EXECUTOR}
    file, out, log = tmp_path / "study.toml", tmp_path / "out", tmp_path / "log"
    write_text(file, dumps(content))
    # The same cluster, with commands that give up after a moment.
    conf = Path(bed.environment["SLURM_CONF"]).read_text()
    quick = tmp_path / "slurm.conf"
    quick.write_text(conf.replace("MessageTimeout=30", "MessageTimeout=1"))
    with open(log, "wb") as errors:
        process = subprocess.Popen(
            [*STUDY, str(file), str(out), "INFO"],
            env={**os.environ, "SLURM_CONF": str(quick)},
            stderr=errors,
        )
    try:
        _until(lambda: len(list(out.glob("trials/*/output/starts"))) == 2)
        before = _book(out)
        bed.stop_controller()
        try:
            _until(lambda: "squeue failed: " in log.read_text() or process.poll() is not None)
            assert process.poll() is None, log.read_text()
            (tmp_path / "end").touch()
            _until(lambda: len(list(out.glob("trials/*/result.json"))) == 2)
        finally:
            bed.start_controller()
        assert process.wait(120) == 0, log.read_text()
    finally:
        (tmp_path / "end").touch()
        process.kill()
        process.wait()
    assert _book(out) == before
    starts = [path.read_text() for path in out.glob("trials/*/output/starts")]
    assert starts == ["started\n", "started\n"]
    # One message for each outage, of which a stalled machine may have more than one.
    said = re.findall(r"squeue (failed: |works again after \d+ seconds)", log.read_text())
    assert said, "the outage is mentioned"
    assert set(said[::2]) == {"failed: "}
    assert len(said) % 2 == 0
    assert all(text.startswith("works again") for text in said[1::2])


FAILING = """
import os, sys, time
out, go_on = sys.argv[1], sys.argv[3]
with open(out + "/starts", "a") as file:
    file.write("started\\n")
while not os.path.exists(go_on):
    time.sleep(0.1)
sys.exit(3)
"""


@pytest.mark.slow  # waits for SLURM
def test_a_failure_that_no_process_watched_is_not_run_again(
    bed: SlurmBed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", bed.environment["SLURM_CONF"])
    (tmp_path / "own.py").write_text(FAILING)
    command = f"{{python}} -S {tmp_path}/own.py {{out}} {{seed}} {tmp_path}/go-on"
    content = {"seeds": 1, "base": {"command": command}, "executor": EXECUTOR}
    file, out = tmp_path / "study.toml", tmp_path / "out"
    write_text(file, dumps(content))
    process = subprocess.Popen([*STUDY, str(file), str(out)])
    try:
        _until(lambda: bool(list(out.glob("trials/*/output/starts"))))
    finally:
        process.kill()
        process.wait()
    (tmp_path / "go-on").touch()
    _until(lambda: not bed.command("squeue", "-h"))
    (starts,) = out.glob("trials/*/output/starts")
    study = Study.open(out)
    for retry in (False, False, True):
        (trial,) = study.run(retry=retry).trials
        assert trial.state == "failed"
        assert "the command exited with 3" in trial.error
        assert starts.read_text().count("started") == 1 + retry


KILLS = range(20 if os.environ.get("THRESHER_FAULTS") == "long" else 1)


@pytest.mark.slow  # waits for SLURM
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kill", KILLS)
def test_a_process_is_killed_and_the_study_repeated(
    bed: SlurmBed, tmp_path: Path, kill: int
) -> None:
    """The victim is the study on its login node, or any process of its jobs."""
    command = f"{{python}} -I -S '{SCRIPT}' {{out}} {{seed}}"
    content = {"seeds": 2, "base": {"command": command}, "metric": "steps", "executor": EXECUTOR}
    file, out = tmp_path / "study.toml", tmp_path / "out"
    write_text(file, dumps(content))
    mark = f"KILL_TRIAL={tmp_path}"
    environment = {**os.environ, **bed.environment, "KILL_TRIAL": str(tmp_path)}
    words = [*STUDY, str(file), str(out)]
    moment = random.Random(kill)
    process = subprocess.Popen(words, env=environment)
    _until(lambda: any(out.glob("trials/*/output/state")))
    time.sleep(moment.uniform(0, 2))
    victim = moment.choice([process.pid, *_marked(mark)])
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)
    process.wait(180)
    subprocess.run(words, env=environment, check=True, timeout=180)
    study = Study.open(out)
    assert study.status().complete, [trial.error for trial in study.status().trials]
    assert [trial.value for trial in study.trials()] == [15, 115]
    _until(lambda: not _marked(mark), 60)


def _marked(mark: str) -> list[int]:
    """Return the running processes with a variable in their environment, this one left out."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state = (folder / "stat").read_bytes().rpartition(b")")[2].split()[0]
            if mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found += [] if state in b"ZX" else [int(folder.name)]
    return found
