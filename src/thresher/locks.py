"""File locks. The operating system releases them when the holder dies, however it dies."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from thresher.errors import BusyError
from thresher.paths import disk_errors


@contextlib.contextmanager
def exclusive_lock(
    path: Path, busy: str, fix: str = "wait for it", wait: bool = False
) -> Iterator[int]:
    """Hold an exclusive lock on `path` while the block runs; yield the file descriptor.

    Args:
        path: A file (created if missing) or an existing folder.
        busy: Message of the BusyError if another process holds the lock.
        fix: What the user can do about it.
        wait: Wait for the lock instead of raising.
    """
    with disk_errors(path):
        if path.is_dir():
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            # Some network file systems have no locks; a single user must not be stopped there.
            if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
                raise BusyError(busy, fix) from None
        yield handle
    finally:
        os.close(handle)


def is_locked(path: Path) -> bool:
    """Return whether a process holds `exclusive_lock(path)` now."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        # Shared, so that two readers do not take each other for the holder.
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
