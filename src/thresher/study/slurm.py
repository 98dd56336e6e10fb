"""Run tasks on a cluster: SLURM job arrays, submitted through submitit.

Each submission is recorded before it is made (a unique job name and the task of each array
element), so a study that is killed on the login node finds its jobs again. A job that runs out of
time saves a checkpoint and is requeued.
"""

import contextlib
import io
import logging
import math
import re
import secrets
import subprocess
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from thresher.errors import InvalidValueError, ThresherError, counted
from thresher.options import option
from thresher.paths import StudyPaths, read_json, write_json
from thresher.study.perform import log_tail
from thresher.study.slurm_commands import (
    SlurmCommands,
    clean_submission,
    one_line,
    submit_limit,
    unreachable,
)
from thresher.study.slurm_job import SlurmJob, outcome_file
from thresher.study.slurm_queue import Queue, is_stuck, largest_array, read_queue, shown
from thresher.study.tasks import Executor, StudyTask, TaskOutcome, Values

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SlurmConfig:
    """`[executor]` with kind = "slurm"."""

    partition: str | None = None
    """Partition; default: the cluster's."""
    account: str | None = None
    """Account to charge; default: the user's."""
    qos: str | None = None
    """Quality of service; default: the user's."""
    constraint: str | None = None
    """Required node features."""
    minutes: int = option(60, ge=1)
    """Time limit of a job; a trial that needs longer is requeued and resumed."""
    cpus: int = option(1, ge=1)
    """Cores per worker."""
    gpus: int = option(0, ge=0, le=1)
    """GPUs per worker: 0 or 1."""
    memory_gb: float | None = option(None, gt=0)
    """Memory per node in GB; default: the cluster's."""
    at_once: int = option(256, ge=1)
    """Maximum number of jobs of an array that run at the same time."""
    workers_per_node: int | None = option(None, ge=1)
    """Workers of a trial on each node; default: all on one node."""
    save_seconds: int = option(120, ge=1)
    """How long before the time limit a job is asked to save; less than `minutes`. SLURM may ask up
    to a minute earlier."""
    most_requeues: int = option(50, ge=0)
    """A trial that runs out of time more often than this fails."""
    most_attempts: int = option(3, ge=1)
    """How often a job is submitted if it disappears (cancelled, or its node failed)."""
    poll_seconds: float = option(10.0, ge=0, le=3600)
    """Time between two looks at the queue."""
    setup: tuple[str, ...] = ()
    """Shell lines that run before each job: modules to load, variables to set."""
    extra: Values = field(default_factory=dict)
    """More sbatch options, by their long names."""

    def layout(self, workers: int) -> tuple[int, int]:
        """Return (nodes, workers per node) of a trial with `workers` workers."""
        per_node = min(workers, self.workers_per_node or workers)
        if workers % per_node:
            raise InvalidValueError(
                f"workers_per_node must divide the {workers} workers of a trial, got {per_node}",
                "",
                "workers_per_node",
            )
        return workers // per_node, per_node

    def parameters(self, workers: int, name: str) -> Values:
        """Return the arguments of submitit's SlurmExecutor for a trial with `workers` workers."""
        nodes, per_node = self.layout(workers)
        chosen: Values = {
            "job_name": name,
            "time": self.minutes,
            "nodes": nodes,
            "ntasks_per_node": per_node,
            "cpus_per_task": self.cpus,
            # From SLURM 22.05 on, srun does not inherit it, and gives a worker one core where tasks
            # are bound to cores.
            "srun_args": [f"--cpus-per-task={self.cpus}"],
            "array_parallelism": self.at_once,
            "signal_delay_s": self.save_seconds,
            "stderr_to_stdout": True,
        }
        optional = ("partition", "account", "qos", "constraint")
        chosen |= {key: getattr(self, key) for key in optional if getattr(self, key)}
        if self.gpus:
            chosen["gpus_per_node"] = self.gpus * per_node
        if self.memory_gb:
            chosen["mem"] = f"{math.ceil(1024 * self.memory_gb)}M"
        if self.setup:
            chosen["setup"] = list(self.setup)
        chosen["additional_parameters"] = {"requeue": True, **self.extra}
        return chosen


@dataclass(frozen=True)
class JobRecord:
    """Which element of which job array runs a task."""

    job: str
    index: int
    attempt: int
    time: float


