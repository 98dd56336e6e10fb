"""The filter's knobs, live: exact DBSCAN on a prepared graph, and the simple rules beside it.

A preview is a bitmask and a few numbers. It changes nothing; `write` makes a new selection of it.
"""

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from thresher.app.selection_view import SelectionView
from thresher.data.overrides import OverrideLog, stacks
from thresher.data.selection import Selection
from thresher.errors import ThresherError, nearest
from thresher.paths import SelectionPaths
from thresher.select.cluster import ClassGraph
from thresher.select.filters.random import RandomFilter
from thresher.select.samples import Samples
from thresher.version import __version__

METHODS = {
    "network": "DBSCAN on the map",
    "score": "highest scores",
    "votes": "most votes to drop",
    "random": "at random",
}
MIN_SAMPLES = 5
MIN_SAMPLES_LIMIT = 200
GRAPHS_KEPT = 8
CURVE_POINTS = 160
TREE_LIMIT = 200_000
"""Above this many samples clusters are found anew for each eps: a spanning tree takes too long."""
CARRIED = ("data", "pack", "features", "run", "network")
"""What a new selection takes over from the sidecar of the one it was made from."""


@dataclass(frozen=True)
class Settings:
    """Where the knobs stand. `eps` decides where given, else `share` (of all samples) does."""

    method: str = "network"
    eps: float | None = None
    share: float | None = None
    min_samples: int = MIN_SAMPLES
    knee: bool = False
    """An eps per class, at the knee of its distance curve."""
    seed: int = 0

    @classmethod
    def parse(cls, given: Any) -> "Settings":
        """From a request's JSON; anything unknown, of a wrong type or out of range is refused."""
        if not isinstance(given, dict):
            raise ThresherError("the settings are not a JSON object")
        for name in given:
            if name not in cls.__dataclass_fields__:
                raise ThresherError(
                    f'there is no knob "{name}"', nearest(name, cls.__dataclass_fields__)
                )
        settings = cls(**given)
        if settings.method not in METHODS:
            raise ThresherError(f'there is no method "{settings.method}"')
        _number("eps", settings.eps, 0, 1e12)
        _number("share", settings.share, 0, 0.99)
        _whole("min_samples", settings.min_samples, 1, MIN_SAMPLES_LIMIT)
        _whole("seed", settings.seed, 0, 2**32 - 1)
        if not isinstance(settings.knee, bool):
            raise ThresherError("knee is not true or false")
        return settings


@dataclass(frozen=True)
class Preview:
    """What the knobs would drop: `keep` (n,) bool, `clusters` (n,) int32 where they were asked."""

    keep: np.ndarray
    clusters: np.ndarray | None
    numbers: dict[str, Any]


