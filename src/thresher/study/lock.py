"""Allow one `Study.run` per folder, and say which process holds the folder."""

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from thresher import locks
from thresher.paths import StudyPaths


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
        return f"process {self.pid} on {self.host}, for {minutes:.0f} minutes"


@contextlib.contextmanager
def hold(root: Path) -> Iterator[None]:
    """Hold the study in `root` while the block runs; BusyError names the process that has it."""
    path = StudyPaths(root).lock
    busy = f"the study in {root} is being run by {_read(path)}"
    fix = "wait for it, or choose another folder"
    with locks.exclusive_lock(path, busy, fix) as handle:
        me = StudyHolder(os.getpid(), socket.gethostname(), time.time())
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(asdict(me)).encode(), 0)
        yield


def holder(root: Path) -> StudyHolder | None:
    """Return the process that runs the study in `root` now; None if there is none."""
    path = StudyPaths(root).lock
    return _read(path) if locks.is_locked(path) else None


def _read(path: Path) -> StudyHolder:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return StudyHolder(**values)
    except (OSError, ValueError, TypeError):
        return StudyHolder()
