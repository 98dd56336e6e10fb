"""Live previews of a filter: exact DBSCAN on a prepared graph, and rules by score.

A preview is a bitmask and a few numbers, and changes nothing; `write` makes it a selection.
"""

import re
import threading
import time
from collections import OrderedDict
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from thresher.app.selection_view import SelectionView
from thresher.data.overrides import OverrideLog, undo_stacks
from thresher.errors import InvalidValueError
from thresher.options import from_mapping, option
from thresher.paths import SelectionPaths
from thresher.select.cluster import ClassGraph, choose_eps, noise_score
from thresher.select.filters.base import highest
from thresher.select.filters.random import RandomFilter
from thresher.version import __version__

METHODS = {
    "network": ("DBSCAN on the map", "noise: DBSCAN on the map"),
    "score": ("highest scores", "score among the highest"),
    "votes": ("most votes to drop", "votes among the most"),
    "random": ("at random", "random"),
}
"""Description of each method, and its reason to drop a sample."""
MIN_SAMPLES = 5
MIN_SAMPLES_LIMIT = 200
"""A graph holds as many neighbours of each point. A selection that was made with more is shown."""
MAX_SHARE = 0.99
GRAPHS_KEPT = 8
CURVE_POINTS = 160
TREE_LIMIT = 200_000
"""Above this many samples clusters are recomputed for each eps: a spanning tree takes too long."""
CARRIED = ("data", "pack", "features", "run", "network")
"""Entries that a new selection copies from the sidecar of the one it was made from."""


@dataclass(frozen=True, kw_only=True)
class PreviewSettings:
    """Settings of a preview. `eps` takes precedence over `share`."""

    method: Literal["network", "score", "votes", "random"] = "network"
    eps: float | None = option(None, ge=0, le=1e12)
    """Radius of DBSCAN for all classes."""
    share: float | None = option(None, ge=0, le=MAX_SHARE)
    """Share of all samples to drop."""
    min_samples: int = option(MIN_SAMPLES, ge=1)
    """Points within eps that make a core point; at most 200, or as many as the selection has."""
    knee: bool = False
    """Use one eps per class, at the knee of its k-distance curve."""
    seed: int = option(0, ge=0, le=2**32 - 1)
    """Seed of the method random."""


@dataclass(frozen=True)
class PreviewInfo:
    """What the sliders show; None where the selection has no map."""

    methods: dict[str, str]
    """Methods that this selection has the columns for, with a description each. The page starts
    with the first."""
    min_samples: int
    share: float
    """Share that the selection drops."""
    curve: dict[str, list[float]] | None = None
    """`eps` and the `share` dropped at it."""
    knee: dict[str, float] | None = None
    """Knee of each class's k-distance curve."""
    eps: float | None = None
    """Where the slider starts."""


@dataclass(frozen=True)
class PreviewNumbers:
    """Counts of a preview; None where the method does not use a value."""

    method: str
    dropped: int
    share: float
    dropped_per_class: list[int]
    eps: float | list[float] | None = None
    min_samples: int | None = None
    small: list[int] | None = None
    """Classes with too few samples to cluster."""
    milliseconds: float | None = None


@dataclass(frozen=True)
class Preview:
    """What the settings would drop."""

    keep: np.ndarray
    """(n,) bool."""
    clusters: np.ndarray | None
    """(n,) int32, if asked for."""
    numbers: PreviewNumbers
    eps: float | np.ndarray | None = None
    """Radius used by the method network: one for all classes, or one per class."""


