"""Tell files that the system does not let this process read from damaged ones."""

import errno
import os
import shlex
import stat
from pathlib import Path

from thresher.errors import ThresherError, UnreadableError

_OF_THE_PATH = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ENAMETOOLONG)
"""Errors that say something else about a path than that it cannot be read."""

DISK_FAILS = (errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN)
"""Errors of a disk or of the server of a file system, in reading and in writing."""


def unreadable(path: Path | str, error: Exception) -> ThresherError | None:
    """Return the error to raise if the system refused to read `path`; None if it can be read.

    What cannot be parsed is damaged, unless it is a file of another user, on a disk that fails or
    on a file system whose server is away. The errors of many libraries do not say which, so a byte
    is read.

    Args:
        path: A file or folder.
        error: What reading it raised.
    """
    if isinstance(error, ThresherError):
        return error if isinstance(error, UnreadableError) else None
    number = error.errno if isinstance(error, OSError) else None
    if number is None:
        try:
            _read_byte(path)
        except OSError as refused:
            number = refused.errno
    if number is None or number in _OF_THE_PATH:
        return None
    if number in (errno.EACCES, errno.EPERM):
        return _no_permission(Path(path))
    return UnreadableError(f"{path} cannot be read: {os.strerror(number).lower()}", advice(number))


def _read_byte(path: Path | str) -> None:
    kind = os.stat(path).st_mode
    if stat.S_ISDIR(kind):
        os.scandir(path).close()
    elif stat.S_ISREG(kind):  # reading others could block
        with open(path, "rb") as file:
            file.read(1)


def advice(number: int) -> str:
    """Return what to do about an error of the system, by its number."""
    if number in (errno.EMFILE, errno.ENFILE):
        return "raise the limit: `ulimit -n 4096`"
    if number == errno.ELOOP:
        return "check the path"
    if number == errno.EIO:
        return "its disk, or the server of its file system, fails: restore it from a copy"
    return "check the file system that it is on, and mount it again if its server was away"


def _no_permission(path: Path) -> UnreadableError:
    """Name the owner of a file, or of the folder above it that hides it."""
    for place in (path, *path.absolute().parents):
        try:
            status = os.stat(place)
        except OSError:
            continue
        break
    else:
        return UnreadableError(f"no permission to read {path}")
    owner = _user_name(status.st_uid)
    what = f"no permission to read {path}"
    what += f", in a folder of {owner}: {place}" if place != path else f", which belongs to {owner}"
    letters = "rx" if stat.S_ISDIR(status.st_mode) else "r"
    if status.st_uid == os.geteuid():
        return UnreadableError(what, f"allow it: `chmod u+{letters} {shlex.quote(str(place))}`")
    return UnreadableError(what, f"ask {owner} for it: `chmod a+{letters}`")


def _user_name(number: int) -> str:
    try:
        import pwd

        return pwd.getpwuid(number).pw_name
    except (ImportError, KeyError):  # of another machine, or in a container
        return f"user {number}"
