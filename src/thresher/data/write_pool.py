"""The worker processes of the pack writer; imports only what such a process needs."""

import contextlib
import multiprocessing
import pickle
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Protocol, TypeVar

import pyarrow as pa

from thresher.data.shard_writer import Job
from thresher.distributed.launch import children_without, die_with_parent
from thresher.errors import ThresherError
from thresher.paths import disk_errors
from thresher.startup import skip_pandas

A = TypeVar("A")
B = TypeVar("B")
_OF_THE_TERMINAL = (signal.SIGINT, signal.SIGHUP)
"""Signals that are for the parent, which ends its workers."""


class WorkerKilledError(ThresherError):
    """A worker process died, perhaps for lack of memory."""


class Run(Protocol):
    """Calls `function(job, argument)` for each argument; yields results as they come."""

    def __call__(self, function: Callable[[Job, A], B], arguments: Iterable[A]) -> Iterator[B]: ...


@contextlib.contextmanager
def workers(job: Job, processes: int) -> Iterator[Run]:
    """Yield what runs functions in so many processes; one is this process."""
    if processes <= 1:
        yield lambda function, arguments: (function(job, argument) for argument in arguments)
        return
    # Spawned, not forked: threads of the parent (torch, Arrow) do not survive a fork.
    context = multiprocessing.get_context("spawn")
    before = set(multiprocessing.active_children())
    with (
        _job_file(job) as file,
        ProcessPoolExecutor(processes, context, _start_worker, (file,)) as pool,
    ):

        def run(function: Callable[[Job, A], B], arguments: Iterable[A]) -> Iterator[B]:
            with children_without(*_OF_THE_TERMINAL):
                tasks = [pool.submit(_in_worker, function, argument) for argument in arguments]
            return (task.result() for task in as_completed(tasks))

        try:
            yield run
        except BaseException as error:
            for child in set(multiprocessing.active_children()) - before:
                child.terminate()
                child.join()
            # Wait for its thread: Python's exit could write to the pipe that it closes.
            pool.shutdown(cancel_futures=True)
            remove_temporary(job.staging)
            if isinstance(error, BrokenProcessPool):
                raise WorkerKilledError(
                    f"a worker process packing {job.source.name} was killed",
                    "run the same command again to resume; if memory is short, use fewer "
                    "`processes`",
                ) from None
            raise


def remove_temporary(staging: Path) -> None:
    """Remove the files that were being written when a process ended."""
    for path in staging.glob(".*.tmp"):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _job_file(job: Job) -> Iterator[Path]:
    """Write a job to a temporary file that workers read when they start.

    A source may list a million files. As an argument it would go through a pipe to one process
    after the other, and the next would start only when the last had read it.
    """
    file = job.staging / ".job.tmp"  # removed by `remove_temporary` after a kill
    try:
        file.write_bytes(pickle.dumps(job))
        yield file
    finally:
        file.unlink(missing_ok=True)


_job: Job | None = None


def _start_worker(file: Path) -> None:
    """Read the job once per process, not once per task."""
    global _job
    parent = multiprocessing.parent_process()
    die_with_parent(parent.pid if parent else None)
    for number in _OF_THE_TERMINAL:
        signal.signal(number, signal.SIG_IGN)
    _job = pickle.loads(file.read_bytes())
    pa.set_cpu_count(1)
    skip_pandas()


def _in_worker(function: Callable[[Job, A], B], argument: A) -> B:
    """Call a function with the job of this process."""
    assert _job is not None
    with disk_errors(_job.staging):
        return function(_job, argument)
