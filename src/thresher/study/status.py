"""The state of a study in its folder: the process that runs it, the failures, and every task.

A failure is a line in `errors/NAME.jsonl`, append-only; `running.json` lists the running tasks.
"""

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from thresher import locks
from thresher.paths import RunPaths, StudyPaths, disk_errors, read_json
from thresher.read_errors import unreadable
from thresher.study.definition import StudyDefinition
from thresher.study.tasks import IN_QUEUE, StudyPlan, StudyTask
from thresher.study.tune import rejected_trials

MOST_KILLS = 3
"""How often a task whose process was killed is run again when its study is resumed."""
STATES = ("finished", "running", "queued", "failed", "waiting", "not chosen")


@dataclass(frozen=True)
class StudyHolder:
    """The process that runs a study."""

    pid: int | None = None
    """None if the process has taken the lock but not yet written its id."""
    host: str = ""
    since: float | None = None
    """When it started, in seconds since 1970."""

    def __str__(self) -> str:
        if self.pid is None:
            return "another process"
        minutes = (time.time() - (self.since or time.time())) / 60
        return f"process {self.pid} on {self.host}, for {minutes:.0f} min"


@contextlib.contextmanager
def hold(root: Path) -> Iterator[None]:
    """Hold the study in `root` while the block runs; BusyError names the process that has it."""
    path = StudyPaths(root).lock
    busy = f"the study in {root} is being run by {_read_holder(path)}"
    fix = "wait for it, or choose another folder"
    with locks.exclusive_lock(path, busy, fix) as handle:
        me = StudyHolder(os.getpid(), socket.gethostname(), time.time())
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(asdict(me)).encode(), 0)
        yield


def holder(root: Path) -> StudyHolder | None:
    """Return the process that runs the study in `root` now; None if there is none."""
    path = StudyPaths(root).lock
    return _read_holder(path) if locks.is_locked(path) else None


def _read_holder(path: Path) -> StudyHolder:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return StudyHolder(**values)
    except (OSError, ValueError, TypeError):
        return StudyHolder()


@dataclass(frozen=True)
class TaskFailure:
    """One failure of a task, or the note that it is to be retried."""

    time: float
    """Seconds since 1970."""
    error: str = ""
    detail: str = ""
    """The traceback, or the end of the log."""
    retried: bool = False
    """True for a note that cancels the failures before it."""
    killed: bool = False
    """Whether a signal from outside ended the process of the task."""


