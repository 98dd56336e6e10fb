"""Clustering within each class: HDBSCAN, and DBSCAN prepared once for every eps.

A point is noise at eps if and only if eps < t, where t has a closed form. With core_i the distance
from i to its min_samples-th neighbour, itself included,

    t_i = min(core_i, min_j max(d_ij, core_j))

because i is not noise once it is a core point or within eps of one. Only the first min_samples
neighbours of i can give less than core_i. So the share dropped at any eps is a lookup, the eps
that drops a given share is a quantile, and the clusters at any eps are a cut through the spanning
tree of mutual reachability (`spanning_tree.py`).

Results equal scikit-learn's DBSCAN on the same points in float64, including ties: distances are
compared as eps² with d², as its trees do, and border points go to the first cluster that reaches
them. Memory is linear in the number of points.
"""

from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np

from thresher.errors import InvalidValueError
from thresher.select.core_distances import gather_squared, reach, root
from thresher.select.graphs import connected_parts
from thresher.select.linked import can_link, linked_parts
from thresher.select.spanning_tree import mutual_reachability_tree

NOISE = -1
UNCLUSTERED = -2
Eps = float | np.ndarray


class ClassGraph:
    """The DBSCAN structure of points x (n, d) within each of their classes, `labels` (n,) int.

    The constructor costs a k-nearest-neighbour query, the first call of `clusters` a spanning
    tree; after that every answer takes milliseconds.

    Classes with fewer points than `min_samples` cannot be clustered (every point would be noise)
    and are kept whole. Their points have threshold 0 and cluster -2, and `small` lists them.
    """

    def __init__(self, x: np.ndarray, labels: np.ndarray, min_samples: int = 5) -> None:
        x = np.asarray(x)
        labels = np.asarray(labels)
        if x.ndim != 2 or len(x) != len(labels):
            raise InvalidValueError(f"x must be (n, d) for n labels, got {x.shape}, {labels.shape}")
        if min_samples < 1:
            message = f"min_samples must be at least 1, got {min_samples}"
            raise InvalidValueError(message, "", "min_samples")
        if not np.isfinite(x).all():
            raise InvalidValueError("x must be finite")
        self.min_samples = int(min_samples)
        self.labels = labels
        self.classes, rank = np.unique(labels, return_inverse=True)
        counts = np.bincount(rank, minlength=len(self.classes))
        self.small = [int(c) for c in self.classes[counts < self.min_samples]]
        # Private arrays are sorted by class, and within a class by the given order.
        self._order = np.argsort(rank, kind="stable")
        self._rank = rank[self._order]
        self._bounds = [0, *np.cumsum(counts).tolist()]
        self._x = np.ascontiguousarray(x[self._order], dtype=np.float64)
        n = len(x)
        self._core2 = np.full(n, np.inf)
        threshold2 = np.zeros(n)
        # No class that is clustered has fewer points than neighbours.
        self._near = np.zeros((n, min(self.min_samples, n)), np.int32)
        for begin, end in self._parts():
            near, core2, least = reach(self._x[begin:end], self.min_samples)
            self._near[begin:end] = near + begin
            self._core2[begin:end] = core2
            threshold2[begin:end] = least
        self._core = root(self._core2)
        self._threshold = root(threshold2)

    def __len__(self) -> int:
        return len(self._order)

    @cached_property
    def threshold(self) -> np.ndarray:
        """(n,) float64: a point is noise if and only if eps is below its threshold."""
        return self._back(self._threshold)

    @cached_property
    def core(self) -> np.ndarray:
        """(n,) float64: distance to the min_samples-th neighbour, itself included."""
        return self._back(self._core)

    def noise(self, eps: Eps) -> np.ndarray:
        """Return which points are noise, (n,) bool, at one eps or one per class of `classes`."""
        if np.ndim(eps) == 0:
            return self.threshold > eps
        return self._back(self._per_point(eps) < self._threshold)

    def clusters(self, eps: Eps) -> np.ndarray:
        """Return the cluster of each point, (n,) int32; -1 is noise, -2 a class too small.

        Clusters are numbered class by class, in scikit-learn's order.
        """
        per_point = self._per_point(eps)
        u, v, weight = self._tree
        alive = weight <= per_point[u]
        u, v = u[alive], v[alive]
        return self._numbered(connected_parts(u, v, len(self)), per_point)

    def clusters_once(self, eps: Eps) -> np.ndarray:
        """Return the same as `clusters` without a spanning tree: faster for a single eps."""
        per_point = self._per_point(eps)
        (cores,) = np.nonzero(self._core <= per_point)
        if not can_link(self._x[cores], per_point[cores]):
            return self.clusters(eps)
        # Other points are parts of their own, numbered after those of the core points.
        part = np.arange(len(self), 2 * len(self))
        part[cores] = linked_parts(self._x[cores], self._rank[cores], per_point[cores])
        return self._numbered(part, per_point)

    @property
    def prepared(self) -> bool:
        """Whether the spanning tree of `clusters` exists."""
        return "_tree" in self.__dict__

    def prepare(self) -> None:
        """Build the spanning tree of `clusters`; takes a second for 50,000 points."""
        _ = self._tree

    def _numbered(self, part: np.ndarray, per_point: np.ndarray) -> np.ndarray:
        """Number clusters as DBSCAN does, given the connected parts (n,) of the core points."""
        n, count = len(self), int(part.max(initial=-1)) + 1
        is_core = self._core <= per_point
        # Number parts by their first core point, in the order in which DBSCAN visits them.
        (cores,) = np.nonzero(is_core)
        first = np.full(count, n)
        first[part[cores[::-1]]] = cores[::-1]
        number = np.empty(count, np.int32)
        number[np.argsort(first, kind="stable")] = np.arange(count, dtype=np.int32)
        cluster = np.full(n, NOISE, np.int32)
        cluster[cores] = number[part[cores]]
        # A border point has fewer than min_samples points within eps: all are in its list.
        (border,) = np.nonzero(~is_core & (self._threshold <= per_point) & (self._threshold > 0))
        if len(border):
            near = self._near[border]
            d = root(gather_squared(self._x, border, near))
            joins = is_core[near] & (d <= per_point[border, None])
            cluster[border] = np.where(joins, cluster[near], n).min(axis=1)
        cluster[np.isin(self.classes, self.small)[self._rank]] = UNCLUSTERED
        return self._back(cluster)

    def curve(self, points: int = 512) -> tuple[np.ndarray, np.ndarray]:
        """Return eps, ascending from 0, and the exact share dropped at each; (m,), m ≤ points."""
        t, n = np.sort(self._threshold), len(self)
        if n == 0:
            return np.zeros(1), np.zeros(1)
        # Thresholds of points, evenly spaced in rank.
        at = np.unique(np.linspace(0, n - 1, min(points - 1, n)).round().astype(int))
        eps = np.unique(np.concatenate([[0.0], t[at]]))
        return eps, 1 - np.searchsorted(t, eps, side="right") / n

    def eps_for_share(self, share: float) -> float:
        """Return the eps that drops `share` of all points, as nearly as ties allow."""
        if not 0 <= share < 1:
            raise InvalidValueError(f"share must be in [0, 1), got {share}", "", "share")
        n = len(self)
        if n == 0:
            return 0.0
        target = share * n
        steps, dropped = self._levels
        # `dropped` falls with eps. The nearest to `target` is the last that drops as much, or the
        # one after it; if both are equally near, the larger eps, which keeps more.
        after = len(dropped) - int(np.searchsorted(dropped[::-1], target, side="left"))
        near = [at for at in (after, after - 1) if 0 <= at < len(steps)]
        return float(steps[min(near, key=lambda at: abs(dropped[at] - target))])

    def eps_knee(self) -> np.ndarray:
        """Return the knee of each class's sorted k-distance curve, (classes,) float64.

        The knee is the point farthest below the chord from the smallest to the largest core
        distance; 0 for small classes.
        """
        knee = np.zeros(len(self.classes))
        for rank, (begin, end) in enumerate(pairwise(self._bounds)):
            core = np.sort(self._core[begin:end])
            if len(core) >= self.min_samples:
                rise = (core - core[0]) / (core[-1] - core[0] or 1)
                knee[rank] = core[int(np.argmax(np.linspace(0, 1, len(core)) - rise))]
        return knee

    @cached_property
    def _levels(self) -> tuple[np.ndarray, np.ndarray]:
        """Every eps at which the noise changes, ascending, and the number of noise points there."""
        steps, counts = np.unique(self._threshold, return_counts=True)
        return steps, len(self) - np.cumsum(counts)

    @cached_property
    def _tree(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Edges (u, v) of every class's spanning tree, in sorted positions, and their weights."""
        parts = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))]
        for begin, end in self._parts():
            u, v, weight2 = mutual_reachability_tree(self._x[begin:end], self._core2[begin:end])
            parts.append((u + begin, v + begin, root(weight2)))
        u, v, weight = (np.concatenate(column) for column in zip(*parts, strict=True))
        return u, v, weight

    def _parts(self) -> list[tuple[int, int]]:
        """Return (begin, end) of each class large enough to cluster."""
        return [(b, e) for b, e in pairwise(self._bounds) if e - b >= self.min_samples]

    def _per_point(self, eps: Eps) -> np.ndarray:
        """Return eps of each point, (n,), in sorted positions."""
        values = np.asarray(eps, dtype=np.float64)
        if values.ndim == 0:
            return np.broadcast_to(values, (len(self),))
        if values.shape != self.classes.shape:
            several = f"one number or one per class ({len(self.classes)})"
            raise InvalidValueError(f"eps must be {several}, got {values.size}", "", "eps")
        return values[self._rank]

    def _back(self, values: np.ndarray) -> np.ndarray:
        """Reorder values from sorted positions to the order of the points."""
        out = np.empty_like(values)
        out[self._order] = values
        return out


