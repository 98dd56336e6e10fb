"""A process that decodes images into memory that it shares with the process that started it.

It does not import torch, so it starts in a fraction of a second. It ends when its connection is
closed, which the system does when the other process dies.
"""

import mmap
import os
import signal
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np

from thresher.data.crop_reader import Draw, ImageReader

HEADER = 4096
"""Bytes at the start of the shared memory; the first eight hold the oldest job still wanted."""
STEP = 16
"""Images between two looks at whether a job is still wanted."""
OF_THE_TRAINER = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Signals to a whole group of processes; the trainer may still need images."""
_PARENT_CHECK_S = 5.0
Answer = list[int] | Exception
"""What `ImageReader.read` returned or raised."""


@dataclass(frozen=True)
class Job:
    """Images to decode."""

    number: int
    offset: int
    """Where the pixels go in the shared memory, in bytes."""
    positions: np.ndarray
    keys: np.ndarray
    draw: Draw | None


def main(arguments: list[str]) -> None:
    """Decode until the connection is closed; arguments: connection, memory, parent's id."""
    connection_fd, memory_fd, parent = map(int, arguments)
    for number in OF_THE_TRAINER:
        signal.signal(number, signal.SIG_IGN)
    connection = Connection(connection_fd)
    memory = np.frombuffer(mmap.mmap(memory_fd, 0), np.uint8)
    try:
        reader: ImageReader = connection.recv()
        while True:
            while not connection.poll(_PARENT_CHECK_S):
                # A forked copy of the parent may keep the connection open.
                if os.getppid() != parent:
                    return
            connection.send(_decode(reader, connection.recv(), memory))
    except (EOFError, ConnectionError):
        return


def _decode(reader: ImageReader, job: Job, memory: np.ndarray) -> Answer:
    oldest, size = memory[:8].view(np.int64), reader.size
    n = len(job.positions)
    pixels = memory[job.offset : job.offset + n * size * size * 3].reshape(n, size, size, 3)
    slow: list[int] = []
    try:
        for begin in range(0, n, STEP):
            if oldest[0] > job.number:
                break
            part = slice(begin, begin + STEP)
            slow += reader.read(job.positions[part], job.keys[part], job.draw, pixels[part])
    except Exception as error:
        return error
    return slow


if __name__ == "__main__":
    main(sys.argv[1:])
