"""Run one task inside a SLURM job: save before the time limit, requeue, report the outcome."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from thresher.errors import ThresherError
from thresher.paths import write_json
from thresher.startup import skip_pandas
from thresher.stopping import Stop
from thresher.study.perform import attempt, redirect_output
from thresher.study.slurm_commands import call
from thresher.study.tasks import StudyTask, TaskOutcome

REQUEUE_SECONDS = 60.0
"""How long a job that is out of time tries to requeue itself."""


def outcome_file(root: Path, task: str) -> Path:
    """Return the file in which a job reports how its task ended."""
    return root / "slurm" / "ended" / f"{task}.json"


class OutOfTime(BaseException):
    """The time limit is near and there is nothing to save yet."""

    # Like KeyboardInterrupt not an Exception, so that error handlers let it pass.


@dataclass(frozen=True)
class SlurmJob:
    """What submitit sends to the node; plain values only."""

    task: str
    root: str
    threads: int
    most_requeues: int

    def run(self) -> None:
        """Run in every process of the job; rank 0 reports the outcome."""
        from thresher.distributed.group import placement

        task = StudyTask.from_json(self.task)
        root, rank = Path(self.root), placement().rank
        suffix = f".rank{rank}" if rank else ""
        redirect_output(root / "logs" / f"{task.name}{suffix}.log")
        time_limit = _TimeLimit()
        skip_pandas()
        try:
            with time_limit:
                outcome = attempt(task, self.threads)
        except OutOfTime:
            outcome = TaskOutcome(task.name, stopped=True)
        if outcome.detail:
            _log(outcome.detail)
        if rank:
            return
        if outcome.stopped and not time_limit.near and _cancelled():
            return  # requeued, it would run although a person does not want it to
        restarts = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        if outcome.stopped and restarts < self.most_requeues:
            _log(f"{outcome.error or 'out of time'}: requeued (requeue {restarts + 1})")
            _requeue()
            return
        if outcome.stopped:
            why = outcome.error or "it ran out of time"
            outcome = TaskOutcome(task.name, f"{why}, {restarts + 1} times")
        write_json(outcome_file(root, task.name), dataclasses.asdict(outcome))


def _log(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


class _TimeLimit(Stop):
    """A block in which SIGUSR2, which SLURM sends before the time limit, calls SIGTERM's handler.

    While that is the one from outside the block, it raises OutOfTime.
    """

    # Training saves and ends on SIGTERM; before it has installed that handler there is nothing to
    # save. submitit's own handler would end the process in the middle of a step.

    def __init__(self) -> None:
        super().__init__(lambda _: OutOfTime(), signal.SIGUSR2)
        self.near = False
        self._outside = signal.getsignal(signal.SIGTERM)

    def __enter__(self) -> None:
        super().__enter__()
        self._before[signal.SIGUSR2] = signal.SIG_IGN  # what follows the task takes no time

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.near = True
        handler: Any = signal.getsignal(signal.SIGTERM)
        if handler is self._outside or handler == self._outside:
            super().__call__(number, frame)
        else:
            handler(signal.SIGTERM, frame)


def _cancelled() -> bool:
    """Return whether SLURM is ending this job, as after scancel; False if it does not answer.

    A job that gets SIGTERM because it is preempted runs on for a while.
    """
    job = os.environ["SLURM_JOB_ID"]
    return "COMPLETING" in call("squeue", "--noheader", f"--jobs={job}", "--format=%T").stdout


def _requeue() -> None:
    """Put this job (of an array, this element alone) back into the queue; wait to be ended."""
    env = os.environ
    job = env["SLURM_JOB_ID"]
    if "SLURM_ARRAY_JOB_ID" in env:
        job = f"{env['SLURM_ARRAY_JOB_ID']}_{env['SLURM_ARRAY_TASK_ID']}"
    begin = time.monotonic()
    while (code := subprocess.run(["scontrol", "requeue", job]).returncode) != 0:
        # The controller may be restarting. A job that is not requeued is submitted again, which
        # happens a few times only.
        if time.monotonic() - begin > REQUEUE_SECONDS:
            raise ThresherError(f"scontrol requeue failed with exit code {code}")
        time.sleep(5)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # On return, submitit would write a result and the job would end before it is requeued.
    time.sleep(60)
