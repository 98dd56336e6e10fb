"""What people decided about single samples, as an append-only log beside a selection.

One JSON object per line, flushed to disk before the call returns. Nothing is ever rewritten: an
undo is a line too, so that the log tells who was kept or dropped when, and by which decision.
Several processes may append (a page and a script): each append holds a lock on the file.
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from thresher.errors import ThresherError
from thresher.paths import disk_errors

KINDS = ("set", "undo", "redo")


@dataclass(frozen=True)
class Override:
    """A person's decision on some samples, or its undoing."""

    ids: Sequence[str]
    keep: bool
    """What a `set` decides; an `undo` or `redo` repeats that of the decision it concerns."""
    reason: str = ""
    previous: Sequence[bool] = ()
    """`keep` of each id before this line was written."""
    time: float = 0.0
    kind: str = "set"
    """set, undo or redo."""


def stacks(entries: Iterable[Override]) -> tuple[list[Override], list[Override]]:
    """Decisions that stand, oldest first, and undone ones that a redo would bring back, in order.

    Replays the log as an editor would: a new decision forgets what was undone before it.
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


def standing(entries: Iterable[Override]) -> dict[str, Override]:
    """The decision that stands for each overruled id: the last one that was not undone."""
    return {id: entry for entry in stacks(entries)[0] for id in entry.ids}


class OverrideLog:
    """The log of one selection. Reading needs no lock; a line is whole or it does not count."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, entry: Override) -> None:
        """Add one line as given; `decide`, `undo` and `redo` fill in what was there before."""
        with self._locked() as file:
            self._write(file, entry)

    def decide(self, ids: Sequence[str], keep: bool, reason: str, base: Sequence[bool]) -> Override:
        """Keep or drop `ids`. `base` is what the filter itself said of each."""
        with self._locked() as file:
            now = standing(self.read())
            previous = [_state(now, id, was) for id, was in zip(ids, base, strict=True)]
            entry = Override(list(ids), keep, reason, previous, time.time())
            self._write(file, entry)
        return entry

    def undo(self, base: Any) -> Override | None:
        """Take back the last decision that stands; None if there is none.

        `base` maps an id to what the filter itself said (`base[id]`).
        """
        return self._step("undo", base)

    def redo(self, base: Any) -> Override | None:
        """Bring back the last decision undone; None if there is none."""
        return self._step("redo", base)

    def read(self) -> list[Override]:
        """Every whole line, in order; a line cut by a crash was never confirmed: skip it."""
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return []
        entries = []
        for number, line in enumerate(text.split(b"\n"), 1):
            try:
                record = json.loads(line)
            except (json.JSONDecodeError, UnicodeDecodeError):
                continue
            entries.append(self._parsed(record, number))
        return entries

    def _step(self, kind: str, base: Any) -> Override | None:
        with self._locked() as file:
            entries = self.read()
            done, undone = stacks(entries)
            stack = done if kind == "undo" else undone
            if not stack:
                return None
            of = stack[-1]
            now = standing(entries)
            previous = [_state(now, id, base[id]) for id in of.ids]
            entry = Override(of.ids, of.keep, of.reason, previous, time.time(), kind)
            self._write(file, entry)
        return entry

    @contextlib.contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        with disk_errors(self.path):
            fresh = not self.path.exists()
            with open(self.path, "ab") as file:
                # Released when the file is closed, also by a kill.
                fcntl.flock(file, fcntl.LOCK_EX)
                yield file
            if fresh:
                _sync_folder(self.path.parent)

    def _write(self, file: BinaryIO, entry: Override) -> None:
        record = {
            "time": entry.time or time.time(),
            "kind": entry.kind,
            "ids": list(entry.ids),
            "keep": bool(entry.keep),
            "reason": entry.reason,
            "previous": [bool(was) for was in entry.previous],
        }
        line = json.dumps(record).encode() + b"\n"
        # A line cut by a crash must not swallow this one.
        file.write(line if _ends_line(self.path) else b"\n" + line)
        file.flush()
        os.fsync(file.fileno())

    def _parsed(self, record: Any, number: int) -> Override:
        if (
            not isinstance(record, dict)
            or not isinstance(record.get("ids"), list)
            or not isinstance(record.get("keep"), bool)
            or record.get("kind", "set") not in KINDS
        ):
            raise ThresherError(
                f"line {number} of {self.path} is not a decision", "mend or remove that line"
            )
        return Override(
            ids=record["ids"],
            keep=record["keep"],
            # A lone surrogate is valid JSON but cannot be written to Parquet or sent to a browser.
            reason=str(record.get("reason", "")).encode("utf-8", "replace").decode(),
            previous=record.get("previous", ()),
            time=float(record.get("time", 0.0)),
            kind=record.get("kind", "set"),
        )


def _state(now: dict[str, Override], id: str, base: bool) -> bool:
    return now[id].keep if id in now else bool(base)


def _ends_line(path: Path) -> bool:
    """Whether the file is empty or ends with a newline."""
    with open(path, "rb") as file:
        if not file.seek(0, os.SEEK_END):
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _sync_folder(folder: Path) -> None:
    """A new file's name is on the disk only once its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