class Failures:
    """Failures of the tasks of the study in the folder `root`."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "errors"

    def add(self, name: str, error: str, detail: str, killed: bool = False) -> None:
        """Record that the task `name` failed, by itself or because it was killed."""
        entry: dict[str, float | str | bool] = {"time": time.time(), "error": error}
        self._append(name, {**entry, "detail": detail, **({"killed": True} if killed else {})})

    def retry(self, names: Iterable[str]) -> None:
        """Let the named tasks be run again; their failures stay on record."""
        for name in names:
            if self.last(name) is not None:
                self._append(name, {"time": time.time(), "retried": True})

    def history(self, name: str) -> list[TaskFailure]:
        """Return every line about the task `name`, oldest first."""
        path = self.folder / f"{name}.jsonl"
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            if refused := unreadable(path, error):
                raise refused from None
            return []
        entries = []
        for line in lines:
            with contextlib.suppress(ValueError, TypeError):  # truncated by a kill
                entries.append(TaskFailure(**json.loads(line)))
        return entries

    def last(self, name: str) -> TaskFailure | None:
        """Return the latest failure; None if the task never failed or is to be retried."""
        entries = self.history(name)
        return entries[-1] if entries and not entries[-1].retried else None

    def stands(self, name: str) -> bool:
        """Return whether the task failed and is not to be run again without `retry`.

        A task whose process was killed is run again, but at most `MOST_KILLS` times in a row: it
        may be what exhausts the memory of the machine.
        """
        kills = 0
        for entry in reversed(self.history(name)):
            if entry.retried:
                break
            if not entry.killed:
                return True
            kills += 1
        return kills > MOST_KILLS

    def _append(self, name: str, entry: dict[str, float | str | bool]) -> None:
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with open(self.folder / f"{name}.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
                file.flush()
                os.fsync(file.fileno())


@dataclass(frozen=True)
class TaskStatus:
    """The state of one step or trial."""

    name: str
    kind: str
    """train, embed, select or command."""
    state: str
    """finished, running, queued (in SLURM), failed, waiting, or "not chosen" for a candidate that
    tuning rejected."""
    where: str = ""
    """Where a running or queued task is."""
    error: str = ""
    """Why a failed task failed."""
    epoch: float | None = None
    """Epochs trained so far."""
    epochs: float | None = None
    """Epochs to train."""
    accuracy: float | None = None
    """Latest accuracy, from 0 to 1."""
    seconds: float | None = None
    """Training time of a finished run."""


@dataclass(frozen=True)
class StudyStatus:
    """The state of a study and of each of its tasks."""

    root: Path
    held_by: StudyHolder | None
    """The process that runs the study now; None if it is not running."""
    steps: list[TaskStatus]
    trials: list[TaskStatus]

    def count(self, state: str) -> int:
        """Return the number of trials in a state."""
        return sum(trial.state == state for trial in self.trials)

    @property
    def complete(self) -> bool:
        """Whether every trial is finished, except those that tuning rejected."""
        return self.count("finished") + self.count("not chosen") == len(self.trials)

    @property
    def failed(self) -> list[TaskStatus]:
        """The steps and trials that failed."""
        return [task for task in [*self.steps, *self.trials] if task.state == "failed"]

    def to_dict(self) -> dict[str, Any]:
        """Return the output of `thresher study status --json`."""
        return {
            "path": str(self.root),
            "held_by": asdict(self.held_by) if self.held_by else None,
            "counts": {state: self.count(state) for state in STATES},
            "complete": self.complete,
            "steps": [asdict(step) for step in self.steps],
            "trials": [asdict(trial) for trial in self.trials],
        }


def read_status(study: StudyDefinition, plan: StudyPlan, root: Path) -> StudyStatus:
    """Read the state of every task from the folder `root`."""
    held_by, file = holder(root), StudyPaths(root).running
    running: dict[str, str] = {}
    if held_by is not None and file.exists():
        running = read_json(file, "study's state").get("running", {})
    rejected = {trial.name for trial in rejected_trials(study, plan)}
    failures = Failures(root)

    def status(task: StudyTask) -> TaskStatus:
        error = ""
        if task.finished:
            state = "finished"
        elif task.name in running:
            where = running[task.name].partition(" (")[0]
            state = "queued" if where in IN_QUEUE else "running"
        elif task.name in rejected:
            state = "not chosen"
        elif failure := failures.last(task.name):
            state, error = "failed", failure.error
        else:
            state = "waiting"
        progress = _progress(task) if task.kind in ("train", "command") else {}
        where = running.get(task.name, "")
        return TaskStatus(task.name, task.kind, state, where, error, **progress)

    steps, trials = (list(map(status, part.values())) for part in (plan.steps, plan.trials))
    return StudyStatus(root, held_by, steps, trials)


def _progress(task: StudyTask) -> dict[str, float | None]:
    """Read the progress of a run from its result, or from the last line of its metrics."""
    epochs = float(task.settings.get("epochs", 10.0)) if task.kind == "train" else None
    if result := task.result:
        seen = {key: result.get(key) for key in ("accuracy", "seconds")}
        return {"epoch": result.get("epochs"), "epochs": epochs, **seen}
    last = _last_metrics(RunPaths(task.out).metrics)
    accuracy = last.get("accuracy", last.get("validation_accuracy"))
    return {"epoch": last.get("epoch"), "epochs": epochs, "accuracy": accuracy}


def _last_metrics(path: Path) -> Mapping[str, Any]:
    """Return the last complete line of a metrics file, reading only its end."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 8192))
            lines = file.read().split(b"\n")
    except OSError:
        return {}
    for line in reversed(lines[:-1]):
        with contextlib.suppress(ValueError):
            if isinstance(entry := json.loads(line), dict):
                return entry
    return {}
