"""The override log: people's decisions on single samples, append-only, beside a selection.

One JSON object per line, flushed to disk before the call returns. Lines are never rewritten: an
undo is a line too, so the log tells which decisions were made when. Several processes may append
(a page and a script): each holds a lock on the file.
"""

import contextlib
import dataclasses
import json
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

from thresher.errors import InvalidValueError
from thresher.locks import exclusive_lock
from thresher.options import from_mapping, option, to_mapping
from thresher.paths import check_format, disk_errors
from thresher.read_errors import unreadable

logger = logging.getLogger(__name__)
FORMAT = 2
"""Lines that change no label are written as format 1, which version 0.1 reads."""


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
    label: int | None = option(None, ge=0)
    """The new label of the samples; None: they have that of the pack."""
    previous_labels: list[int] = field(default_factory=list)
    """The label of each id before a line with `label` was written."""


class KeepById(Protocol):
    """Looks up the filter's own decision on an id: a dictionary, or anything like one."""

    def __getitem__(self, id: str, /) -> bool: ...


def undo_stacks(entries: Iterable[Override]) -> tuple[list[Override], list[Override]]:
    """Return the decisions in effect, oldest first, and the undone ones that a redo restores.

    A new decision clears the latter, as in an editor.
    """
    done: list[Override] = []
    undone: list[Override] = []
    for entry in entries:
        if entry.kind == "set":
            done.append(entry)
            undone.clear()
        else:
            source, target = (done, undone) if entry.kind == "undo" else (undone, done)
            target += [source.pop()] if source else []
    return done, undone


def effective_overrides(entries: Iterable[Override]) -> dict[str, Override]:
    """Return the decision in effect for each id: the last one that was not undone."""
    return {id: entry for entry in undo_stacks(entries)[0] for id in entry.ids}


class OverrideLog:
    """The override log of a selection; the file is created by the first decision.

    Reading needs no lock; a line that is incomplete does not count. Lines are parsed once: a page
    reads the log with every decision, and may hold thousands.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parsed: tuple[bytes, list[Override]] = (b"", [])
        """Whole lines of the file, and what they say."""
        self._mentioned = False

    def decide(
        self, ids: Sequence[str], keep: bool, reason: str, filter_keep: Sequence[bool]
    ) -> Override:
        """Keep or drop samples; `filter_keep` is the filter's own decision on each."""
        filtered = dict(zip(ids, filter_keep, strict=True))
        with self._locked() as file:
            entry = Override(list(ids), bool(keep), reason)
            return self._append(file, self.read(), entry, filtered)

    def relabel(
        self, samples: Mapping[str, int], label: int, reason: str, filter_keep: KeepById
    ) -> Override:
        """Keep samples with a new label; `samples` maps ids to their labels in the pack."""
        with self._locked() as file:
            entries = self.read()
            current = effective_overrides(entries)
            given = {id: one.label for id, one in current.items() if one.label is not None}
            labels = [given.get(id, own) for id, own in samples.items()]
            entry = Override(list(samples), True, reason, label=label, previous_labels=labels)
            return self._append(file, entries, entry, filter_keep)

    def undo(self, filter_keep: KeepById) -> Override | None:
        """Undo the last decision, given the filter's own by id; return None if there is none."""
        return self._move("undo", filter_keep)

    def redo(self, filter_keep: KeepById) -> Override | None:
        """Redo the last undone decision; return None if there is none."""
        return self._move("redo", filter_keep)

    def read(self) -> list[Override]:
        """Return every line, in order, but those that a crash truncated: they were not confirmed.

        Raises:
            InvalidValueError: A line is valid JSON but not a decision.
        """
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise unreadable(self.path, error) or error from None
        known, entries = self._parsed
        if not text.startswith(known):  # somebody has repaired or removed lines
            known, entries = b"", []
        end = text.rfind(b"\n") + 1
        first = known.count(b"\n") + 1
        entries = [*entries, *self._entries(text[len(known) : end], first)]
        self._parsed = (text[:end], entries)
        return [*entries, *self._entries(text[end:], text.count(b"\n") + 1)]

    def mention_newer(self) -> None:
        """Warn, once, if decisions were made since the last `read`, as on a page in a notebook."""
        with contextlib.suppress(FileNotFoundError):
            written = self.path.read_bytes().rfind(b"\n") + 1
            if written > len(self._parsed[0]) and not self._mentioned:
                self._mentioned = True
                logger.warning(
                    f"decisions were made in {self.path} since the selection was loaded, which do "
                    "not count here: load it again"
                )

    def _entries(self, text: bytes, first: int) -> Iterator[Override]:
        """Yield the decisions of lines, of which the first has this number."""
        for number, line in enumerate(text.split(b"\n"), first):
            try:
                record = json.loads(line)
            except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
                continue
            yield self._parse(record, number)

    def _move(self, kind: Literal["undo", "redo"], filter_keep: KeepById) -> Override | None:
        with self._locked() as file:
            entries = self.read()
            done, undone = undo_stacks(entries)
            stack = done if kind == "undo" else undone
            if not stack:
                return None
            entry = dataclasses.replace(stack[-1], kind=kind)
            return self._append(file, entries, entry, filter_keep)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        with disk_errors(self.path):
            is_new = not self.path.exists()
            busy = f"another process is writing to {self.path}"
            with exclusive_lock(self.path, busy, wait=True), open(self.path, "ab") as file:
                yield file
            if is_new:  # so that the name of the file survives a power failure
                handle = os.open(self.path.parent, os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)

    def _append(
        self, file: BinaryIO, entries: list[Override], entry: Override, filter_keep: KeepById
    ) -> Override:
        """Append a line to the `entries` so far, with the time and the state before it."""
        current = effective_overrides(entries)
        previous = [
            current[id].keep if id in current else bool(filter_keep[id]) for id in entry.ids
        ]
        entry = dataclasses.replace(entry, previous=previous, time=time.time())
        fields = to_mapping(entry)
        if entry.label is None:
            del fields["label"], fields["previous_labels"]
        record = {"format": 1 if entry.label is None else FORMAT, **fields}
        line = json.dumps(record).encode() + b"\n"
        # A line truncated by a crash must not absorb this one.
        with open(self.path, "rb") as written:
            if written.seek(0, os.SEEK_END):
                written.seek(-1, os.SEEK_END)
                line = line if written.read(1) == b"\n" else b"\n" + line
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
        return entry

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


def empty_log() -> OverrideLog:
    """Return a log that nobody writes to."""
    return OverrideLog(Path(os.devnull))
