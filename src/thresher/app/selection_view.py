"""A selection opened for review: its rows, its pack and the decisions made so far.

The server and the static export read the same `SelectionView`, so both show the same page.
"""

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from thresher.app import arrow
from thresher.app.feature_index import FeatureIndex
from thresher.app.map_layout import MapLayout, finite_scores, map_layout, neighbourhood_labels
from thresher.app.near_copies import NearCopies, near_copies
from thresher.app.records import (
    FilterDecision,
    LogEntry,
    OverrideDecision,
    ReviewState,
    SampleDetail,
    SelectionInfo,
)
from thresher.data.applied import check_not_applied
from thresher.data.images import decode, encode_png
from thresher.data.overrides import Override, OverrideLog, effective_overrides, undo_stacks
from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.data.selection_file import store_class_names
from thresher.errors import InvalidValueError, NotFoundError
from thresher.paths import SelectionPaths

REASON_LIMIT = 500
LOG_LIMIT = 200
LOG_IDS_LIMIT = 50
DBSCAN_METHODS = ("network", "")
CLASSES_LIMIT = 2**15
"""Labels travel to the page as int16."""


class UnknownSampleError(NotFoundError):
    """The selection does not contain an id."""


class SelectionView:
    """A selection without its overrides, beside the log of them.

    `pack` is by default the one named by the sidecar; a pack that the selection was not made on is
    refused.
    """

    def __init__(self, path: Path, pack: Pack | None = None) -> None:
        self.path = Path(path)
        self.selection = Selection.load(self.path, overrides=False)
        self.log = OverrideLog(SelectionPaths(self.path).overrides)
        self._final: tuple[list[Override], np.ndarray] | None = None
        self.pack = pack if pack is not None else _pack_of(self.selection)
        if len(self.pack.classes) > CLASSES_LIMIT:
            raise InvalidValueError(
                f"the page shows packs of up to {CLASSES_LIMIT:,} classes, but "
                f"{self.pack.name} has {len(self.pack.classes):,}"
            )
        if self.pack.fingerprint != self.selection.fingerprint:  # say so if that is why
            check_not_applied(Selection.load(self.path), self.pack)
        self.positions = np.empty(0, np.int64)
        if self.selection.ids:
            self.positions, _ = self.selection.positions(self.pack, "pass the right pack as `data`")
        self.state()

    def __len__(self) -> int:
        return len(self.selection.ids)

    @property
    def name(self) -> str:
        return self.path.stem

    @cached_property
    def row_by_id(self) -> dict[str, int]:
        """The row of each id; `data.ids.rows_by_id` would hash a million ids in every request."""
        return {id: row for row, id in enumerate(self.selection.ids)}

    @cached_property
    def layout(self) -> MapLayout:
        return map_layout(self.selection, len(self.pack.classes))

    @cached_property
    def copies(self) -> NearCopies:
        return near_copies(self.selection, self.pack)

    @cached_property
    def image_positions(self) -> np.ndarray:
        """Positions in the pack of all rows, and of the images outside that are near-copies."""
        return np.concatenate([self.positions, self.copies.positions])

    def rows(self, ids: list[str]) -> np.ndarray:
        """Return the rows of `ids`, (n,) int64; raise UnknownSampleError for an unknown one."""
        try:
            return np.array([self.row_by_id[id] for id in ids], np.int64)
        except KeyError as error:
            id = error.args[0]
            raise UnknownSampleError(
                f'the selection {self.name} contains no sample "{id}"'
            ) from None

    # Decisions --------------------------------------------------------------------------------

    def state(self) -> ReviewState:
        """Replay the log over the decisions of the filter; O(overridden samples)."""
        entries = self.log.read()
        keep = self.selection.keep.copy()
        overruled, labels = np.zeros(len(keep), bool), None
        before = self.selection.new_labels  # of the selections that this one combines
        if before is not None and (changed := self.selection.relabelled).any():
            labels = np.where(changed, before, -1).astype(np.int16)
        decisions = effective_overrides(entries)
        if decisions:
            rows = self.rows(list(decisions))
            keep[rows] = [entry.keep for entry in decisions.values()]
            overruled[rows] = True
            given = [-1 if entry.label is None else entry.label for entry in decisions.values()]
            if labels is None and max(given) >= 0:
                labels = np.full(len(keep), -1, np.int16)
            if labels is not None:
                labels[rows] = given
        done, undone = undo_stacks(entries)
        return ReviewState(keep, overruled, labels, len(entries), len(done), len(undone))

    def final_labels(self) -> np.ndarray:
        """Return the labels that people gave, else those of the pack, (n,) integers.

        They are kept until the log changes: a slider asks for them with every move.
        """
        entries, own = self.log.read(), self.selection.labels
        if self._final is None or self._final[0] != entries:
            given = self.state().labels
            self._final = entries, own if given is None else np.where(given < 0, own, given)
        return self._final[1]

    def decide(self, ids: list[str], keep: bool, reason: str, label: int | None = None) -> Override:
        """Keep, drop or relabel samples by hand; the log is on disk when this returns."""
        ids = list(dict.fromkeys(ids))
        if not ids:
            raise InvalidValueError("ids is empty", "select samples first", "ids")
        if len(reason) > REASON_LIMIT:
            raise InvalidValueError(
                f"reason must have at most {REASON_LIMIT} characters, got {len(reason)}",
                parameter="reason",
            )
        if reason != reason.encode(errors="ignore").decode():
            raise InvalidValueError(
                "reason must be valid Unicode, got a lone surrogate", parameter="reason"
            )
        rows = self.rows(ids)
        if label is None:
            return self.log.decide(ids, keep, reason.strip(), self.selection.keep[rows].tolist())
        if not keep:
            raise InvalidValueError("a sample with a new label is kept", "", "keep")
        classes = len(self.pack.classes)
        if not 0 <= label < classes:
            raise InvalidValueError(
                f"label must be one of the {classes} classes, got {label}", "", "label"
            )
        self._store_class_names(label)
        own = dict(zip(ids, self.selection.labels[rows].tolist(), strict=True))
        return self.log.relabel(own, label, reason.strip(), self)

    def _store_class_names(self, label: int) -> None:
        """Add names to a sidecar that does not have that of a label which a person gives.

        It may be of an older version, or of a pack that a class was appended to. Nothing is stored
        if earlier labels may be those of another order of classes.
        """
        known = self.selection.class_names
        if label >= len(known) and (known or self.state().labels is None):
            store_class_names(SelectionPaths(self.path), self.pack.classes)
            self.selection.class_names = tuple(self.pack.classes)

    def __getitem__(self, id: str) -> bool:
        """Return what the filter itself decided about a sample."""
        return bool(self.selection.keep[self.rows([id])[0]])

    # Data for the page ------------------------------------------------------------------------

    def info(self) -> SelectionInfo:
        labels, classes = self.final_labels(), len(self.pack.classes)
        return SelectionInfo(
            name=self.name,
            samples=len(self),
            data=self.pack.name,
            classes=self.pack.classes,
            per_class=np.bincount(labels, minlength=classes)[:classes].tolist(),
            image_shape=self.pack.image_shape,
            layout=self.layout.kind,
            by_dbscan=self.layout.kind == "map" and _by_dbscan(self.selection.meta),
            clusters=bool((self.clusters >= -1).any()),
            votes=self.selection.votes is not None,
            scores=bool(np.ptp(self._scores) > 0) if len(self) else False,
            method=str(self.selection.meta.get("method", "")),
            settings=_shareable(self.selection.meta),
        )

    def columns(self) -> dict[str, pa.Array]:
        """Return a row per sample as the filter left it."""
        selection = self.selection
        columns = {
            "id": pa.array(selection.ids, pa.string()),
            "label": pa.array(selection.labels, pa.int16()),
            "x": pa.array(self.layout.x),
            "y": pa.array(self.layout.y),
            "cluster": pa.array(self.clusters),
            "score": pa.array(self._scores),
            "keep": pa.array(selection.keep),
            "reason": pa.array(selection.reason, pa.string()).dictionary_encode(),
        }
        if selection.votes is not None:
            columns["votes"] = pa.array(np.nan_to_num(selection.votes.astype(np.float32)))
        if selection.suggested is not None:
            known = selection.suggested < len(self.pack.classes)
            columns["suggested"] = pa.array(np.where(known, selection.suggested, -1), pa.int16())
        return columns

    @cached_property
    def neighbourhood_labels(self) -> pa.Array:
        """The majority label around each sample, int16; takes seconds for a million samples."""
        return pa.array(neighbourhood_labels(self.layout, self.selection.labels), pa.int16())

    @cached_property
    def points(self) -> bytes:
        """`columns` as an Arrow IPC stream."""
        return arrow.encode(self.columns())

    def state_stream(self, moved: Override | None = None) -> bytes:
        """Return `state` as an Arrow IPC stream: two bitmasks, the numbers as metadata.

        With what was `moved` by an undo or redo in words, since it may be somebody else's.
        """
        state = self.state()
        meta: dict[str, Any] = {"version": state.version, "undo": state.undo, "redo": state.redo}
        if moved is not None:
            meta["moved"] = self.in_words(moved)
        masks = {"keep": pa.array(state.keep), "overruled": pa.array(state.overruled)}
        if state.labels is not None:
            masks["label"] = pa.array(state.labels)
        return arrow.encode(masks, meta)

    def sample(self, id: str) -> SampleDetail:
        row = int(self.rows([id])[0])
        entry = effective_overrides(self.log.read()).get(id)
        keep = bool(self.selection.keep[row])
        return SampleDetail(
            id=id,
            row=row,
            label=int(self.selection.labels[row]),
            score=float(self._scores[row]),
            cluster=int(self.clusters[row]),
            filter=FilterDecision(keep, self.selection.reason[row]),
            keep=entry.keep if entry else keep,
            override=None
            if entry is None
            else OverrideDecision(entry.keep, entry.reason, entry.time, entry.label),
        )

    def history(self) -> list[LogEntry]:
        """Return the last lines of the log, newest first, with long lists of ids cut."""
        return [
            LogEntry(
                *(e.time, e.kind, e.keep, e.label, e.reason),
                *(len(e.ids), list(e.ids[:LOG_IDS_LIMIT]), self.in_words(e)),
            )
            for e in reversed(self.log.read()[-LOG_LIMIT:])
        ]

    def in_words(self, entry: Override) -> str:
        """Return a decision in words, such as "dropped 4 samples"."""
        decision = "kept" if entry.keep else "dropped"
        if entry.label is not None:
            known = entry.label < len(self.pack.classes)
            decision = f"labelled as {self.pack.classes[entry.label] if known else '?'}:"
        count = len(entry.ids)
        return f"{decision} {entry.ids[0] if count == 1 else f'{count:,} samples'}"

    def image(self, id: str) -> tuple[bytes, str]:
        data = self.pack.shown(int(self.positions[self.rows([id])[0]]))
        kind = _media_type(data)
        # Browsers do not show other files that a pack may hold, such as TIFF.
        return (encode_png(decode(data)), "image/png") if kind is None else (data, kind)

    @property
    def has_features(self) -> bool:
        """Whether the sidecar names features that exist; does not open them.

        Features are large and often deleted after the map is made.
        """
        if "features" in self.__dict__:
            return self.features is not None
        path = self.selection.meta.get("features")
        return isinstance(path, str) and len(self) > 0 and Path(path).exists()

    @cached_property
    def features(self) -> FeatureIndex | None:
        """Search in the features named by the sidecar; None if they are missing."""
        if not self.has_features:
            return None
        return FeatureIndex.open(Path(self.selection.meta["features"]), self.selection.ids)

    @cached_property
    def clusters(self) -> np.ndarray:
        """(n,) int32; -1 noise, -2 not clustered."""
        cluster = self.selection.cluster
        if cluster is None:
            return np.full(len(self), -2, np.int32)
        return np.asarray(cluster, np.int32)

    @cached_property
    def _scores(self) -> np.ndarray:
        return finite_scores(self.selection.score)