class SlurmExecutor(Executor):
    """Submit tasks as SLURM jobs and watch their results and the queue.

    `root`, the folder of the study, must be on a file system that all nodes share.
    """

    def __init__(self, root: Path, config: SlurmConfig) -> None:
        self.root, self.config = root.absolute(), config
        self.records_file = StudyPaths(self.root).slurm_jobs
        self.jobs = self.root / "slurm" / "jobs"
        known = self.records_file.exists()
        entries = read_json(self.records_file, "file of SLURM jobs") if known else {}
        self.records = {task: JobRecord(**entry) for task, entry in entries.items()}
        self.submitted: dict[str, StudyTask] = {}
        self.attempts: dict[str, int] = {}
        """Number of the next attempt at a task whose job vanished; 1 for others."""
        self.held: list[StudyTask] = []
        """Tasks that wait because SLURM takes no more jobs of this user, steps first."""
        self.limit: str | None = None
        """SLURM's name of the limit that tasks wait for."""
        self.unseen: dict[str, int] = {}
        """How often in a row the job of a task was not in the queue."""
        self.stuck: set[str] = set()
        """Tasks with a job that waits for a person, as was said."""
        self.commands = SlurmCommands(config.poll_seconds)

    def submit(self, tasks: Sequence[StudyTask]) -> None:
        if not tasks:
            return
        queue = self._queue()
        new = []
        for task in tasks:
            if state := self._state(task.name, queue):
                self.submitted[task.name] = task
                logger.info("%s: its job is already %s", task.name, shown(state))
            elif (ended := self._reported(task.name)) and not ended.killed:
                self.submitted[task.name] = task  # it failed while no process watched it
            else:
                new.append(task)
        self._send(new)

    def mention_others(self, known: Collection[str]) -> None:
        """Say that jobs of tasks other than these, which the study had before, are in SLURM."""
        queue = self._queue()
        others = [task for task in self.records if task not in known and self._state(task, queue)]
        if others:
            logger.warning(
                "%s, of tasks that the study does not have any more, such as %s (job name %s)",
                *(counted(len(others), "job is in SLURM", "jobs are in SLURM"), others[0]),
                self.records[others[0]].job,
            )

    def _send(self, tasks: list[StudyTask]) -> None:
        """Submit tasks, or hold them where SLURM takes no more jobs."""
        if self.held:
            self._hold(tasks)
            return
        most = largest_array(self.commands) if len(tasks) > 1 else 1
        for workers in sorted({task.workers for task in tasks}, reverse=True):
            group = [task for task in tasks if task.workers == workers]
            for begin in range(0, len(group), most):
                self._send_array(group[begin : begin + most], workers)

    def _send_array(self, tasks: list[StudyTask], workers: int) -> None:
        """Submit tasks of `workers` workers each as one array; hold them if others are held."""
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        while not self.held:
            name = f"thresher-{secrets.token_hex(4)}"
            try:
                self._try_array(tasks, workers, name)
            except (FailedJobError, FailedSubmissionError) as error:
                self._remove_leftovers()
                if limit := submit_limit(str(error)):
                    self._forget(tasks)
                    self._send_fewer(tasks, workers, limit)
                    return
                self._after_failure(tasks, name, str(error))
            else:
                self.commands.answered("sbatch")
                self.submitted |= {task.name: task for task in tasks}
                return
        self._hold(tasks)

    def _send_fewer(self, tasks: list[StudyTask], workers: int, limit: str) -> None:
        """Submit the halves of an array that a limit of submitted jobs does not admit.

        Limits count each job of an array, and refuse it as a whole.
        """
        if len(tasks) > 1:
            half = len(tasks) // 2
            self._send_array(tasks[:half], workers)
            self._send_array(tasks[half:], workers)
            return
        if self.limit is None:
            logger.warning(
                "SLURM takes no more jobs for now (%s); the others are submitted as jobs end", limit
            )
        self.limit = limit
        self._hold(tasks)

    def _hold(self, tasks: list[StudyTask]) -> None:
        for task in tasks:
            self.submitted.pop(task.name, None)
        self.held = sorted([*self.held, *tasks], key=lambda task: task.is_trial)

    def _send_held(self) -> None:
        """Submit tasks that were held: one first, then more and more while SLURM takes them."""
        waiting, self.held, count = self.held, [], 1
        while waiting and not self.held:
            self._send(waiting[:count])
            waiting, count = waiting[count:], 2 * count
        self._hold(waiting)
        if not self.held:
            self.limit = None

    def _try_array(self, tasks: list[StudyTask], workers: int, name: str) -> None:
        """Record the jobs of an array and submit it under a name of its own."""
        from submitit import SlurmExecutor as SubmititExecutor

        for task in tasks:
            outcome_file(self.root, task.name).unlink(missing_ok=True)
        # Recorded first: a kill in between leaves only a job name that nobody uses.
        for index, task in enumerate(tasks):
            attempt = self.attempts.get(task.name, 1)
            self.records[task.name] = JobRecord(name, index, attempt, time.time())
        self._write_records()
        cpus, requeues = self.config.cpus, self.config.most_requeues
        jobs = [SlurmJob(task.to_json(), str(self.root), cpus, requeues) for task in tasks]
        executor = SubmititExecutor(folder=self.jobs)
        parameters = self.config.parameters(workers, name)
        executor.update_parameters(**parameters)
        # submitit prints the errors of sbatch, which are logged: it may refuse jobs for days.
        with contextlib.redirect_stderr(io.StringIO()), clean_submission(parameters):
            executor.map_array(SlurmJob.run, jobs)

    def _after_failure(self, tasks: list[StudyTask], name: str, errors: str) -> None:
        """Return when the array `name`, which sbatch did not submit, can be submitted again."""
        try:
            if not unreachable(errors):
                fix = "check [executor] and run the study again"
                raise ThresherError(f"sbatch failed: {one_line(errors)}", fix)
            self.commands.wait("sbatch", errors)
            # The answer alone may have been lost. submitit does not know the number of such a job
            # and has left nothing for it to run, so that it must not stay in the queue.
            if any(job == name for job, _ in self._queue()):
                subprocess.run(["scancel", f"--name={name}"], capture_output=True)
        except ThresherError:
            self._forget(tasks)
            raise

    def _forget(self, tasks: list[StudyTask]) -> None:
        """Remove the records of jobs that were not submitted."""
        for task in tasks:
            del self.records[task.name]
        self._write_records()

    def _remove_leftovers(self) -> None:
        """Remove what submitit wrote for an array that was not submitted."""
        for file in (*self.jobs.glob("*.pkl"), *self.jobs.glob(".submission_file_*.sh")):
            own = re.fullmatch(r"(\.submission_file_)?[0-9a-f]{32}\.\w+", file.name)
            if own and not file.is_symlink():
                file.unlink(missing_ok=True)

    def _write_records(self) -> None:
        write_json(self.records_file, {t: asdict(r) for t, r in self.records.items()})

    def wait(self) -> list[TaskOutcome]:
        if not self.submitted and not self.held:
            return []
        time.sleep(self.commands.pause if self.held else self.config.poll_seconds)
        if self.held:
            self._send_held()
        queue = self._queue()
        outcomes = []
        for name, task in list(self.submitted.items()):
            outcome = self._outcome(task, queue)
            if outcome is not None:
                del self.submitted[name]
                self.unseen.pop(name, None)
                outcomes.append(outcome)
        return outcomes

    def _outcome(self, task: StudyTask, queue: Queue) -> TaskOutcome | None:
        """Return how the task ended, None if it has not; submit it again if its job vanished."""
        if task.finished:
            return TaskOutcome(task.name)
        if outcome := self._reported(task.name):
            # Kept, it would be taken for the outcome of a later attempt.
            outcome_file(self.root, task.name).unlink(missing_ok=True)
            return outcome
        state = self._state(task.name, queue)
        if state is not None:
            if is_stuck(state) and task.name not in self.stuck:
                what = "%s: its job is %s: SLURM will not start it unless somebody intervenes"
                logger.warning(what, task.name, shown(state))
                self.stuck.add(task.name)
            self.unseen[task.name] = 0
            return None
        # Twice in a row: on a shared file system a result may appear after its job has left.
        self.unseen[task.name] = self.unseen.get(task.name, 0) + 1
        if self.unseen[task.name] < 2:
            return None
        record = self.records.get(task.name)
        attempt = record.attempt if record is not None else 1
        if attempt >= self.config.most_attempts:
            log = log_tail(self.root / "logs" / f"{task.name}.log")
            return TaskOutcome(task.name, f"its job vanished {attempt} times without a result", log)
        logger.warning("%s: its job vanished; submitting it again", task.name)
        self.unseen[task.name], self.attempts[task.name] = 0, attempt + 1
        self._send([task])
        return None

    def _reported(self, task: str) -> TaskOutcome | None:
        """Return how the job of a task says that it ended; None if it has not."""
        file = outcome_file(self.root, task)
        if not file.exists():
            return None
        outcome = TaskOutcome(**read_json(file, "outcome of a SLURM job"))
        return None if outcome.stopped else outcome

    def running(self) -> dict[str, str]:
        queue = self._queue()
        states = {name: self._state(name, queue) for name in self.submitted}
        return {name: f"SLURM: {shown(state)}" for name, state in states.items() if state}

    def close(self) -> None:
        if self.submitted:
            jobs = counted(len(self.submitted), "job stays", "jobs stay")
            logger.info("%s in SLURM; run the study again to collect the results", jobs)
        if self.held:
            logger.info(
                "%d tasks were not submitted (%s); run the study again", len(self.held), self.limit
            )

    def _state(self, task: str, queue: Queue) -> str | None:
        record = self.records.get(task)
        return queue.get((record.job, record.index)) if record is not None else None

    def _queue(self) -> Queue:
        return read_queue(self.commands)


def forget_outcomes(root: Path, tasks: Iterable[str]) -> None:
    """Forget how jobs of these tasks ended, so that they are submitted again."""
    for task in tasks:
        outcome_file(root, task).unlink(missing_ok=True)


def check_folder(root: Path) -> None:
    """Refuse a study folder in whose path SLURM would replace text, as %j by the job's number."""
    if match := re.search(r"%\w|\\", str(root.absolute())):
        raise InvalidValueError(
            f'SLURM would replace "{match.group()}" in the path {root.absolute()}',
            "choose another folder",
            "out",
        )
