"""Tasks on this machine, several at once, in workers that stay.

A worker imports torch and wakes the GPU once and then does many tasks, one after another. The CPU
cores are divided among the workers; with GPUs, the workers are dealt out over them in turn, so
that `workers = 10` on one GPU puts ten small trials on it at a time.
"""

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import thresher
from thresher.environment import core_count
from thresher.errors import ThresherError
from thresher.study.executors import Ended, Executor
from thresher.study.expand import Task
from thresher.study.mps import Mps
from thresher.study.tasks import to_json

LOCAL_SETTINGS = {"workers", "threads", "gpus", "mps"}
STOP_SECONDS = 30.0
"""How long a task has to save itself when the study is interrupted."""


class Local(Executor):
    """`workers` tasks at once (0: one per GPU, or per core), `threads` CPU threads each (0: the
    cores divided), on the first `gpus` GPUs (-1: all that there are); with `mps` they share a GPU
    at the same time instead of taking turns on it."""

    def __init__(
        self, root: Path, workers: int = 0, threads: int = 0, gpus: int = -1, mps: bool = False
    ) -> None:
        for name, value, least in (
            ("workers", workers, 0),
            ("threads", threads, 0),
            ("gpus", gpus, -1),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ThresherError(
                    f"{name} of the executor is {value!r}", f"give a number from {least} up"
                )
        devices = visible_gpus()
        self.gpus = devices if gpus < 0 else devices[:gpus]
        cores = core_count()
        self.slots = workers or len(self.gpus) or cores
        self.threads = threads or max(1, cores // self.slots)
        self.mps = Mps() if mps and self.gpus and self.slots > len(self.gpus) else None
        self.logs = root / "logs"
        self.queue: deque[Task] = deque()
        self.workers: list[_Worker] = []
        self.select = selectors.DefaultSelector()

    def submit(self, tasks: Sequence[Task]) -> None:
        self.queue = deque(sorted([*self.queue, *tasks], key=lambda task: -task.cost))
        self._start()

    def wait(self) -> list[Ended]:
        self._start()
        if not self.select.get_map():
            return []
        ended = []
        for key, _ in self.select.select(timeout=1.0):
            worker: _Worker = key.data
            outcome = worker.read()
            if worker.dead:
                self.select.unregister(worker.replies)
                self.workers.remove(worker)
                worker.close()
            if outcome is not None:
                ended.append(outcome)
        self._start()
        return ended

    def running(self) -> dict[str, str]:
        return {w.task.name: f"worker {w.process.pid}" for w in self.workers if w.task is not None}

    def close(self) -> None:
        self.queue.clear()
        for worker in self.workers:
            worker.stop()
        limit = time.monotonic() + STOP_SECONDS
        for worker in self.workers:
            worker.end(max(0.1, limit - time.monotonic()))
        self.workers.clear()
        self.select.close()
        if self.mps is not None:
            self.mps.close()

    def _start(self) -> None:
        """Give queued tasks to idle workers. A trial of k workers takes k slots; the first in the
        queue is never passed by, so a wide one gets its turn."""
        while self.queue:
            task = self.queue[0]
            taken = sum(self._width(w.task) for w in self.workers if w.task is not None)
            if taken + self._width(task) > self.slots:
                return
            idle = next((w for w in self.workers if w.task is None), None)
            worker = idle or self._spawn()
            self.queue.popleft()
            worker.give(task, self.logs / f"{task.name}.log")

    def _width(self, task: Task) -> int:
        return min(task.workers, self.slots)

    def _spawn(self) -> "_Worker":
        used = {worker.number for worker in self.workers}
        number = next(n for n in range(self.slots + 1) if n not in used)
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.threads), **_importable()}
        if self.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = self.gpus[number % len(self.gpus)]
        if self.mps is not None:
            environment |= self.mps.environment
        worker = _Worker(number, self.threads, environment)
        self.workers.append(worker)
        self.select.register(worker.replies, selectors.EVENT_READ, worker)
        return worker


class _Worker:
    """The study's end of one worker process (`worker.py` is the other)."""

    def __init__(self, number: int, threads: int, environment: dict[str, str]) -> None:
        self.number = number
        self.task: Task | None = None
        self.log: Path | None = None
        self.dead = False
        read, write = os.pipe()
        arguments = [str(write), str(os.getpid()), str(threads)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "thresher.study.worker", *arguments],
            stdin=subprocess.PIPE,
            pass_fds=(write,),
            env=environment,
            # Ctrl-C is for the study, which then lets its workers save.
            start_new_session=True,
        )
        os.close(write)
        self.replies: IO[str] = os.fdopen(read, encoding="utf-8")

    def give(self, task: Task, log: Path) -> None:
        self.task, self.log = task, log
        assert self.process.stdin is not None
        order = json.dumps({"task": to_json(task), "log": str(log)})
        try:
            self.process.stdin.write(order.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it died between two tasks; `read` will see that and say so

    def read(self) -> Ended | None:
        line = self.replies.readline()
        if line.endswith("\n"):
            assert self.task is not None
            self.task = None
            return Ended(**json.loads(line))
        self.dead = True
        code = self.process.wait()
        if self.task is None:
            return None
        how = signal.Signals(-code).name if code < 0 else f"code {code}"
        return Ended(self.task.name, f"its process ended with {how}", tail(self.log))

    def stop(self) -> None:
        """Ask the task under way to save and end; an idle worker ends at once."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        if self.task is not None:
            self.process.terminate()

    def end(self, seconds: float) -> None:
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.close()

    def close(self) -> None:
        self.replies.close()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()


def _importable() -> dict[str, str]:
    """Workers must find this very package, also where a script put it on its path by hand."""
    here = str(Path(thresher.__file__).resolve().parent.parent)
    known = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if here in known or Path(here).name in ("site-packages", "dist-packages"):
        return {}
    return {"PYTHONPATH": os.pathsep.join([here, *known])}


def tail(log: Path | None, characters: int = 4000) -> str:
    """The end of a log; "" where there is none."""
    try:
        return log.read_text(encoding="utf-8", errors="replace")[-characters:] if log else ""
    except OSError:
        return ""


def visible_gpus() -> list[str]:
    """What CUDA_VISIBLE_DEVICES may be set to, one per GPU, without loading torch."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [name for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name]
    try:
        listing = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return [path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*")]
    return re.findall(r"^GPU (\d+):", listing, flags=re.MULTILINE)