class FilterPreviewer:
    """Previews of one selection. Graphs are made once per `min_samples` and cached."""

    def __init__(self, view: SelectionView) -> None:
        self.view = view
        self._graphs: OrderedDict[int, ClassGraph] = OrderedDict()
        self._preparing: set[int] = set()
        self._lock = threading.Lock()

    @cached_property
    def methods(self) -> dict[str, str]:
        """The methods that this selection has the columns for, its own first and DBSCAN last."""
        info = self.view.info()
        usable = (info.layout == "map", info.scores, info.votes, len(self.view) > 0)
        methods = [name for name, has in zip(METHODS, usable, strict=True) if has]
        own = "network" if info.by_dbscan else info.method
        if own == "network" and not info.by_dbscan:  # HDBSCAN, which takes no eps
            own = "score"
        methods.sort(key=lambda name: (name != own, name == "network"))
        return {name: METHODS[name][0] for name in methods}

    def describe(self, min_samples: int | None = None) -> PreviewInfo:
        """Return what the sliders need: methods, start values, and the curve from eps to share."""
        selection = self.view.selection
        min_samples = self._own_min_samples if min_samples is None else min_samples
        self._check(min_samples)
        share = float(1 - selection.keep.mean()) if len(self.view) else 0.0
        if "network" not in self.methods:
            return PreviewInfo(self.methods, min_samples, share)
        graph = self.graph(min_samples)
        radii, shares = graph.curve(CURVE_POINTS)
        knees = zip(graph.classes.tolist(), graph.eps_knee().tolist(), strict=True)
        eps = selection.meta.get("eps")
        if not isinstance(eps, int | float) or not self.view.info().by_dbscan:
            eps = graph.eps_for_share(min(share, MAX_SHARE))
        return PreviewInfo(
            self.methods,
            min_samples,
            share,
            curve={"eps": radii.tolist(), "share": shares.tolist()},
            knee={str(label): value for label, value in knees},
            eps=float(eps),
        )

    @cached_property
    def _own_min_samples(self) -> int:
        """The `min_samples` that the selection was made with."""
        meta = self.view.selection.meta
        options = meta.get("settings")
        k = options.get("min_samples") if isinstance(options, dict) else None
        k = meta.get("min_samples", MIN_SAMPLES) if k is None else k
        return from_mapping(PreviewSettings, {"min_samples": k}).min_samples

    def _check(self, min_samples: int) -> None:
        most = max(MIN_SAMPLES_LIMIT, self._own_min_samples)
        if min_samples > most:
            raise InvalidValueError(
                f"min_samples must be in [1, {most}], got {min_samples}", "", "min_samples"
            )

    def graph(self, min_samples: int) -> ClassGraph:
        """Return the DBSCAN structure of the map for this `min_samples`."""
        with self._lock:
            if min_samples not in self._graphs:
                labels = self.view.selection.labels
                self._graphs[min_samples] = ClassGraph(self.view.layout.xy, labels, min_samples)
                while len(self._graphs) > GRAPHS_KEPT:
                    self._preparing.discard(self._graphs.popitem(last=False)[0])
            self._graphs.move_to_end(min_samples)
            return self._graphs[min_samples]

    def preview(self, settings: PreviewSettings, clusters: bool = False) -> Preview:
        """Return what these settings keep; takes milliseconds once the graph is cached."""
        begin = time.perf_counter()
        method = settings.method
        if method not in self.methods:
            raise InvalidValueError(f'selection {self.view.name} cannot use the method "{method}"')
        self._check(settings.min_samples)
        facts: dict[str, Any] = {}
        labels, eps = None, None
        if method == "network":
            graph = self.graph(settings.min_samples)
            if settings.knee or settings.eps is not None:
                eps = choose_eps(graph, "auto" if settings.knee else settings.eps)
            else:
                eps = choose_eps(graph, share=settings.share or 0.0)
            keep = ~graph.noise(eps)
            labels = self._clusters(graph, eps) if clusters else None
            facts["eps"] = eps.tolist() if isinstance(eps, np.ndarray) else eps
            facts.update(min_samples=settings.min_samples, small=graph.small)
        else:
            keep = self._ranked(settings)
        classes = len(self.view.pack.classes)
        dropped = np.bincount(self.view.final_labels()[~keep], minlength=classes)[:classes]
        numbers = PreviewNumbers(
            method=method,
            dropped=int((~keep).sum()),
            share=float((~keep).mean()) if len(keep) else 0.0,
            dropped_per_class=dropped.tolist(),
            milliseconds=round(1e3 * (time.perf_counter() - begin), 3),
            **facts,
        )
        return Preview(keep, labels, numbers, eps)

    def write(self, settings: PreviewSettings, name: object) -> Path:
        """Write a new selection, with the map and overrides of this one, as `name` beside it."""
        path = self.view.path.with_name(f"{_plain_name(name)}.parquet")
        preview = self.preview(settings, clusters=True)
        old = self.view.selection
        score = np.asarray(old.score, np.float32)
        if preview.eps is not None:
            score = noise_score(self.graph(settings.min_samples), preview.eps)
        new = replace(
            old,
            class_names=tuple(self.view.pack.classes),
            keep=preview.keep,
            score=score,
            reason=["" if kept else METHODS[settings.method][1] for kept in preview.keep.tolist()],
            cluster=old.cluster if preview.clusters is None else preview.clusters,
            meta={
                **{k: old.meta[k] for k in CARRIED if k in old.meta},
                "method": settings.method,
                "settings": known_values(settings),
                "eps": preview.numbers.eps,
                "made_from": self.view.path.name,
                "made_by": f"thresher view {__version__}",
                "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "dropped": preview.numbers.dropped,
                "dropped_share": preview.numbers.share,
                "kept": int(preview.keep.sum()),
            },
        ).save(path)
        assert new.path is not None
        log = OverrideLog(SelectionPaths(new.path).overrides)
        for entry in undo_stacks(self.view.log.read())[0]:
            rows = self.view.rows(list(entry.ids))
            base = dict(zip(entry.ids, preview.keep[rows].tolist(), strict=True))
            if entry.label is None:
                log.decide(entry.ids, entry.keep, entry.reason, list(base.values()))
            else:
                own = dict(zip(entry.ids, old.labels[rows].tolist(), strict=True))
                log.relabel(own, entry.label, entry.reason, base)
        return new.path

    def _clusters(self, graph: ClassGraph, eps: float | np.ndarray) -> np.ndarray:
        """Return the clusters at eps; the first call does not wait for the spanning tree."""
        if graph.prepared:
            return graph.clusters(eps)
        with self._lock:
            if len(graph) <= TREE_LIMIT and graph.min_samples not in self._preparing:
                self._preparing.add(graph.min_samples)
                threading.Thread(target=graph.prepare, daemon=True, name="clusters").start()
        return graph.clusters_once(eps)

    def _ranked(self, settings: PreviewSettings) -> np.ndarray:
        share, selection = settings.share or 0.0, self.view.selection
        if settings.method == "random":
            random = RandomFilter(drop=share, seed=settings.seed)
            return random.fit(None, selection.labels).keep_
        ranks = selection.votes if settings.method == "votes" else selection.score
        return ~highest(np.asarray(ranks, np.float64), share)


def known_values(values: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that are not None."""
    return {key: value for key, value in asdict(values).items() if value is not None}


def _plain_name(name: object) -> str:
    plain = name.strip().removesuffix(".parquet") if isinstance(name, str) else ""
    if not re.fullmatch(r"[a-zA-Z0-9\-_+=%][a-zA-Z0-9\-_.+=%]{0,99}", plain):
        raise InvalidValueError(
            f"{str(name)[:100]!r} cannot be the name of a selection",
            "use letters, digits, dots, dashes and underscores",
        )
    return plain
