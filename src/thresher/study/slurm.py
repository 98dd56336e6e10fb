"""Tasks on a cluster: SLURM job arrays through submitit, left alone and picked up again.

What is submitted is written down before it is submitted (a job name that nobody else has, and the
task of each element of the array), so that a study killed on the login node at any moment finds
its jobs again. A job that runs out of time saves, asks SLURM to queue it again, and goes on.
"""

import dataclasses
import math
import secrets
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thresher.errors import ThresherError, nearest
from thresher.paths import read_json, write_json
from thresher.progress import say
from thresher.study.executors import Ended, Executor
from thresher.study.expand import Task
from thresher.study.local import tail
from thresher.study.slurm_job import SlurmJob, ended_file
from thresher.study.tasks import to_json


@dataclass(frozen=True)
class SlurmSettings:
    """[executor] with kind = "slurm"."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    minutes: int = 60
    """Time limit of a job; a trial that needs more is requeued and goes on."""
    cpus: int = 1
    """Cores for each worker."""
    gpus: int = 0
    """GPUs for each worker: 0 or 1."""
    memory_gb: float = 0.0
    """Memory of a node's share; 0: the cluster's default."""
    at_once: int = 256
    """Most jobs of one array that run at the same time."""
    workers_per_node: int = 0
    """For trials of several workers; 0: all on one node."""
    save_seconds: int = 120
    """How long before the limit a job is told to save."""
    most_requeues: int = 50
    """A trial that ran out of time more often is given up."""
    most_attempts: int = 3
    """A job that vanished (a node died, it was cancelled) is submitted again so often."""
    poll_seconds: float = 10.0
    setup: list[str] = field(default_factory=list)
    """Shell lines before each job: modules to load, variables to set."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further sbatch options, by their long names."""

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> "SlurmSettings":
        known = {f.name for f in dataclasses.fields(cls)}
        for key in settings:
            if key not in known:
                raise ThresherError(f'the executor "slurm" has no "{key}"', nearest(key, known))
        return cls(**settings)

    def layout(self, workers: int) -> tuple[int, int]:
        """(nodes, workers on each) for a trial of so many workers."""
        per_node = min(workers, self.workers_per_node or workers)
        if workers % per_node:
            raise ThresherError(
                f"{workers} workers cannot be spread evenly, {per_node} to a node",
                "choose another workers_per_node",
            )
        return workers // per_node, per_node

    def parameters(self, workers: int, name: str) -> dict[str, Any]:
        """For submitit's SlurmExecutor."""
        nodes, per_node = self.layout(workers)
        chosen: dict[str, Any] = {
            "job_name": name,
            "time": self.minutes,
            "nodes": nodes,
            "ntasks_per_node": per_node,
            "cpus_per_task": self.cpus,
            "array_parallelism": self.at_once,
            "signal_delay_s": self.save_seconds,
            "stderr_to_stdout": True,
        }
        for key in ("partition", "account", "qos", "constraint"):
            if getattr(self, key):
                chosen[key] = getattr(self, key)
        if self.gpus:
            chosen["gpus_per_node"] = self.gpus * per_node
        if self.memory_gb:
            chosen["mem"] = f"{math.ceil(1024 * self.memory_gb)}M"
        if self.setup:
            chosen["setup"] = list(self.setup)
        extra = dict(self.extra)
        extra.setdefault("requeue", True)
        chosen["additional_parameters"] = extra
        return chosen


