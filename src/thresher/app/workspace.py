"""The selections that a page can show: one, several to compare, or all of a study."""

import contextlib
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from thresher.app import arrow, thumbnails
from thresher.app.filter_preview import FilterPreviewer
from thresher.app.selection_view import SelectionView
from thresher.data.ids import rows_by_id
from thresher.data.pack import Pack
from thresher.errors import InvalidValueError, NotFoundError, ThresherError, nearest
from thresher.paths import StudyPaths

FileStamp = tuple[int, int, int] | None
"""Inode, size and time of a file."""


@dataclass(frozen=True)
class ComparisonCounts:
    """How many samples two selections, a and b, treat alike or differently."""

    a: str
    b: str
    both_keep: int
    both_drop: int
    only_a_drops: int
    only_b_drops: int
    not_in_b: int
    jaccard: float
    """Samples dropped by both, divided by samples dropped by either."""


@dataclass(frozen=True)
class Comparison:
    """Selection b seen from the rows of selection a."""

    counts: ComparisonCounts
    keep: np.ndarray
    """(n,) bool: b keeps the sample."""
    held: np.ndarray
    """(n,) bool: b contains the sample."""

    def stream(self) -> bytes:
        """Return the two bitmasks as an Arrow IPC stream, with the counts as metadata."""
        masks = {"keep": pa.array(self.keep), "held": pa.array(self.held)}
        return arrow.encode(masks, asdict(self.counts))


class ChangedSelectionError(ThresherError):
    """The file of a selection is no longer the one that was opened."""


class Workspace:
    """Selections by name, at least one. Each is opened on first use; more can be added.

    `pack` is by default the one named by each sidecar.
    """

    def __init__(self, paths: Iterable[Path], pack: Pack | None = None) -> None:
        self._pack = pack
        self._paths: dict[str, Path] = {}
        self._opened: dict[str, tuple[SelectionView, FilterPreviewer]] = {}
        self._stamps: dict[str, FileStamp] = {}
        self._lock = threading.Lock()
        for path in paths:
            self.add(path)
        if not self._paths:
            raise InvalidValueError("no selection given", "pass a SEL.parquet")

    @property
    def names(self) -> list[str]:
        return list(self._paths)

    @property
    def first(self) -> str:
        return self.names[0]

    def add(self, path: Path) -> str:
        """Add a selection and return its unique name: the stem of its file.

        Studies name all files `selection.parquet`; those take the name of their folder.
        """
        name = path.resolve().parent.name if path.stem == "selection" else path.stem
        if name in self._paths and self._paths[name].resolve() != path.resolve():
            name = f"{path.resolve().parent.name}.{path.stem}"
        number = 2
        while name in self._paths and self._paths[name].resolve() != path.resolve():
            name, number = f"{path.stem}-{number}", number + 1
        self._paths[name] = path
        return name

    def view(self, name: str | None = None) -> SelectionView:
        return self._open(name or self.first)[0]

    def current(self, name: str) -> SelectionView:
        """Return `view`; raise ChangedSelectionError if its file was made anew since it was opened.

        Decisions about the samples of the old file would be applied to those of the new one.
        """
        view = self.view(name)
        if file_stamp(view.path) != self._stamps[name]:
            raise ChangedSelectionError(
                f"{view.path.name} was made anew or removed since it was opened",
                "start `thresher view` again",
            )
        return view

    def previewer(self, name: str | None = None) -> FilterPreviewer:
        return self._open(name or self.first)[1]

    def info(self, name: str) -> dict[str, object]:
        """Describe a selection for the page, live or exported."""
        view = self.view(name)
        return {
            **asdict(view.info()),
            "name": name,
            "selections": self.names,
            "thumb": thumbnails.thumbnail_size(view.pack),
            "sprite_columns": thumbnails.COLUMNS,
            "sprite_limit": thumbnails.SHEET_LIMIT,
        }

    def log_sizes(self) -> dict[str, int]:
        """Return the size in bytes of the override log of each opened selection."""
        sizes = {}
        for name, (view, _) in list(self._opened.items()):
            sizes[name] = 0
            with contextlib.suppress(FileNotFoundError):
                sizes[name] = view.log.path.stat().st_size
        return sizes

    def compare(self, name: str, other: str) -> Comparison:
        """Compare the decisions in force in two selections of one pack."""
        a, b = self.current(name), self.current(other)
        if a.pack.fingerprint != b.pack.fingerprint:
            raise InvalidValueError(
                f"{name} and {other} were made on different packs", "compare selections of one pack"
            )
        keep, rows = a.state().keep, rows_by_id(a.selection.ids, b.selection.ids)
        held = rows >= 0
        b_keep = np.zeros(len(a), bool)
        b_keep[held] = b.state().keep[rows[held]]
        both_drop = int((~keep & ~b_keep & held).sum())
        either_drops = int((~keep | ~b_keep)[held].sum())
        counts = ComparisonCounts(
            a=name,
            b=other,
            both_keep=int((keep & b_keep).sum()),
            both_drop=both_drop,
            only_a_drops=int((~keep & b_keep).sum()),
            only_b_drops=int((keep & ~b_keep & held).sum()),
            not_in_b=int((~held).sum()),
            jaccard=both_drop / either_drops if either_drops else 1.0,
        )
        return Comparison(counts, b_keep, held)

    def _open(self, name: str) -> tuple[SelectionView, FilterPreviewer]:
        with self._lock:
            if name not in self._paths:
                raise NotFoundError(f'no selection "{name}" is open', nearest(name, self.names))
            if name not in self._opened:
                self._stamps[name] = file_stamp(self._paths[name])
                view = SelectionView(self._paths[name], self._pack)
                self._opened[name] = (view, FilterPreviewer(view))
            return self._opened[name]


def file_stamp(path: Path) -> FileStamp:
    """Return what changes if a file is made anew; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def find_selections(paths: Iterable[Path]) -> list[Path]:
    """Return the selection files among `paths` and inside the folders among them."""
    files: list[Path] = []
    for path in paths:
        inside = [path]
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*.parquet") if p.with_suffix(".json").is_file())
        if not inside:
            kind = "study" if StudyPaths(path).definition.exists() else "folder"
            raise NotFoundError(
                f"the {kind} {path} contains no selection",
                "pass a SEL.parquet written by `thresher select`",
            )
        files += inside
    return files
