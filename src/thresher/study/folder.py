"""What a study's folder says: which tasks are finished, under way, failed or still to do."""

import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from thresher.paths import RunPaths, disk_errors, read_json
from thresher.study.definition import StudyDefinition
from thresher.study.lock import StudyHolder, holder
from thresher.study.tasks import StudyPlan, StudyTask
from thresher.study.tune import wanted_trials

STATES = ("finished", "running", "failed", "waiting", "not chosen")


@dataclass(frozen=True)
class TaskStatus:
    """One line of `study status`."""

    name: str
    kind: str
    state: str
    """One of STATES; a trial that tuning has passed over is "not chosen"."""
    where: str = ""
    error: str = ""
    epoch: float | None = None
    epochs: float | None = None
    accuracy: float | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class StudyStatus:
    root: Path
    held_by: StudyHolder | None
    """Who runs it now; None when nobody does."""
    steps: list[TaskStatus]
    trials: list[TaskStatus]

    def count(self, state: str) -> int:
        return sum(trial.state == state for trial in self.trials)

    @property
    def complete(self) -> bool:
        """Every trial that is wanted is finished."""
        return self.count("finished") + self.count("not chosen") == len(self.trials)

    def to_dict(self) -> dict[str, Any]:
        return {
            "path": str(self.root),
            "held_by": asdict(self.held_by) if self.held_by else None,
            "counts": {state: self.count(state) for state in STATES},
            "complete": self.complete,
            "steps": [vars(step) for step in self.steps],
            "trials": [vars(trial) for trial in self.trials],
        }


class Failures:
    """Errors of tasks, one file per task, one line per failure; nothing is ever taken out."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "errors"

    def add(self, name: str, error: str, detail: str = "") -> None:
        self._append(name, {"time": time.time(), "error": error, "detail": detail})

    def forgive(self, names: Iterable[str]) -> None:
        """Let the named tasks be tried again; their errors stay on record."""
        for name in names:
            if self.last(name) is not None:
                self._append(name, {"time": time.time(), "retried": True})

    def history(self, name: str) -> list[dict[str, Any]]:
        try:
            lines = (self.folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        except OSError:
            return []
        entries = []
        for line in lines:
            try:
                entries.append(json.loads(line))
            except json.JSONDecodeError:
                continue  # cut by a kill
        return entries

    def last(self, name: str) -> dict[str, Any] | None:
        """The failure that stands; None where there is none or it was forgiven."""
        entries = self.history(name)
        return entries[-1] if entries and "error" in entries[-1] else None

    def _append(self, name: str, entry: dict[str, Any]) -> None:
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with open(self.folder / f"{name}.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
                file.flush()
                os.fsync(file.fileno())


def running_file(root: Path) -> Path:
    """What is under way, as the study last said; only true while its lock is held."""
    return root / "running.json"


def read_status(study: StudyDefinition, plan: StudyPlan, root: Path) -> StudyStatus:
    held_by = holder(root)
    running: dict[str, str] = {}
    if held_by is not None and running_file(root).exists():
        running = read_json(running_file(root), "study's state").get("running", {})
    wanted = {trial.name for trial in wanted_trials(study, plan)}
    failures = Failures(root)

    def status(task: StudyTask) -> TaskStatus:
        if task.finished:
            state, error = "finished", ""
        elif task.name in running:
            state, error = "running", ""
        else:
            failure = failures.last(task.name)
            error = failure["error"] if failure else ""
            state = "failed" if failure else "waiting"
            if task.is_trial and task.name not in wanted and not failure:
                state = "not chosen"
        seen = _progress(task) if task.kind == "train" else {}
        return TaskStatus(task.name, task.kind, state, running.get(task.name, ""), error, **seen)

    return StudyStatus(
        root,
        held_by,
        [status(task) for task in plan.steps.values()],
        [status(task) for task in plan.trials.values()],
    )


def _progress(task: StudyTask) -> dict[str, Any]:
    """How far a run is, from its result or from the last whole line of its metrics."""
    paths = RunPaths(task.out)
    epochs = float(task.settings.get("epochs", 10.0))
    if paths.result.exists():
        result = read_json(paths.result, "run's result")
        return {
            "epoch": result.get("epochs"),
            "epochs": epochs,
            "accuracy": result.get("accuracy"),
            "seconds": result.get("seconds"),
        }
    last = last_metrics(paths.metrics)
    accuracy = last.get("accuracy", last.get("validation_accuracy"))
    return {"epoch": last.get("epoch"), "epochs": epochs, "accuracy": accuracy}


def last_metrics(path: Path, tail: int = 8192) -> dict[str, Any]:
    """The last whole line of a metrics file, reading only its end; {} where there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - tail))
            lines = file.read().split(b"\n")
    except OSError:
        return {}
    for line in reversed(lines[:-1]):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return {}
