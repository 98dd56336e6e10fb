"""A selection opened for looking at: its rows, its pack and what people decided so far.

One `Viewed` feeds the server and the static export alike, so that both show the same page.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from thresher.app import arrow
from thresher.app.layout import Layout, layout, places
from thresher.data.overrides import Override, OverrideLog, stacks, standing
from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.errors import ThresherError
from thresher.paths import SelectionPaths

REASON_LIMIT = 500
LOG_SHOWN = 200
IDS_SHOWN = 50


class UnknownSample(ThresherError):
    """An id that the selection does not hold."""


@dataclass(frozen=True)
class State:
    """The decisions in force: `keep` and `overruled`, (n,) bool; `undo`, `redo`: steps possible."""

    keep: np.ndarray
    overruled: np.ndarray
    version: int
    undo: int
    redo: int


class Viewed:
    """A selection, loaded without its overrides, beside the log of them."""

    def __init__(self, path: Path, pack: Pack | None = None) -> None:
        self.path = Path(path)
        self.selection = Selection.load(self.path, overrides=False)
        self.log = OverrideLog(SelectionPaths(self.path).overrides)
        self.pack = pack if pack is not None else _pack_of(self.selection)
        if len(self.selection.ids) and self.pack.fingerprint != self.selection.fingerprint:
            raise ThresherError(
                f"the selection {self.path} was made on a pack with the fingerprint "
                f"{self.selection.fingerprint[:8]}…, but {self.pack.name} has "
                f"{self.pack.fingerprint[:8]}…",
                "name the right pack with --data",
            )
        self.positions = self.pack.positions(self.selection.ids)
        if (self.positions < 0).any():
            raise ThresherError(
                f"the selection {self.path} names samples that {self.pack.name} does not hold",
                "name the right pack with --data",
            )
        self.kept: dict[str, Any] = {}
        """What others have worked out about this selection (neighbours), by their key."""
        self.state()

    def __len__(self) -> int:
        return len(self.selection.ids)

    @property
    def name(self) -> str:
        return self.path.stem

    @cached_property
    def row(self) -> dict[str, int]:
        return {id: n for n, id in enumerate(self.selection.ids)}

    @cached_property
    def layout(self) -> Layout:
        return layout(self.selection, len(self.pack.classes))

    def rows(self, ids: list[str]) -> np.ndarray:
        """Rows of the given ids, (n,) int64; an unknown one is refused."""
        unknown = next((id for id in ids if id not in self.row), None)
        if unknown is not None:
            raise UnknownSample(f'the selection {self.name} holds no sample "{unknown}"')
        return np.array([self.row[id] for id in ids], np.int64)

    # What is in force -------------------------------------------------------------------------

    def state(self) -> State:
        """Replay the log over the filter's own choice; cost: the number of overruled samples."""
        entries = self.log.read()
        keep = np.asarray(self.selection.keep, bool).copy()
        overruled = np.zeros(len(keep), bool)
        decisions = standing(entries)
        if decisions:
            rows = self.rows(list(decisions))
            keep[rows] = [entry.keep for entry in decisions.values()]
            overruled[rows] = True
        done, undone = stacks(entries)
        return State(keep, overruled, len(entries), len(done), len(undone))

    def decide(self, ids: list[str], keep: bool, reason: str) -> Override:
        """Keep or drop samples by hand; on the disk when this returns."""
        ids = list(dict.fromkeys(ids))
        if not ids:
            raise ThresherError("no sample is named", "select some first")
        if len(reason) > REASON_LIMIT:
            raise ThresherError(f"the reason is longer than {REASON_LIMIT} characters")
        base = np.asarray(self.selection.keep, bool)[self.rows(ids)]
        return self.log.decide(ids, keep, reason.strip(), base.tolist())

    def undo(self) -> Override | None:
        return self.log.undo(_Base(self))

    def redo(self) -> Override | None:
        return self.log.redo(_Base(self))

    # What the page is sent --------------------------------------------------------------------

    def info(self) -> dict[str, Any]:
        """All that the page needs to know before the points come; a few kilobytes."""
        labels = self.selection.labels
        classes = len(self.pack.classes)
        return {
            "name": self.name,
            "samples": len(self),
            "data": self.pack.name,
            "classes": self.pack.classes,
            "per_class": np.bincount(labels, minlength=classes)[:classes].tolist(),
            "image_shape": self.pack.image_shape,
            "layout": self.layout.kind,
            "clusters": bool((self.clusters >= -1).any()),
            "votes": self.selection.votes is not None,
            "scores": bool(np.ptp(self._scores) > 0) if len(self) else False,
            "method": str(self.selection.meta.get("method", "")),
            "settings": _plain(self.selection.meta),
        }

    def columns(self) -> dict[str, pa.Array]:
        """A row per sample, as the filter left it: what the map is drawn from."""
        selection = self.selection
        columns = {
            "id": pa.array(selection.ids, pa.string()),
            "label": pa.array(selection.labels, pa.int16()),
            "x": pa.array(self.layout.x),
            "y": pa.array(self.layout.y),
            "cluster": pa.array(self.clusters),
            "score": pa.array(self._scores),
            "keep": pa.array(np.asarray(selection.keep, bool)),
            "reason": pa.array(selection.reason, pa.string()).dictionary_encode(),
        }
        if selection.votes is not None:
            columns["votes"] = pa.array(np.nan_to_num(selection.votes.astype(np.float32)))
        return columns

    @cached_property
    def places(self) -> pa.Array:
        """Among whom each sample lies, int16; seconds for a million, so not one of `columns`."""
        return pa.array(places(self.layout, self.selection.labels), pa.int16())

    @cached_property
    def points(self) -> bytes:
        """`columns` as one Arrow IPC stream; made once."""
        return arrow.encode(self.columns())

    def state_bytes(self) -> bytes:
        """`state` as an Arrow IPC stream: two bitmasks, and the rest as metadata."""
        state = self.state()
        meta = {"version": state.version, "undo": state.undo, "redo": state.redo}
        masks = {"keep": pa.array(state.keep), "overruled": pa.array(state.overruled)}
        return arrow.encode(masks, meta)

    def sample(self, id: str) -> dict[str, Any]:
        """What is known of one sample, decisions included."""
        n = int(self.rows([id])[0])
        decision = standing(self.log.read()).get(id)
        return {
            "id": id,
            "row": n,
            "label": int(self.selection.labels[n]),
            "score": float(self._scores[n]),
            "cluster": int(self.clusters[n]),
            "filter": {"keep": bool(self.selection.keep[n]), "reason": self.selection.reason[n]},
            "keep": decision.keep if decision else bool(self.selection.keep[n]),
            "override": decision
            and {"keep": decision.keep, "reason": decision.reason, "time": decision.time},
        }

    def history(self) -> list[dict[str, Any]]:
        """The last lines of the log, newest first; long lists of ids are cut."""
        return [
            {
                "time": entry.time,
                "kind": entry.kind,
                "keep": entry.keep,
                "reason": entry.reason,
                "count": len(entry.ids),
                "ids": list(entry.ids[:IDS_SHOWN]),
            }
            for entry in reversed(self.log.read()[-LOG_SHOWN:])
        ]

    def image(self, id: str) -> tuple[bytes, str]:
        """An image of the selection as a file, and its media type."""
        data = self.pack.encoded(int(self.positions[self.rows([id])[0]]))
        return data, _media_type(data)

    @cached_property
    def clusters(self) -> np.ndarray:
        """(n,) int32; -1 noise, -2 not clustered."""
        cluster = self.selection.cluster
        if cluster is None:
            return np.full(len(self), -2, np.int32)
        return np.asarray(cluster, np.int32)

    @cached_property
    def _scores(self) -> np.ndarray:
        """(n,) float32, finite: an undefined score counts as the lowest, an infinite one as the
        highest finite one."""
        score = np.asarray(self.selection.score, np.float32).copy()
        finite = score[np.isfinite(score)]
        low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
        return np.nan_to_num(score, nan=float(low), posinf=float(high), neginf=float(low))


class _Base:
    """What the filter itself said of an id, looked up when asked."""

    def __init__(self, viewed: Viewed) -> None:
        self.viewed = viewed

    def __getitem__(self, id: str) -> bool:
        return bool(self.viewed.selection.keep[self.viewed.rows([id])[0]])


def _pack_of(selection: Selection) -> Pack:
    where = selection.meta.get("data")
    if not where:
        raise ThresherError(
            f"the selection {selection.path} does not say which pack it was made on",
            "name it with --data",
        )
    return Pack.open(where)


def _plain(meta: dict[str, Any]) -> dict[str, Any]:
    """The sidecar as strict JSON, without what would name places on this machine."""
    hidden = {"data", "features", "run", "path", "out"}
    shown = {key: value for key, value in meta.items() if key not in hidden}
    return json.loads(json.dumps(shown, default=str).replace("NaN", "null"))


def _media_type(data: bytes) -> str:
    for magic, kind in (
        (b"\x89PNG", "image/png"),
        (b"\xff\xd8", "image/jpeg"),
        (b"GIF8", "image/gif"),
        (b"BM", "image/bmp"),
    ):
        if data.startswith(magic):
            return kind
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return "application/octet-stream"
