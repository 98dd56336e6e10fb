"""The selections that a page has before it: one, two to compare, or all of a study."""

import threading
from pathlib import Path
from typing import Any

import numpy as np

from thresher.app.knobs import Knobs
from thresher.app.viewed import Viewed
from thresher.data.pack import Pack
from thresher.errors import ThresherError, nearest
from thresher.paths import StudyPaths


class Desk:
    """Selections by name, opened when first asked for; a new one can be laid beside them."""

    def __init__(self, paths: list[Path], pack: Pack | None = None) -> None:
        if not paths:
            raise ThresherError("no selection is named", "give a SEL.parquet")
        self._pack = pack
        self._paths: dict[str, Path] = {}
        self._opened: dict[str, tuple[Viewed, Knobs]] = {}
        self._lock = threading.Lock()
        for path in paths:
            self.add(path)

    @property
    def names(self) -> list[str]:
        return list(self._paths)

    @property
    def first(self) -> str:
        return self.names[0]

    def add(self, path: Path) -> str:
        """Lay a selection on the desk; its name is the file's, made unique by its folder's.

        A study names all of them `selection.parquet`, each in a folder that says which it is.
        """
        name = path.resolve().parent.name if path.stem == "selection" else path.stem
        if name in self._paths and self._paths[name].resolve() != path.resolve():
            name = f"{path.resolve().parent.name}.{path.stem}"
        number = 2
        while name in self._paths and self._paths[name].resolve() != path.resolve():
            name, number = f"{path.stem}-{number}", number + 1
        self._paths[name] = path
        return name

    def viewed(self, name: str | None = None) -> Viewed:
        return self._open(name or self.first)[0]

    def knobs(self, name: str | None = None) -> Knobs:
        return self._open(name or self.first)[1]

    def logs(self) -> dict[str, int]:
        """The size of every opened selection's log of overrides: when it grows, someone decided."""
        sizes = {}
        for name, (viewed, _) in list(self._opened.items()):
            try:
                sizes[name] = viewed.log.path.stat().st_size
            except FileNotFoundError:
                sizes[name] = 0
        return sizes

    def compare(self, name: str, other: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """`other` seen from `name`: what it keeps of each row, and which rows it holds at all."""
        mine, its = self.viewed(name), self.viewed(other)
        if mine.pack.fingerprint != its.pack.fingerprint:
            raise ThresherError(
                f"{name} and {other} were made on different packs", "compare selections of one pack"
            )
        keep, its_keep = mine.state().keep, its.state().keep
        at = np.array([its.row.get(id, -1) for id in mine.selection.ids], np.int64)
        held = at >= 0
        their = np.zeros(len(mine), bool)
        their[held] = its_keep[at[held]]
        groups = {
            "both_keep": keep & their,
            "both_drop": ~keep & ~their & held,
            "only_a_drops": ~keep & their,
            "only_b_drops": keep & ~their & held,
        }
        union = int((~keep | ~their)[held].sum())
        agree = int(groups["both_drop"].sum())
        numbers = {
            "a": name,
            "b": other,
            **{group: int(rows.sum()) for group, rows in groups.items()},
            "not_in_b": int((~held).sum()),
            # Jaccard: of all that either drops, the share that both do.
            "jaccard": agree / union if union else 1.0,
        }
        return numbers, {"keep": their, "held": held}

    def _open(self, name: str) -> tuple[Viewed, Knobs]:
        with self._lock:
            if name not in self._paths:
                raise ThresherError(
                    f'there is no selection "{name}" here', nearest(name, self.names)
                )
            if name not in self._opened:
                viewed = Viewed(self._paths[name], self._pack)
                self._opened[name] = (viewed, Knobs(viewed))
            return self._opened[name]


def find(where: list[Path]) -> list[Path]:
    """The selections that the arguments name: files, or every selection inside a study's folder."""
    found: list[Path] = []
    for path in where:
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*.parquet") if p.with_suffix(".json").is_file())
            if not inside:
                kind = "study" if StudyPaths(path).definition.exists() else "folder"
                raise ThresherError(
                    f"the {kind} {path} holds no selection",
                    "name a SEL.parquet of `thresher select`",
                )
            found += inside
        else:
            found.append(path)
    return found
