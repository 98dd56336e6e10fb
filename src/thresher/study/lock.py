"""One `study run` per folder; a second one is told who holds it."""

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from thresher.errors import ThresherError
from thresher.paths import StudyPaths, disk_errors


@contextlib.contextmanager
def hold(root: Path) -> Iterator[None]:
    """Hold the study's folder while the block runs. The system frees it when the process dies,
    however it dies, so there is never a stale lock to remove by hand."""
    paths = StudyPaths(root)
    with disk_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        handle = os.open(paths.lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ThresherError(
                f"the study in {root} is run by {_spoken(_read(handle))}",
                "wait for it, or give another folder",
            ) from None
        who = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(who).encode(), 0)
        yield
    finally:
        os.close(handle)


def holder(root: Path) -> dict[str, Any] | None:
    """Who runs the study in `root` now (pid, host, since); None when nobody does."""
    try:
        handle = os.open(StudyPaths(root).lock, os.O_RDWR)
    except OSError:
        return None
    try:
        # Shared, so that two readers do not take each other for a runner.
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(handle)
    finally:
        os.close(handle)
    return None


def _read(handle: int) -> dict[str, Any]:
    try:
        who = json.loads(os.pread(handle, 4096, 0))
    except ValueError:
        who = {}  # taken this very moment, and not yet signed
    return who if isinstance(who, dict) else {}


def _spoken(who: dict[str, Any]) -> str:
    if "pid" not in who:
        return "another process"
    minutes = (time.time() - who.get("since", time.time())) / 60
    return f"process {who['pid']} on {who['host']}, for {minutes:.0f} minutes now"
