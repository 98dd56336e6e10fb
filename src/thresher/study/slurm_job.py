"""One task inside a SLURM job: save before the time is up, queue again, say how it ended."""

import dataclasses
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from thresher.paths import write_json
from thresher.study.executors import Ended, attempt
from thresher.study.tasks import from_json
from thresher.study.worker import print_to


def ended_file(root: Path, task: str) -> Path:
    """Where a job says how its task ended, for the study to read."""
    return root / "slurm" / "ended" / f"{task}.json"


class TimeUp(BaseException):
    """The limit is near, and nothing had begun that would need saving. No error: like an interrupt,
    it passes by whoever handles those."""


@dataclass(frozen=True)
class SlurmJob:
    """What submitit carries to the node: plain texts and numbers."""

    task: str
    root: str
    threads: int
    most_requeues: int

    def run(self) -> None:
        """Called in every process of the job; the first speaks for all."""
        from thresher.distributed.group import place

        task = from_json(self.task)
        root, rank = Path(self.root), place().rank
        suffix = f".rank{rank}" if rank else ""
        print_to(root / "logs" / f"{task.name}{suffix}.log")
        _listen()
        try:
            ended = attempt(task, self.threads)
        except TimeUp:
            ended = Ended(task.name, stopped=True)
        if ended.detail:
            print(ended.detail, flush=True)
        if rank:
            return
        restarts = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        if ended.stopped and restarts < self.most_requeues:
            print(f"out of time: queued again (requeue {restarts + 1})", flush=True)
            _requeue()
            return
        if ended.stopped:
            ended = Ended(task.name, f"it ran out of time {restarts + 1} times")
        write_json(ended_file(root, task.name), dataclasses.asdict(ended))


def _listen() -> None:
    """Before the time limit SLURM sends USR2 to every process of the job (submitit asks it to).

    Training saves and ends on SIGTERM; where it is not listening yet there is nothing to save.
    submitit's own handler would end the process in the middle of a step.
    """
    outside = signal.getsignal(signal.SIGTERM)

    def time_up(number: int, frame: FrameType | None) -> None:
        handler: Any = signal.getsignal(signal.SIGTERM)
        if handler is outside or handler == outside:
            raise TimeUp
        handler(signal.SIGTERM, frame)

    signal.signal(signal.SIGUSR2, time_up)


def _requeue() -> None:
    """Put this job (of an array, this element alone) back into the queue; wait to be ended."""
    env = os.environ
    job = env["SLURM_JOB_ID"]
    if "SLURM_ARRAY_JOB_ID" in env:
        job = f"{env['SLURM_ARRAY_JOB_ID']}_{env['SLURM_ARRAY_TASK_ID']}"
    subprocess.run(["scontrol", "requeue", job], check=True)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Returning would let submitit write a result, and the job end before SLURM requeues it.
    time.sleep(60)