def _pack_of(selection: Selection) -> Pack:
    path = selection.meta.get("data")
    if not path:
        raise InvalidValueError(
            f"the sidecar of {selection.path} does not name its pack", "pass the pack as `data`"
        )
    try:
        return Pack.open(path)
    except NotFoundError:
        if not Path(path).is_absolute():  # the name of a known data set, which can be got
            raise
        what = f"the pack of {selection.path} is no longer at {path}"
        raise NotFoundError(what, "pass the pack as `data`") from None


def _by_dbscan(meta: Mapping[str, Any]) -> bool:
    """Return whether DBSCAN made the selection of this sidecar, or it names no method."""
    settings = meta.get("settings")
    clustering = settings.get("cluster") if isinstance(settings, Mapping) else None
    return str(meta.get("method", "")) in DBSCAN_METHODS and clustering in (None, "dbscan")


def _shareable(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sidecar as strict JSON, without paths of this machine."""
    hidden = {"data", "features", "run", "path", "out"}
    shown = {key: value for key, value in meta.items() if key not in hidden}
    return json.loads(json.dumps(shown, default=str), parse_constant=lambda _: None)


def _media_type(data: bytes) -> str | None:
    """The media type of a file that browsers show; None for others."""
    magic = {b"\x89PNG": "png", b"\xff\xd8": "jpeg", b"GIF8": "gif", b"BM": "bmp"}
    kinds = [kind for start, kind in magic.items() if data.startswith(start)]
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        kinds = ["webp"]
    return f"image/{kinds[0]}" if kinds else None
