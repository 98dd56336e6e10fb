"""What worker processes of the pack writer do; imports only what such a process needs."""

import multiprocessing
import pickle
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from thresher.data.meta import ShardMeta
from thresher.data.normalisation import count_files
from thresher.data.shard import map_shard
from thresher.data.shard_splits import set_test
from thresher.data.shard_writer import WriteOptions, write_shard
from thresher.data.sources.base import Source
from thresher.distributed.launch import die_with_parent
from thresher.paths import disk_errors

A = TypeVar("A")
B = TypeVar("B")


class Job(NamedTuple):
    """What all workers of a packing share."""

    source: Source
    chunks: list[str]
    staging: Path
    options: WriteOptions


def write_one(job: Job, number: int) -> None:
    """Write one shard."""
    write_shard(job.source, job.chunks[number], number, job.staging, job.options)


def split_one(job: Job, part: tuple[int, np.ndarray]) -> None:
    """Mark the test images of a shard, given its number and which of its samples they are."""
    number, test = part
    set_test(job.staging, number, job.options.image_shape(job.source), test)


def count_one(job: Job, part: tuple[ShardMeta, np.ndarray]) -> np.ndarray:
    """Count the values of some encoded images, given their shard and their rows in it."""
    shard, rows = part
    return count_files(map_shard(job.staging, shard, None), rows)


_job: Job | None = None


def start_worker(file: Path) -> None:
    """Read the job once per process, not once per task."""
    global _job
    parent = multiprocessing.parent_process()
    die_with_parent(parent.pid if parent else None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends its workers
    _job = pickle.loads(file.read_bytes())
    pa.set_cpu_count(1)


def in_worker(function: Callable[[Job, A], B], argument: A) -> B:
    """Call a function with the job of this process."""
    assert _job is not None
    with disk_errors(_job.staging):
        return function(_job, argument)
