"""Run several tasks at once on this machine, in worker processes that stay alive.

A worker imports torch and initialises the GPU once, then runs many tasks. The CPU cores are divided
among the workers. Workers are assigned to GPUs in turn, so `workers = 10` on one GPU runs ten
trials on it at the same time.
"""

import contextlib
import itertools
import json
import logging
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from thresher import version
from thresher.environment import core_count
from thresher.errors import counted
from thresher.options import option
from thresher.study.perform import log_tail
from thresher.study.tasks import Executor, StudyTask, TaskOutcome, Values, killed_from_outside

logger = logging.getLogger(__name__)
CONTROL = "nvidia-cuda-mps-control"
BEHIND = {"CUDA_MPS_CLIENT_PRIORITY": "1"}
"""For all but the first worker of a GPU, which gets the step that the others' trials wait for. In
figure 7 of the 2020 paper the filter's network trained five times slower beside seven trials."""
RESERVE = 0.25
"""Trials whose cost is together at most this share of that of a training step wait for its end."""
STOP_SECONDS = 30.0
"""Time that a running task has to save its state when the study is interrupted."""


@dataclass(frozen=True, kw_only=True)
class LocalConfig:
    """`[executor]` with kind = "local"."""

    workers: int | None = option(None, ge=1, le=1024)
    """Tasks that run at once; default: one per GPU, or one per core without a GPU."""
    threads: int | None = option(None, ge=1, le=1024)
    """CPU threads of each task; default: the cores divided by `workers`."""
    gpus: int | None = option(None, ge=0)
    """Number of GPUs to use; default: all."""
    mps: bool = False
    """Share each GPU through NVIDIA MPS, so that its tasks run concurrently."""


class LocalExecutor(Executor):
    """Run tasks in worker processes on this machine; logs go to `root/logs`."""

    def __init__(self, root: Path, config: LocalConfig) -> None:
        self.gpus, self.hide_gpus = visible_gpus()[: config.gpus], config.gpus == 0
        if len(self.gpus) < (config.gpus or 0):
            here = counted(len(self.gpus), "GPU is", "GPUs are") if self.gpus else "no GPU is"
            logger.warning(f"gpus = {config.gpus}, but {here} visible here")
        cores = core_count()
        self.slots = config.workers or len(self.gpus) or cores
        self.threads = config.threads or max(1, cores // self.slots)
        self.mps = Mps() if config.mps and self.gpus and self.slots > len(self.gpus) else None
        self.logs = root / "logs"
        self.queue: deque[StudyTask] = deque()
        self.workers: list[_Worker] = []
        self.select = selectors.DefaultSelector()

    def submit(self, tasks: Sequence[StudyTask]) -> None:
        self.queue = deque(in_order([*self.queue, *tasks]))
        self._start()

    def wait(self) -> list[TaskOutcome]:
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
        """Send queued tasks to idle workers; a trial with k workers takes k slots."""
        # Tasks never overtake the head of the queue, or a trial with many workers would starve.
        while self.queue:
            task = self.queue[0]
            taken = sum(self._width(w.task) for w in self.workers if w.task is not None)
            if taken + self._width(task) > self._open_slots(task):
                return
            worker = self._free_worker()
            task = next_task(self.queue, worker.cell)
            self.queue.remove(task)
            worker.send(task, self.logs / f"{task.name}.log", self._gpus_for(worker.number, task))

    def _open_slots(self, task: StudyTask) -> int:
        """Return how many slots may be taken, with this task.

        Beside a step on one shared GPU, half as many trials run, so that it ends before the trials
        that do not need it: in figure 7 of the 2020 paper, seven trials ended 38 s before it. The
        last of these trials wait until a training step ends, since the GPU has little to do in the
        steps that follow, 7 s in that figure.
        """
        if self.mps is None or len(self.gpus) > 1 or not task.is_trial:
            return self.slots
        steps = [w.task for w in self.workers if w.task is not None and not w.task.is_trial]
        left = sum(trial.cost for trial in self.queue)
        if steps and 0 < left <= RESERVE * max(step.cost for step in steps):
            return 0
        return max(2, self.slots // 2) if steps else self.slots

    def _width(self, task: StudyTask) -> int:
        return min(task.workers, self.slots)

    def _free_worker(self) -> "_Worker":
        """Return an idle worker, or a new one if the GPUs of the idle ones are used more."""
        load, idle = self._gpu_load(), {w.number: w for w in self.workers if w.task is None}
        used = {worker.number for worker in self.workers}
        unused = [number for number in range(self.slots + 1) if number not in used]
        # Idle ones first: a new process takes seconds to start.
        numbers = [*idle, *(unused if len(used) < self.slots or not idle else [])]
        number = min(numbers, key=lambda n: load[self.gpus[n % len(self.gpus)]] if load else 0)
        return idle.get(number) or self._spawn(number)

    def _gpu_load(self) -> "Counter[str]":
        """Count the running tasks on each GPU."""
        return Counter(gpu for w in self.workers if w.task is not None for gpu in w.gpus)

    def _gpus_for(self, number: int, task: StudyTask) -> list[str]:
        """Return a GPU for each worker of a task: that of the process that runs it, then those with
        the fewest tasks."""
        if not self.gpus:
            return []
        own, load = self.gpus[number % len(self.gpus)], self._gpu_load()
        others = sorted((gpu for gpu in self.gpus if gpu != own), key=lambda gpu: load[gpu])
        return [own, *others[: task.workers - 1]]

    def _spawn(self, number: int) -> "_Worker":
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.threads), **_import_path()}
        shared = None if self.mps is None else self.mps.environment
        environment |= gpu_environment(number, self.gpus, shared)
        if self.hide_gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        worker = _Worker(number, self.threads, environment)
        self.workers.append(worker)
        self.select.register(worker.replies, selectors.EVENT_READ, worker)
        return worker


