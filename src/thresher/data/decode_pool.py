"""Processes that decode images, so that decoding does not take the interpreter's lock from others.

An eager training step launches thousands of kernels from Python. Threads that decode in the same
process make it several times slower, because each of its calls may wait for the lock.
"""

import mmap
import os
import subprocess
import sys
import tempfile
import weakref
from dataclasses import replace
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from thresher.data.crop_reader import Draw, ImageReader
from thresher.data.decode_worker import HEADER, OF_THE_TRAINER, Answer, Job
from thresher.distributed.launch import children_without
from thresher.errors import ThresherError


class DecodePool:
    """Worker processes and the memory that they share with this one.

    Batches go to slots of the memory and are finished in the order in which they were submitted.

    Args:
        reader: What to decode; its `threads` is the number of processes.
        batch: Most images in a batch.
        slots: Batches that fit into the memory.
        pinned: Register the memory with CUDA, so that copies to a GPU do not wait.
    """

    def __init__(self, reader: ImageReader, batch: int, slots: int, pinned: bool) -> None:
        self.reader, self.batch, self.slots, self._number = reader, batch, slots, 0
        self.busy = False
        """Whether an iteration uses the pool."""
        size = reader.size
        self._slot_bytes = batch * size * size * 3
        self._image_bytes = size * size * 3
        memory_fd = _memory_file(HEADER + slots * self._slot_bytes)
        mapped = mmap.mmap(memory_fd, 0)
        self._memory = torch.frombuffer(mapped, dtype=torch.uint8)
        self._oldest = np.frombuffer(mapped, np.int64, 1)
        pixels = self._memory[HEADER:].view(slots, batch, size, size, 3)
        self.buffers: list[Tensor] = list(pixels)
        """(batch, size, size, 3) uint8 each."""
        self._connections: list[Connection] = []
        self._pending: list[list[Connection]] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        state = (self._oldest, self._connections, self._processes)
        self.close = weakref.finalize(self, _close, *state)
        alone = replace(reader, threads=1)
        for _ in range(reader.threads):
            ours, theirs = Pipe()
            self._connections.append(ours)
            self._processes.append(_start(theirs, memory_fd))
            theirs.close()
            ours.send(alone)
        os.close(memory_fd)
        if pinned:
            _pin(self._memory)

    def submit(self, slot: int, positions: np.ndarray, keys: np.ndarray, draw: Draw | None) -> None:
        """Begin to decode a batch into a slot."""
        n, workers = len(positions), len(self._connections)
        self._number += 1
        used = []
        for worker, connection in enumerate(self._connections):
            begin, end = n * worker // workers, n * (worker + 1) // workers
            if begin == end:
                continue
            offset = HEADER + slot * self._slot_bytes + begin * self._image_bytes
            job = Job(self._number, offset, positions[begin:end], keys[begin:end], draw)
            try:
                connection.send(job)
            except OSError:
                raise _killed() from None
            used.append(connection)
        self._pending.append(used)

    def wait(self) -> list[int]:
        """Wait for the oldest batch.

        Returns the positions of images that only the slower decoder reads; raises the error of an
        image that cannot be decoded.
        """
        slow: list[int] = []
        error = None
        for connection in self._pending.pop(0):
            try:
                answer: Answer = connection.recv()
            except (EOFError, OSError):
                raise _killed() from None
            if isinstance(answer, Exception):
                error = answer
            else:
                slow += answer
        if error is not None:
            raise error
        return slow

    def cancel(self) -> None:
        """Give up the batches that are still pending."""
        self._oldest[0] = self._number + 1
        while self._pending:
            try:
                self.wait()
            except ThresherError:
                continue


def _memory_file(size: int) -> int:
    """Return a file descriptor of new memory that processes can share."""
    if hasattr(os, "memfd_create"):
        # Not in /dev/shm, which is small in many containers.
        fd = os.memfd_create("thresher-images")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd


def _start(connection: Connection, memory_fd: int) -> "subprocess.Popen[bytes]":
    fds = (connection.fileno(), memory_fd)
    words = ["-m", "thresher.data.decode_worker", *map(str, fds), str(os.getpid())]
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    # Each process decodes with one thread; numpy's own would only take memory.
    environment = {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
    with children_without(*OF_THE_TRAINER):
        return subprocess.Popen(
            [sys.executable, *words], stdin=subprocess.DEVNULL, pass_fds=fds, env=environment
        )


def _pin(memory: Tensor) -> None:
    """Register memory with CUDA until it is freed; without effect where that is not possible."""
    runtime, address = torch.cuda.cudart(), memory.data_ptr()
    if int(runtime.cudaHostRegister(address, memory.numel(), 0)) == 0:
        weakref.finalize(memory, runtime.cudaHostUnregister, address)


def _close(
    oldest: np.ndarray, connections: list[Connection], processes: "list[subprocess.Popen[bytes]]"
) -> None:
    oldest[0] = np.iinfo(np.int64).max
    for connection in connections:
        connection.close()
    for process in processes:
        process.wait()


def _killed() -> ThresherError:
    return ThresherError(
        "a process that decodes images was killed",
        "if memory is short, use fewer cores (`taskset`) or a smaller `batch_size`",
    )
