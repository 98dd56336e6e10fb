"""Anonymous memory of a process and its children while a block runs. Linux only."""

import contextlib
import os
import threading
import time
from pathlib import Path


class Watch:
    """Anonymous memory of this process and its children, in bytes, as (time, bytes)."""

    def __init__(self, every: float = 0.05) -> None:
        self.seen: list[tuple[float, int]] = []
        self._every, self._stop = every, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.look()  # a short block may end before the first look

    @property
    def peak(self) -> int:
        return max(size for _, size in self.seen)

    def look(self) -> None:
        size = sum(map(anonymous, [os.getpid(), *children()]))
        self.seen.append((time.perf_counter(), size))

    def _watch(self) -> None:
        while not self._stop.wait(self._every):
            self.look()


def children() -> list[int]:
    """Return the processes that any thread of this one has started."""
    found = []
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended
            found += [int(pid) for pid in (thread / "children").read_text().split()]
    return found


def anonymous(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    lines = [line for line in status.splitlines() if line.startswith("RssAnon")]
    return int(lines[0].split()[1]) << 10 if lines else 0
