"""The worker processes of the pack writer, as seen by the process that starts them."""

import contextlib
import multiprocessing
import pickle
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Protocol, TypeVar

from thresher.data.write_worker import Job, in_worker, start_worker
from thresher.errors import ThresherError

A = TypeVar("A")
B = TypeVar("B")


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
        ProcessPoolExecutor(processes, context, start_worker, (file,)) as pool,
    ):

        def run(function: Callable[[Job, A], B], arguments: Iterable[A]) -> Iterator[B]:
            tasks = [pool.submit(in_worker, function, argument) for argument in arguments]
            return (task.result() for task in as_completed(tasks))

        try:
            yield run
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in set(multiprocessing.active_children()) - before:
                child.terminate()
                child.join()
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
