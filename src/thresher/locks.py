"""File locks. The operating system releases them when the holder dies, however it dies."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from thresher.errors import BusyError
from thresher.paths import disk_errors, new_parents

ATTEMPTS = 100
"""How often a lock is taken again whose file was replaced in the same moment."""


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
    with contextlib.ExitStack() as stack:
        with disk_errors(path):
            stack.enter_context(new_parents(path))
            created = not path.exists()
            handle = _acquire(path, BusyError(busy, fix), wait)
        try:
            yield handle
        except BaseException:
            if created and os.fstat(handle).st_size == 0:
                with contextlib.suppress(OSError):
                    path.unlink()
            raise
        finally:
            os.close(handle)


def _acquire(path: Path, busy: BusyError, wait: bool) -> int:
    """Open and lock the file or folder; return its descriptor."""
    flags = os.O_RDONLY | os.O_DIRECTORY if path.is_dir() else os.O_RDWR | os.O_CREAT
    for _ in range(ATTEMPTS):
        handle = os.open(path, flags, 0o666)  # the umask says what a group may do
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            # Some network file systems have no locks; a single user must not be stopped there.
            if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
                os.close(handle)
                raise busy from None
        # The process that held the lock may have removed or renamed the file meanwhile.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        os.close(handle)
    raise busy


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