class Knobs:
    """Previews of one viewed selection; graphs are made once per `min_samples` and kept."""

    def __init__(self, viewed: SelectionView) -> None:
        self.viewed = viewed
        self._graphs: OrderedDict[int, ClassGraph] = OrderedDict()
        self._preparing: set[int] = set()
        self._lock = threading.Lock()

    @cached_property
    def methods(self) -> dict[str, str]:
        """Those that this selection has the columns for."""
        info = self.viewed.info()
        has = {
            "network": info.layout == "map",
            "score": info.scores,
            "votes": info.votes,
            "random": len(self.viewed) > 0,
        }
        return {name: text for name, text in METHODS.items() if has[name]}

    def describe(self, min_samples: int | None = None) -> dict[str, Any]:
        """What the sliders need: methods, where they start, and the curve from eps to share."""
        at = _setting(self.viewed.selection.meta, "min_samples", MIN_SAMPLES)
        k = _whole("min_samples", min_samples or int(at), 1, MIN_SAMPLES_LIMIT)
        methods = self.methods
        described: dict[str, Any] = {
            "methods": methods,
            "min_samples": k,
            "share": float(1 - self.viewed.selection.keep.mean()) if len(self.viewed) else 0.0,
        }
        if "network" in methods:
            graph = self.graph(k)
            eps, share = graph.curve(CURVE_POINTS)
            knee = graph.eps_knee()
            by_class = zip(graph.classes.tolist(), knee.tolist(), strict=True)
            described["curve"] = {"eps": eps.tolist(), "share": share.tolist()}
            described["knee"] = {str(label): value for label, value in by_class}
            stored = self.viewed.selection.meta.get("eps")
            described["eps"] = (
                float(stored)
                if isinstance(stored, int | float)
                else graph.eps_for_share(min(described["share"], 0.99))
            )
        return described

    def graph(self, min_samples: int) -> ClassGraph:
        with self._lock:
            if min_samples not in self._graphs:
                labels = self.viewed.selection.labels
                self._graphs[min_samples] = ClassGraph(self.viewed.layout.xy, labels, min_samples)
                while len(self._graphs) > GRAPHS_KEPT:
                    self._preparing.discard(self._graphs.popitem(last=False)[0])
            self._graphs.move_to_end(min_samples)
            return self._graphs[min_samples]

    def preview(self, settings: Settings, clusters: bool = False) -> Preview:
        """What these settings keep; milliseconds once the graph of `min_samples` is there."""
        begun = time.perf_counter()
        if settings.method not in self.methods:
            raise ThresherError(
                f'the selection {self.viewed.name} has nothing for the method "{settings.method}"'
            )
        numbers: dict[str, Any] = {"method": settings.method}
        found = None
        if settings.method == "network":
            graph = self.graph(settings.min_samples)
            eps = self._eps(graph, settings)
            keep = ~graph.noise(eps)
            found = self._clusters(graph, eps) if clusters else None
            numbers["eps"] = eps if isinstance(eps, float) else eps.tolist()
            numbers["min_samples"] = settings.min_samples
            numbers["small"] = graph.small
        else:
            keep = self._ranked(settings)
        numbers |= self._counts(keep)
        numbers["milliseconds"] = round(1e3 * (time.perf_counter() - begun), 3)
        return Preview(keep, found, numbers)

    def write(self, settings: Settings, name: str) -> Path:
        """A new selection beside the viewed one, with its map and the decisions that stand.

        Nothing is overwritten. `name` is a plain file name, with or without `.parquet`.
        """
        path = self.viewed.path.with_name(f"{_plain_name(name)}.parquet")
        preview = self.preview(settings, clusters=True)
        old = self.viewed.selection
        reason = {
            "network": "noise: DBSCAN on the map",
            "score": "score among the highest",
            "votes": "votes among the most",
            "random": "random",
        }[settings.method]
        chosen = {key: value for key, value in vars(settings).items() if value is not None}
        new = Selection(
            ids=old.ids,
            labels=old.labels,
            keep=preview.keep,
            score=self._score(settings, preview),
            reason=["" if kept else reason for kept in preview.keep.tolist()],
            fingerprint=old.fingerprint,
            x=old.x,
            y=old.y,
            cluster=old.cluster if preview.clusters is None else preview.clusters,
            votes=old.votes,
            meta={
                **{k: old.meta[k] for k in CARRIED if k in old.meta},
                "method": settings.method,
                "settings": chosen,
                "eps": preview.numbers.get("eps"),
                "made_from": self.viewed.path.name,
                "made_by": f"thresher view {__version__}",
                "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "dropped": preview.numbers["dropped"],
                "dropped_share": preview.numbers["share"],
                "kept": int(preview.keep.sum()),
            },
        ).save(path)
        assert new.path is not None
        log = OverrideLog(SelectionPaths(new.path).overrides)
        for entry in stacks(self.viewed.log.read())[0]:
            base = preview.keep[self.viewed.rows(list(entry.ids))].tolist()
            log.decide(entry.ids, entry.keep, entry.reason, base)
        return new.path

    def _clusters(self, graph: ClassGraph, eps: Any) -> np.ndarray:
        """The clusters at eps; the first answer does not wait for what makes later ones fast."""
        if graph.prepared:
            return graph.clusters(eps)
        with self._lock:
            if len(graph) <= TREE_LIMIT and graph.min_samples not in self._preparing:
                self._preparing.add(graph.min_samples)
                threading.Thread(target=graph.prepare, daemon=True, name="clusters").start()
        return graph.clusters_once(eps)

    def _score(self, settings: Settings, preview: Preview) -> np.ndarray:
        """(n,) float32: of DBSCAN, the least eps that keeps a sample over the eps used."""
        if settings.method != "network":
            return np.asarray(self.viewed.selection.score, np.float32)
        graph = self.graph(settings.min_samples)
        rank = np.searchsorted(graph.classes, graph.labels)
        used = np.broadcast_to(np.asarray(preview.numbers["eps"]), graph.classes.shape)[rank]
        score = np.divide(graph.threshold, used, out=graph.threshold.copy(), where=used > 0)
        return score.astype(np.float32)

    def _eps(self, graph: ClassGraph, settings: Settings) -> Any:
        if settings.knee:
            return graph.eps_knee()
        if settings.eps is not None:
            return float(settings.eps)
        return graph.eps_for_share(settings.share or 0.0)

    def _ranked(self, settings: Settings) -> np.ndarray:
        """Drop the highest `share`; of equal ones the later, as the filters of `select` do."""
        share, selection = settings.share or 0.0, self.viewed.selection
        if settings.method == "random":
            samples = Samples(selection.ids, selection.labels)
            return RandomFilter(drop=share, seed=settings.seed).fit(samples).keep_
        by = selection.votes if settings.method == "votes" else selection.score
        by = np.asarray(by, np.float64)
        order = np.argsort(by, kind="stable")
        # NaN sorts last: such a sample is not known to the filter, and stays.
        order = order[: len(by) - int(np.isnan(by).sum())]
        keep = np.ones(len(by), bool)
        keep[order[max(0, len(order) - round(share * len(by))) :]] = False
        return keep

    def _counts(self, keep: np.ndarray) -> dict[str, Any]:
        labels = self.viewed.selection.labels
        classes = len(self.viewed.pack.classes)
        dropped = np.bincount(labels[~keep], minlength=classes)[:classes]
        return {
            "dropped": int((~keep).sum()),
            "share": float((~keep).mean()) if len(keep) else 0.0,
            "dropped_per_class": dropped.tolist(),
        }


def _setting(meta: dict[str, Any], name: str, otherwise: Any) -> Any:
    settings = meta.get("settings")
    if isinstance(settings, dict) and settings.get(name) is not None:
        return settings[name]
    return meta.get(name, otherwise)


def _number(name: str, value: Any, low: float, high: float) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ThresherError(f"{name} is not a number from {low:g} to {high:g}")


def _whole(name: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ThresherError(f"{name} is not a whole number from {low} to {high}")
    return value


def _plain_name(name: Any) -> str:
    if not isinstance(name, str):
        raise ThresherError("the name is not a text")
    name = name.strip().removesuffix(".parquet")
    allowed = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.+=%")
    if not name or len(name) > 100 or name.startswith(".") or not set(name) <= allowed:
        raise ThresherError(
            f'"{name[:100]}" is no name for a selection',
            "use letters, digits, dots, dashes and underscores",
        )
    return name