def choose_eps(
    graph: ClassGraph, eps: float | Literal["auto"] | None = None, share: float | None = None
) -> Eps:
    """Return the radius: the one that drops `share`, or `eps`, or the knee of each class.

    One number for all classes, or (classes,) float64 in the order of `graph.classes`.
    """
    if share is not None:
        return graph.eps_for_share(share)
    return graph.eps_knee() if eps is None or eps == "auto" else float(eps)


def eps_per_sample(graph: ClassGraph, eps: Eps) -> np.ndarray:
    """Return the radius used for each sample, (n,) float64."""
    return np.broadcast_to(eps, graph.classes.shape)[np.searchsorted(graph.classes, graph.labels)]


def noise_score(graph: ClassGraph, eps: Eps) -> np.ndarray:
    """Return the smallest radius that keeps a sample over that used, (n,) float32; noise: > 1.

    Where the radius used is 0, as in a class of copies, noise has 1 plus the smallest radius.
    """
    used, threshold = eps_per_sample(graph, eps), graph.threshold
    without = np.where(threshold > 0, 1 + threshold, 0.0)
    score = np.divide(threshold, used, out=without, where=used > 0).astype(np.float32)
    # A threshold just above eps would be rounded to 1.
    least = np.nextafter(np.float32(1), np.float32(2))
    return np.where(graph.noise(eps), np.maximum(score, least), score)


def hdbscan(
    x: np.ndarray, labels: np.ndarray, min_samples: int = 5, min_cluster_size: int = 5
) -> np.ndarray:
    """Cluster x (n, d) within each class; return (n,) int32 as `ClassGraph.clusters` does."""
    from sklearn.cluster import HDBSCAN

    cluster = np.full(len(x), UNCLUSTERED, np.int32)
    used = 0
    for label in np.unique(labels):
        (rows,) = np.nonzero(labels == label)
        if len(rows) < max(min_samples, min_cluster_size, 2):
            continue
        model = HDBSCAN(min_cluster_size=min_cluster_size, min_samples=min_samples, copy=True)
        part = model.fit_predict(np.asarray(x[rows], dtype=np.float64))
        cluster[rows] = np.where(part >= 0, part + used, NOISE)
        used += int(part.max(initial=-1)) + 1
    return cluster
