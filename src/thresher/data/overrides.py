"""The override log: people's decisions on single samples, append-only, beside a selection.

One JSON object per line, flushed to disk before the call returns. Lines are never rewritten: an
undo is a line too, so the log tells which decisions were made when. Several processes may append
(a page and a script): each holds a lock on the file.
"""

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

from thresher.errors import InvalidValueError
from thresher.locks import exclusive_lock
from thresher.options import from_mapping
from thresher.paths import check_format, disk_errors

FORMAT = 1


@dataclass(frozen=True)
class Override:
    """A decision on some samples, or the undo or redo of one."""

    ids: list[str]
    keep: bool
    """The decision; an undo or redo repeats that of the decision it refers to."""
    reason: str = ""
    previous: list[bool] = field(default_factory=list)
    """`keep` of each id before this line was written."""
    time: float = 0.0
    """Seconds since 1970."""
    kind: Literal["set", "undo", "redo"] = "set"


class KeepById(Protocol):
    """Looks up the filter's own decision on an id: a dictionary, or anything like one."""

    def __getitem__(self, id: str, /) -> bool: ...


def undo_stacks(entries: Iterable[Override]) -> tuple[list[Override], list[Override]]:
    """Replay a log as an editor does.

    Returns:
        The decisions in effect, oldest first, and the undone ones that a redo would restore, in
        order. A new decision clears the latter.
    """
    done: list[Override] = []
    undone: list[Override] = []
    for entry in entries:
        if entry.kind == "undo":
            if done:
                undone.append(done.pop())
        elif entry.kind == "redo":
            if undone:
                done.append(undone.pop())
        else:
            done.append(entry)
            undone.clear()
    return done, undone


def effective_overrides(entries: Iterable[Override]) -> dict[str, Override]:
    """Return the decision in effect for each id: the last one that was not undone."""
    return {id: entry for entry in undo_stacks(entries)[0] for id in entry.ids}


class OverrideLog:
    """The override log of a selection.

    Reading needs no lock; a line that is incomplete does not count.

    Args:
        path: The .overrides.jsonl file; it is created by the first decision.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, entry: Override) -> None:
        """Append a line as given; `decide`, `undo` and `redo` fill in the previous state."""
        with self._locked() as file:
            self._write(file, entry)

    def decide(
        self, ids: Sequence[str], keep: bool, reason: str, filter_keep: Sequence[bool]
    ) -> Override:
        """Keep or drop samples.

        Args:
            ids: The samples.
            keep: The decision.
            reason: Why.
            filter_keep: The filter's own decision on each sample.
        """
        with self._locked() as file:
            current = effective_overrides(self.read())
            previous = [
                _keep_of(current, id, by_filter)
                for id, by_filter in zip(ids, filter_keep, strict=True)
            ]
            entry = Override(list(ids), keep, reason, previous, time.time())
            self._write(file, entry)
        return entry

    def undo(self, filter_keep: KeepById) -> Override | None:
        """Undo the last decision; return None if there is none.

        Args:
            filter_keep: The filter's own decision by id.
        """
        return self._move("undo", filter_keep)

    def redo(self, filter_keep: KeepById) -> Override | None:
        """Redo the last undone decision; return None if there is none."""
        return self._move("redo", filter_keep)

    def read(self) -> list[Override]:
        """Return every complete line, in order.

        A line that a crash truncated was never confirmed, so it is skipped.

        Raises:
            InvalidValueError: A line is valid JSON but not a decision.
        """
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return []
        entries = []
        for number, line in enumerate(text.split(b"\n"), 1):
            try:
                record = json.loads(line)
            except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
                continue
            entries.append(self._parse(record, number))
        return entries

    def _move(self, kind: Literal["undo", "redo"], filter_keep: KeepById) -> Override | None:
        with self._locked() as file:
            entries = self.read()
            done, undone = undo_stacks(entries)
            stack = done if kind == "undo" else undone
            if not stack:
                return None
            last = stack[-1]
            current = effective_overrides(entries)
            previous = [_keep_of(current, id, filter_keep[id]) for id in last.ids]
            entry = Override(last.ids, last.keep, last.reason, previous, time.time(), kind)
            self._write(file, entry)
        return entry

    @contextlib.contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        with disk_errors(self.path):
            is_new = not self.path.exists()
            busy = f"another process is writing to {self.path}"
            with exclusive_lock(self.path, busy, wait=True), open(self.path, "ab") as file:
                yield file
            if is_new:
                _sync_folder(self.path.parent)

    def _write(self, file: BinaryIO, entry: Override) -> None:
        record = {
            "format": FORMAT,
            "time": entry.time or time.time(),
            "kind": entry.kind,
            "ids": entry.ids,
            "keep": bool(entry.keep),
            "reason": entry.reason,
            "previous": entry.previous,
        }
        line = json.dumps(record).encode() + b"\n"
        # A line truncated by a crash must not absorb this one.
        file.write(line if _ends_with_newline(self.path) else b"\n" + line)
        file.flush()
        os.fsync(file.fileno())

    def _parse(self, record: Any, number: int) -> Override:
        check_format(record, FORMAT, f"line {number} of {self.path}")
        if isinstance(record, dict):
            record.pop("format", None)
        try:
            entry = from_mapping(Override, record)
        except InvalidValueError as error:
            raise InvalidValueError(
                f"line {number} of {self.path} is not a decision: {error.what}",
                "repair or remove that line",
            ) from None
        # A lone surrogate is valid JSON but cannot be written to Parquet or sent to a browser.
        ids = [_unicode(id) for id in entry.ids]
        return dataclasses.replace(entry, ids=ids, reason=_unicode(entry.reason))


def _unicode(text: str) -> str:
    """Replace lone surrogates by question marks."""
    return text.encode("utf-8", "replace").decode()


def _keep_of(current: dict[str, Override], id: str, by_filter: bool) -> bool:
    return current[id].keep if id in current else bool(by_filter)


def _ends_with_newline(path: Path) -> bool:
    """Return whether the file is empty or ends with a newline."""
    with open(path, "rb") as file:
        if not file.seek(0, os.SEEK_END):
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _sync_folder(folder: Path) -> None:
    """Write a folder to disk, so that the name of a new file survives a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
