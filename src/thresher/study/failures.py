"""The record of failed tasks: one file per task, one line per failure, append-only."""

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from thresher.paths import disk_errors


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


class Failures:
    """Failures of the tasks of the study in the folder `root`."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "errors"

    def add(self, name: str, error: str, detail: str = "") -> None:
        """Record that the task `name` failed."""
        self._append(name, {"time": time.time(), "error": error, "detail": detail})

    def retry(self, names: Iterable[str]) -> None:
        """Let the named tasks be run again; their failures stay on record."""
        for name in names:
            if self.last(name) is not None:
                self._append(name, {"time": time.time(), "retried": True})

    def history(self, name: str) -> list[TaskFailure]:
        """Return every line about the task `name`, oldest first."""
        try:
            lines = (self.folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        except OSError:
            return []
        entries = []
        for line in lines:
            try:
                entries.append(TaskFailure(**json.loads(line)))
            except (ValueError, TypeError):
                continue  # truncated by a kill
        return entries

    def last(self, name: str) -> TaskFailure | None:
        """Return the latest failure; None if the task never failed or is to be retried."""
        entries = self.history(name)
        return entries[-1] if entries and not entries[-1].retried else None

    def _append(self, name: str, entry: dict[str, float | str | bool]) -> None:
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with open(self.folder / f"{name}.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
                file.flush()
                os.fsync(file.fileno())
