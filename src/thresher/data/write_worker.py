"""A worker process of the pack writer; this module imports only what such a process needs."""

import contextlib
import multiprocessing
import pickle
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from thresher.data.shard_writer import WriteOptions, write_shard
from thresher.data.sources.base import Source
from thresher.distributed.launch import die_with_parent
from thresher.paths import disk_errors


class Job(NamedTuple):
    """What all workers of a packing share."""

    source: Source
    chunks: list[str]
    staging: Path
    options: WriteOptions


_job: Job | None = None


@contextlib.contextmanager
def job_file(job: Job) -> Iterator[Path]:
    """Write a job to a temporary file that workers read when they start.

    A source may list a million files. As an argument it would go through a pipe to one process
    after the other, and the next would start only when the last had read it.
    """
    file = job.staging / ".job.tmp"
    try:
        file.write_bytes(pickle.dumps(job))
        yield file
    finally:
        file.unlink(missing_ok=True)


def start_worker(file: Path) -> None:
    """Read the job once per process, not once per task."""
    global _job
    parent = multiprocessing.parent_process()
    die_with_parent(parent.pid if parent else None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends its workers
    _job = pickle.loads(file.read_bytes())
    pa.set_cpu_count(1)


def write_one(number: int) -> None:
    """Write one shard of the job."""
    assert _job is not None
    with disk_errors(_job.staging):
        write_shard(_job.source, _job.chunks[number], number, _job.staging, _job.options)