class Slurm(Executor):
    """Submits what it is given, and watches results and the queue."""

    def __init__(self, root: Path, settings: SlurmSettings) -> None:
        self.root, self.settings = root.absolute(), settings
        self.book = _Book(self.root / "slurm" / "jobs.json")
        self.flying: dict[str, Task] = {}
        self.lost: dict[str, int] = {}
        """How often in a row a task's job was not in the queue."""
        self.left = False
        _check_commands()

    def submit(self, tasks: Sequence[Task]) -> None:
        if not tasks:
            return
        queue = self._queue()
        fresh = []
        for task in tasks:
            self.flying[task.name] = task
            entry = self.book.entry(task.name)
            if entry is not None and (entry["job"], entry["index"]) in queue:
                say(
                    f"{task.name}: its job is {queue[entry['job'], entry['index']].lower()} already"
                )
            else:
                fresh.append(task)
        self._send(fresh)

    def _send(self, tasks: list[Task], attempt: int = 1) -> None:
        for workers in sorted({task.workers for task in tasks}, reverse=True):
            group = [task for task in tasks if task.workers == workers]
            name = f"thresher-{secrets.token_hex(4)}"
            for task in group:
                ended_file(self.root, task.name).unlink(missing_ok=True)
            # Written down first: between the two a kill can only leave a name nobody uses.
            self.book.write(name, [task.name for task in group], attempt)
            jobs = [SlurmJob(to_json(task), str(self.root), self.settings.cpus,
                             self.settings.most_requeues) for task in group]  # fmt: skip
            self._executor(workers, name).map_array(_call, jobs)

    def _executor(self, workers: int, name: str) -> Any:
        from submitit import SlurmExecutor

        executor = SlurmExecutor(folder=self.root / "slurm" / "jobs")
        executor.update_parameters(**self.settings.parameters(workers, name))
        return executor

    def wait(self) -> list[Ended]:
        if not self.flying:
            return []
        time.sleep(self.settings.poll_seconds)
        queue = self._queue()
        ended = []
        for name, task in list(self.flying.items()):
            outcome = self._look(task, queue)
            if outcome is not None:
                del self.flying[name]
                self.lost.pop(name, None)
                ended.append(outcome)
        return ended

    def _look(self, task: Task, queue: dict[tuple[str, int], str]) -> Ended | None:
        if task.finished:
            return Ended(task.name)
        file = ended_file(self.root, task.name)
        if file.exists():
            said = Ended(**read_json(file, "job's end"))
            if not said.stopped:
                return said
        entry = self.book.entry(task.name)
        if entry is not None and (entry["job"], entry["index"]) in queue:
            self.lost[task.name] = 0
            return None
        # Twice in a row: a shared file system may show a result later than the queue its end.
        self.lost[task.name] = self.lost.get(task.name, 0) + 1
        if self.lost[task.name] < 2:
            return None
        attempt = entry["attempt"] if entry is not None else 1
        if attempt >= self.settings.most_attempts:
            log = tail(self.root / "logs" / f"{task.name}.log")
            return Ended(task.name, f"its job vanished {attempt} times without a result", log)
        say(f"{task.name}: its job vanished; submitted again")
        self.lost[task.name] = 0
        self._send([task], attempt + 1)
        return None

    def running(self) -> dict[str, str]:
        queue = self._queue()
        found = {}
        for name in self.flying:
            entry = self.book.entry(name)
            state = queue.get((entry["job"], entry["index"])) if entry is not None else None
            if state is not None:
                found[name] = f"SLURM: {state.lower()}"
        return found

    def close(self) -> None:
        if self.flying:
            say(
                f"{len(self.flying)} jobs go on in SLURM without this process; "
                "run the study again to pick them up"
            )

    def _queue(self) -> dict[tuple[str, int], str]:
        """(job name, index in its array) → state, of this user's jobs in the queue."""
        done = subprocess.run(
            ["squeue", "--noheader", "--me", "--array", "--format=%j|%K|%T"],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise ThresherError(f"squeue failed: {done.stderr.strip()}", "is SLURM up?")
        found = {}
        for line in done.stdout.splitlines():
            name, index, state = line.strip().split("|")
            found[name, int(index) if index.isdigit() else 0] = state
        return found


class _Book:
    """Which job does which task: {task: {job, index, attempt, time}}, written before submitting."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: dict[str, dict[str, Any]] = read_json(path, "book") if path.exists() else {}

    def entry(self, task: str) -> dict[str, Any] | None:
        return self.entries.get(task)

    def write(self, job: str, tasks: list[str], attempt: int) -> None:
        now = time.time()
        for index, task in enumerate(tasks):
            self.entries[task] = {"job": job, "index": index, "attempt": attempt, "time": now}
        write_json(self.path, self.entries)


def _call(job: SlurmJob) -> None:
    job.run()


def _check_commands() -> None:
    import shutil

    for name in ("sbatch", "squeue", "scontrol"):
        if shutil.which(name) is None:
            raise ThresherError(
                f"there is no {name} here",
                "run on a login node of the cluster, or use kind = local",
            )
    try:
        import submitit  # noqa: F401
    except ImportError:
        raise ThresherError(
            "SLURM is reached through submitit, which is not installed",
            "pip install 'thresher[slurm]'",
        ) from None