def in_order(tasks: Sequence[StudyTask]) -> list[StudyTask]:
    """Return steps, for which trials wait, and then trials; long ones first."""
    return sorted(tasks, key=lambda task: (task.is_trial, -task.cost))


def gpu_environment(
    number: int, gpus: Sequence[str], shared: dict[str, str] | None
) -> dict[str, str]:
    """Return the variables that give a worker its GPU; `shared` are those of MPS, if it is used."""
    if not gpus:
        return {}
    environment = {"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)], **(shared or {})}
    return environment | (BEHIND if shared is not None and number >= len(gpus) else {})


def next_task(queue: Sequence[StudyTask], cell: Values | None) -> StudyTask:
    """Return the head of the queue, or a trial of `cell`, a worker's last one, if it is as long.

    On a GPU a trial takes over the captured steps of the one before if its shapes are the same.
    """
    head = queue[0]
    for task in queue if cell is not None else ():
        if task.cell == cell and (task.cost, task.workers) == (head.cost, head.workers):
            return task
    return head


class _Worker:
    """A worker process as the study sees it; `worker.py` is the code that it runs."""

    def __init__(self, number: int, threads: int, environment: dict[str, str]) -> None:
        self.number = number
        self.task: StudyTask | None = None
        self.cell: Values | None = None
        """The cell of its last trial."""
        self.log: Path | None = None
        self.gpus: list[str] = []
        """Those of its last task; the first one is its own."""
        self.dead = False
        read, write = os.pipe()
        arguments = [str(write), str(os.getpid()), str(threads)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "thresher.study.worker", *arguments],
            stdin=subprocess.PIPE,
            pass_fds=(write,),
            env=environment,
            # Ctrl-C must reach only the study, which then lets its workers save.
            start_new_session=True,
        )
        os.close(write)
        self.replies: IO[str] = os.fdopen(read, encoding="utf-8")

    def send(self, task: StudyTask, log: Path, gpus: list[str]) -> None:
        self.task, self.log, self.cell, self.gpus = task, log, task.cell, gpus
        assert self.process.stdin is not None
        order = json.dumps({"task": task.to_json(), "log": str(log), "gpus": gpus})
        # It may have died between two tasks; `read` reports that.
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(order.encode() + b"\n")
            self.process.stdin.flush()

    def read(self) -> TaskOutcome | None:
        line = self.replies.readline()
        if line.endswith("\n"):
            assert self.task is not None
            self.task = None
            return TaskOutcome(**json.loads(line))
        self.dead = True
        code = self.process.wait()
        if self.task is None:
            return None
        how = signal.Signals(-code).name if code < 0 else f"code {code}"
        error, killed = f"its process ended with {how}", killed_from_outside(code)
        return TaskOutcome(self.task.name, error, log_tail(self.log), killed=killed)

    def stop(self) -> None:
        """Ask the running task to save and end; an idle worker ends at once."""
        self._close_input()
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
        self._close_input()

    def _close_input(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()


class Mps:
    """NVIDIA's multi-process service: lets trials on one GPU run concurrently.

    Without it the processes take turns on the GPU: eight trials at batch size 256 take eight times
    as long as one. MPS is a daemon of the current user with its own folder; no GPU setting changes.
    Logs a warning and does nothing if the daemon cannot be started. If the environment names a
    daemon that somebody else started, that one is used.
    """

    def __init__(self) -> None:
        self.environment: dict[str, str] = {}
        """Environment variables of a process that uses the daemon."""
        self._folder: str | None = None
        names = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
        if names[0] in os.environ:
            return
        if shutil.which(CONTROL) is None:
            logger.warning("%s is not installed: trials take turns on the GPU", CONTROL)
            return
        self._folder = tempfile.mkdtemp(prefix="thresher-mps-")
        variables = dict.fromkeys(names, self._folder)
        started = subprocess.run(
            [CONTROL, "-d"], env={**os.environ, **variables}, capture_output=True, text=True
        )
        if started.returncode:
            reason = started.stderr.strip()
            logger.warning("%s did not start: trials take turns on the GPU (%s)", CONTROL, reason)
            return
        self.environment = variables

    def close(self) -> None:
        """Stop the daemon; its client processes must have ended."""
        if self.environment:
            subprocess.run(
                [CONTROL],
                input="quit\n",
                env={**os.environ, **self.environment},
                capture_output=True,
                text=True,
                timeout=30,
            )
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _import_path() -> dict[str, str]:
    """Return the PYTHONPATH with which workers import this copy of the package."""
    package = str(Path(version.__file__).resolve().parent.parent)
    known = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if package in known or Path(package).name in ("site-packages", "dist-packages"):
        return {}
    return {"PYTHONPATH": os.pathsep.join([package, *known])}


def visible_gpus() -> list[str]:
    """Return one value of CUDA_VISIBLE_DEVICES per GPU, without importing torch."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        names = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
        # As CUDA reads it: -1, and what is after it, is no GPU.
        return [
            name for name in itertools.takewhile(lambda name: name.strip() != "-1", names) if name
        ]
    try:
        listing = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return [path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*")]
    return re.findall(r"^GPU (\d+):", listing, flags=re.MULTILINE)
