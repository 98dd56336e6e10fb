"""The files of a data set below a folder: without hidden ones, and with those behind links."""

import os
from collections.abc import Iterator
from pathlib import Path

from thresher.errors import InvalidValueError
from thresher.read_errors import unreadable


def is_hidden(name: str) -> bool:
    """Return whether a file or folder of this name is no data."""
    return name.startswith(".")


def walk(root: Path | str) -> Iterator[tuple[str, list[str]]]:
    """Yield each folder, `root` first, with the names of its files.

    Links to folders are followed, but not to one that the link is in, which would never end.
    """

    def refuse(error: OSError) -> None:
        message = f"cannot read the folder {error.filename} ({error.strerror})"
        raise unreadable(error.filename, error) or InvalidValueError(message) from None

    above: dict[str, tuple[str, ...]] = {}
    for folder, folders, names in os.walk(root, onerror=refuse, followlinks=True):
        real, parents = os.path.realpath(folder), above.get(os.path.dirname(folder), ())
        if real in parents:
            folders.clear()
            continue
        if folders:
            above[folder] = (*parents, real)
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        yield folder, [name for name in names if not is_hidden(name)]
