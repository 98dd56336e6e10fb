"""The state of a study, read from its folder: which tasks are finished, running or failed."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from thresher.paths import RunPaths, read_json, read_run_json
from thresher.study.definition import StudyDefinition
from thresher.study.failures import Failures
from thresher.study.lock import StudyHolder, holder
from thresher.study.tasks import StudyPlan, StudyTask
from thresher.study.tune import wanted_trials

STATES = ("finished", "running", "failed", "waiting", "not chosen")


@dataclass(frozen=True)
class TaskStatus:
    """The state of one step or trial."""

    name: str
    kind: str
    """train, embed or select."""
    state: str
    """finished, running, failed, waiting, or "not chosen" for a candidate that tuning rejected."""
    where: str = ""
    """Where a running task runs."""
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


def running_file(root: Path) -> Path:
    """Return the file that lists the running tasks; valid while the study's lock is held."""
    return root / "running.json"


def read_status(study: StudyDefinition, plan: StudyPlan, root: Path) -> StudyStatus:
    """Read the state of every task from the folder `root`."""
    held_by = holder(root)
    running: dict[str, str] = {}
    if held_by is not None and running_file(root).exists():
        running = read_json(running_file(root), "study's state").get("running", {})
    wanted = {trial.name for trial in wanted_trials(study, plan)}
    failures = Failures(root)

    def status(task: StudyTask) -> TaskStatus:
        error = ""
        if task.finished:
            state = "finished"
        elif task.name in running:
            state = "running"
        elif failure := failures.last(task.name):
            state, error = "failed", failure.error
        else:
            state = "waiting" if not task.is_trial or task.name in wanted else "not chosen"
        progress = _progress(task) if task.kind == "train" else {}
        return TaskStatus(
            task.name, task.kind, state, running.get(task.name, ""), error, **progress
        )

    return StudyStatus(
        root,
        held_by,
        [status(task) for task in plan.steps.values()],
        [status(task) for task in plan.trials.values()],
    )


def _progress(task: StudyTask) -> dict[str, float | None]:
    """Read the progress of a run from its result, or from the last line of its metrics."""
    paths = RunPaths(task.out)
    epochs = float(task.settings.get("epochs", 10.0))
    if paths.result.exists():
        result = read_run_json(paths.result, "run's result")
        seen = {key: result.get(key) for key in ("accuracy", "seconds")}
        return {"epoch": result.get("epochs"), "epochs": epochs, **seen}
    last = _last_metrics(paths.metrics)
    accuracy = last.get("accuracy", last.get("validation_accuracy"))
    return {"epoch": last.get("epoch"), "epochs": epochs, "accuracy": accuracy}


def _last_metrics(path: Path, tail: int = 8192) -> Mapping[str, Any]:
    """Return the last complete line of a metrics file, reading only its end."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - tail))
            lines = file.read().split(b"\n")
    except OSError:
        return {}
    for line in reversed(lines[:-1]):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            return entry
    return {}
