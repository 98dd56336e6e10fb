"""A selection: which training samples stay, as a file that any stage can read.

`S.parquet` holds a row per training sample: `id, label, x, y, cluster, score, keep, reason`, and
`votes` (share of votes to drop) where the filter voted. `S.json` beside it names the pack (by its
fingerprint), the filter, its settings, seeds, versions and timings. `S.overrides.jsonl` is an
append-only log of what people decided since; it is applied whenever the selection is loaded.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from thresher.data.overrides import Override, OverrideLog, standing
from thresher.data.pack import Pack
from thresher.errors import ThresherError
from thresher.paths import SelectionPaths, atomic_file, read_json, write_json, write_text

COLUMNS = ("id", "label", "x", "y", "cluster", "score", "keep", "reason")


@dataclass
class Selection:
    """Rows of a selection as arrays of one length, in pack order; `keep` includes the overrides."""

    ids: list[str]
    labels: np.ndarray
    keep: np.ndarray
    """(n,) bool."""
    score: np.ndarray
    """(n,) float32; higher is more suspicious, whatever the filter."""
    reason: list[str]
    """Why a sample is dropped, or was kept against the rule; empty for an ordinary kept one."""
    fingerprint: str
    """Of the pack that it was made on; another is refused."""
    x: np.ndarray | None = None
    y: np.ndarray | None = None
    cluster: np.ndarray | None = None
    """(n,) int32 cluster within the class; -1 is noise; -2 where there was no clustering."""
    votes: np.ndarray | None = None
    """(n,) float32 share of votes to drop, where the filter voted."""
    meta: dict[str, Any] = field(default_factory=dict)
    path: Path | None = None

    @property
    def kept(self) -> int:
        return int(self.keep.sum())

    @property
    def dropped(self) -> int:
        return len(self.keep) - self.kept

    def save(self, path: Path | str) -> "Selection":
        """Write table and sidecar; an existing selection is never overwritten."""
        paths = SelectionPaths(_checked_name(path))
        for taken in (paths.table, paths.sidecar, paths.overrides):
            if taken.exists():
                raise ThresherError(f"{taken} exists already", "choose another name or remove it")
        n = len(self.ids)
        columns = {
            "id": pa.array(self.ids, pa.string()),
            "label": pa.array(self.labels, pa.int32()),
            "x": pa.array(_filled(self.x, n, np.nan, np.float32)),
            "y": pa.array(_filled(self.y, n, np.nan, np.float32)),
            "cluster": pa.array(_filled(self.cluster, n, -2, np.int32)),
            "score": pa.array(np.asarray(self.score, np.float32)),
            "keep": pa.array(np.asarray(self.keep, bool)),
            "reason": pa.array(self.reason, pa.string()),
        }
        if self.votes is not None:
            columns["votes"] = pa.array(np.asarray(self.votes, np.float32))
        # The sidecar first: a table that can be seen is a selection that can be loaded.
        write_json(paths.sidecar, {"fingerprint": self.fingerprint, **self.meta})
        with atomic_file(paths.table) as temporary:
            pq.write_table(pa.table(columns), temporary)
        self.path = paths.table
        return self

    @classmethod
    def load(cls, path: Path | str, overrides: bool = True) -> "Selection":
        """Read a selection and, unless told otherwise, apply what people have decided since."""
        paths = SelectionPaths(Path(path))
        if not paths.table.is_file():
            raise ThresherError(f"there is no selection at {path}", "check the path")
        try:
            table = pq.read_table(paths.table)
        except (pa.ArrowInvalid, OSError):
            raise ThresherError(f"{path} is not a Parquet file", "make it again") from None
        missing = [name for name in COLUMNS if name not in table.column_names]
        if missing:
            raise ThresherError(f"{path} is not a selection: it has no column {missing[0]}")
        meta = read_json(paths.sidecar, "selection's sidecar")
        selection = cls(
            ids=table.column("id").to_pylist(),
            labels=table.column("label").to_numpy().astype(np.int64),
            keep=table.column("keep").to_numpy().copy(),
            score=table.column("score").to_numpy().copy(),
            reason=table.column("reason").to_pylist(),
            fingerprint=meta.pop("fingerprint", ""),
            x=table.column("x").to_numpy().copy(),
            y=table.column("y").to_numpy().copy(),
            cluster=table.column("cluster").to_numpy().copy(),
            votes=table.column("votes").to_numpy().copy()
            if "votes" in table.column_names
            else None,
            meta=meta,
            path=paths.table,
        )
        if overrides:
            selection.apply_overrides(OverrideLog(paths.overrides).read())
        return selection

    def apply_overrides(self, entries: Iterable[Override]) -> None:
        """Let people's decisions stand over the filter's: the last that was not undone counts."""
        decisions = standing(entries)
        if not decisions:
            return
        row = {id: n for n, id in enumerate(self.ids)}
        for id, entry in decisions.items():
            n = row.get(id)
            if n is None:
                raise ThresherError(
                    f'the overrides of {self.path} name "{id}", which it does not hold'
                )
            self.keep[n] = entry.keep
            self.reason[n] = f"override: {entry.reason}" if entry.reason else "override"

    def indices(self, pack: Pack) -> np.ndarray:
        """Positions of the kept samples in `pack`, ascending; another pack is refused."""
        if pack.fingerprint != self.fingerprint:
            raise ThresherError(
                f"the selection {self.path or ''} was made on a pack with the fingerprint "
                f"{self.fingerprint[:8]}…, but {pack.name} has {pack.fingerprint[:8]}…",
                "select on this pack",
            )
        positions = pack.positions(self.ids)
        if (positions < 0).any():
            raise ThresherError(f"the selection {self.path or ''} names samples not in {pack.name}")
        train = np.zeros(len(pack), bool)
        train[pack.indices("train")] = True
        if not train[positions].all():
            raise ThresherError(
                f"the selection {self.path or ''} names validation or test samples of {pack.name}",
                "only training samples may be filtered",
            )
        return np.sort(positions[self.keep])

    def apply(self, dataset: Any) -> Any:
        """A torch Subset of `dataset` with the kept samples.

        `dataset` holds the training samples in pack order (as torchvision's CIFAR10 does); its
        length must be that of this selection.
        """
        from torch.utils.data import Subset

        return Subset(dataset, self._rows_kept(dataset))

    def select(self, dataset: Any) -> Any:
        """A Hugging Face Dataset of the kept samples: `dataset.select` on the rows kept.

        As in `apply`, `dataset` holds the training samples in pack order.
        """
        return dataset.select(self._rows_kept(dataset))

    def export(self, path: Path | str, pack: Pack) -> Path:
        """Write what is kept for other tools: `.txt`, an id per line; `.npy`, int64 positions in
        the pack, ascending."""
        path = Path(path)
        positions = self.indices(pack)
        if path.suffix == ".txt":
            kept = pack.ids.take(pa.array(positions)).to_pylist()
            write_text(path, "".join(f"{id}\n" for id in kept))
        elif path.suffix == ".npy":
            with atomic_file(path) as temporary, open(temporary, "wb") as file:
                np.save(file, positions)
        else:
            raise ThresherError(f"{path} is no export", "name it .txt (ids) or .npy (positions)")
        return path

    def _rows_kept(self, dataset: Any) -> list[int]:
        if len(dataset) != len(self.ids):
            raise ThresherError(
                f"the data set has {len(dataset)} samples, the selection {len(self.ids)}",
                "apply it to the training set that it was made on",
            )
        return np.flatnonzero(self.keep).tolist()

    def show(self, height: int = 720) -> Any:
        """The map in a notebook, by whatever viewer is installed (`thresher.app` is ours).

        The page stands to the right of the data: it is found as a plug-in, not imported.
        """
        from importlib.metadata import entry_points

        for viewer in entry_points(group="thresher.viewer"):
            return viewer.load()(self, height)
        raise ThresherError("no viewer is installed", "install the package: `pip install thresher`")


def _checked_name(path: Path | str) -> Path:
    path = Path(path)
    if path.suffix != ".parquet":
        raise ThresherError(f"{path} does not end in .parquet", "a selection is a Parquet file")
    return path


def _filled(values: np.ndarray | None, n: int, missing: float, dtype: Any) -> np.ndarray:
    return np.full(n, missing, dtype) if values is None else np.asarray(values, dtype)
