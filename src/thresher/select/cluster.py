"""DBSCAN within each class, prepared once and answered for every eps.

Points that DBSCAN calls noise at eps are those with eps < t, where t has a closed form. With
core_i = distance to the min_samples-th neighbour of i, itself counted,

    t_i = min(core_i, min_j max(d_ij, core_j))

since i is not noise as soon as it is a core point or lies within eps of one. Only the first
min_samples neighbours of i can give less than core_i. So the share dropped at any eps is a
lookup, the eps that drops a given share is a quantile, and the clusters at any eps are a cut
through the spanning tree of mutual reachability (`spanning_tree.py`).

Answers equal scikit-learn's DBSCAN on the same points in float64, ties included: distances are
compared as eps² with d², as its trees do, and border points go to the first cluster that reaches
them. Memory is linear in the points.
"""

from collections.abc import Mapping
from functools import cached_property

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

from thresher.errors import ThresherError
from thresher.select.linked import can_link, linked_parts
from thresher.select.spanning_tree import mutual_reachability_tree

NOISE = -1
UNCLUSTERED = -2
TREE_DIMENSIONS = 15
Eps = float | np.ndarray | Mapping[int, float]


class ClassGraph:
    """The DBSCAN structure of points x (n, d) within each of their classes.

    Costs a k-nearest-neighbour query on construction, and the spanning tree on the first call
    of `clusters`; after that every answer takes milliseconds.

    Classes with fewer points than `min_samples` cannot be clustered (DBSCAN would call every
    point noise): they are kept whole. Their points have threshold 0 and cluster -2, and
    `small` names them.
    """

    def __init__(self, x: np.ndarray, labels: np.ndarray, min_samples: int = 5) -> None:
        x = np.asarray(x)
        labels = np.asarray(labels)
        if x.ndim != 2 or len(x) != len(labels):
            raise ThresherError(
                f"points {x.shape} and labels {labels.shape} do not belong together",
                "give one row of coordinates per label",
            )
        if min_samples < 1:
            raise ThresherError(f"min_samples is {min_samples}", "it must be at least 1")
        if not np.isfinite(x).all():
            raise ThresherError("some points have coordinates that are not finite numbers")
        self.min_samples = int(min_samples)
        self.labels = labels
        self.classes, rank = np.unique(labels, return_inverse=True)
        counts = np.bincount(rank, minlength=len(self.classes))
        self.small = [int(c) for c in self.classes[counts < self.min_samples]]
        # Inside, points stand class by class, each class in its own order: sorted positions.
        self._order = np.argsort(rank, kind="stable")
        self._rank = rank[self._order]
        self._bounds = np.concatenate([[0], np.cumsum(counts)])
        self._x = np.ascontiguousarray(x[self._order], dtype=np.float64)
        n = len(x)
        self._core2 = np.full(n, np.inf)
        threshold2 = np.zeros(n)
        self._near = np.zeros((n, self.min_samples), np.int32)
        for begin, end in self._parts():
            near, core2, least = _reach(self._x[begin:end], self.min_samples)
            self._near[begin:end] = near + begin
            self._core2[begin:end] = core2
            threshold2[begin:end] = least
        self._core = root(self._core2)
        self._threshold = root(threshold2)

    def __len__(self) -> int:
        return len(self._order)

    @cached_property
    def threshold(self) -> np.ndarray:
        """(n,) float64: a point is noise if and only if eps < its threshold."""
        return self._back(self._threshold)

    @cached_property
    def core(self) -> np.ndarray:
        """(n,) float64: distance to the min_samples-th neighbour, itself counted."""
        return self._back(self._core)

    def noise(self, eps: Eps) -> np.ndarray:
        """(n,) bool: what DBSCAN at eps calls noise. eps: one number, or one per class (an array
        in the order of `classes`, or a mapping from the class)."""
        if not isinstance(eps, Mapping) and np.ndim(eps) == 0:
            return self.threshold > eps
        return self._back(self._per_point(eps) < self._threshold)

    def share(self, eps: Eps) -> float:
        """The share of points that are noise at eps."""
        return float((self._per_point(eps) < self._threshold).mean()) if len(self) else 0.0

    def clusters(self, eps: Eps) -> np.ndarray:
        """(n,) int32: clusters numbered across classes (those of the first class first, each
        class in scikit-learn's order); -1 is noise, -2 a class too small to be clustered."""
        per_point = self._per_point(eps)
        n = len(self)
        u, v, weight = self._tree
        alive = weight <= per_point[u]
        u, v = u[alive], v[alive]
        ones = np.ones(len(u), np.int8)
        part = connected_components(coo_array((ones, (u, v)), shape=(n, n)), directed=False)[1]
        return self._numbered(part, per_point)

    def clusters_once(self, eps: Eps) -> np.ndarray:
        """The same as `clusters`, faster where only one eps is asked for: no spanning tree."""
        per_point = self._per_point(eps)
        (cores,) = np.nonzero(self._core <= per_point)
        if not can_link(self._x[cores], per_point[cores]):
            return self.clusters(eps)
        # Points that are no core points stand alone, after all parts.
        part = np.arange(len(self), 2 * len(self))
        part[cores] = linked_parts(self._x[cores], self._rank[cores], per_point[cores])
        return self._numbered(part, per_point)

    @property
    def prepared(self) -> bool:
        """Whether `clusters` has its spanning tree, and answers in milliseconds."""
        return "_tree" in self.__dict__

    def prepare(self) -> None:
        """Make the spanning tree that `clusters` cuts; a second for 50,000 points."""
        _ = self._tree

    def _numbered(self, part: np.ndarray, per_point: np.ndarray) -> np.ndarray:
        """Clusters as DBSCAN numbers them, from the connected parts (n,) of the core points."""
        n = len(self)
        count = int(part.max(initial=-1)) + 1
        is_core = self._core <= per_point
        # Number the parts that hold core points by their first core point, as DBSCAN meets them.
        (cores,) = np.nonzero(is_core)
        first = np.full(count, n)
        first[part[cores[::-1]]] = cores[::-1]
        number = np.empty(count, np.int32)
        number[np.argsort(first, kind="stable")] = np.arange(count, dtype=np.int32)
        found = np.full(n, NOISE, np.int32)
        found[cores] = number[part[cores]]
        # A border point has fewer than min_samples points within eps, so all are in its list.
        (border,) = np.nonzero(~is_core & (self._threshold <= per_point) & (self._threshold > 0))
        if len(border):
            near = self._near[border]
            d = root(_gather_squared(self._x, border, near))
            e = per_point[border, None]
            joins = is_core[near] & (d <= e)
            found[border] = np.where(joins, found[near], n).min(axis=1)
        for rank, (begin, end) in enumerate(zip(self._bounds, self._bounds[1:], strict=False)):
            if int(self.classes[rank]) in self.small:
                found[begin:end] = UNCLUSTERED
        return self._back(found)

    def curve(self, points: int = 512) -> tuple[np.ndarray, np.ndarray]:
        """The share dropped against eps: both (m,), eps ascending from 0, m ≤ points.

        Exact at the eps it names: they are thresholds of points, evenly spaced in rank.
        """
        t = np.sort(self._threshold)
        n = len(t)
        if n == 0:
            return np.zeros(1), np.zeros(1)
        at = np.unique(np.linspace(0, n - 1, min(points - 1, n)).round().astype(int))
        eps = np.unique(np.concatenate([[0.0], t[at]]))
        return eps, 1 - np.searchsorted(t, eps, side="right") / n

    def eps_for_share(self, share: float) -> float:
        """The eps that drops `share` of all points, as nearly as ties allow; never all of them."""
        if not 0 <= share < 1:
            raise ThresherError(f"a share of {share} cannot be dropped", "choose one in [0, 1)")
        n = len(self)
        if n == 0:
            return 0.0
        want = share * n
        steps, dropped = self._levels
        # `dropped` falls with eps. The nearest to `want` is the last that drops as much or the one
        # after it; of equally near ones take the larger eps, which keeps more.
        after = len(dropped) - int(np.searchsorted(dropped[::-1], want, side="left"))
        near = [at for at in (after, after - 1) if 0 <= at < len(steps)]
        return float(steps[min(near, key=lambda at: abs(dropped[at] - want))])

    def eps_knee(self) -> np.ndarray:
        """Per class, the knee of its sorted k-distance curve: the point farthest below the chord
        from the least to the greatest core distance. (classes,) float64; 0 for small classes."""
        found = np.zeros(len(self.classes))
        for rank, (begin, end) in enumerate(zip(self._bounds, self._bounds[1:], strict=False)):
            core = np.sort(self._core[begin:end])
            if len(core) < self.min_samples:
                continue
            rise = core[-1] - core[0]
            if rise == 0:
                found[rank] = core[-1]
                continue
            along = np.linspace(0, 1, len(core))
            found[rank] = core[int(np.argmax(along - (core - core[0]) / rise))]
        return found

    @cached_property
    def _levels(self) -> tuple[np.ndarray, np.ndarray]:
        """Every eps at which the noise changes, ascending, and how many are noise there."""
        steps, counts = np.unique(self._threshold, return_counts=True)
        return steps, len(self) - np.cumsum(counts)

    @cached_property
    def _tree(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Edges of every class's spanning tree, in sorted positions, with their weights."""
        parts = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))]
        for begin, end in self._parts():
            u, v, weight2 = mutual_reachability_tree(self._x[begin:end], self._core2[begin:end])
            parts.append((u + begin, v + begin, root(weight2)))
        u, v, weight = (np.concatenate(column) for column in zip(*parts, strict=True))
        return u, v, weight

    def _parts(self) -> list[tuple[int, int]]:
        """(begin, end) of each class large enough to be clustered."""
        bounds = zip(self._bounds, self._bounds[1:], strict=False)
        return [(int(b), int(e)) for b, e in bounds if e - b >= self.min_samples]

    def _per_point(self, eps: Eps) -> np.ndarray:
        """eps of each point's class, (n,), in sorted positions."""
        if isinstance(eps, Mapping):
            missing = [int(c) for c in self.classes if int(c) not in eps]
            if missing:
                raise ThresherError(f"eps names no value for class {missing[0]}")
            eps = np.array([eps[int(c)] for c in self.classes])
        values = np.asarray(eps, dtype=np.float64)
        if values.ndim == 0:
            return np.broadcast_to(values, (len(self),))
        if values.shape != self.classes.shape:
            raise ThresherError(
                f"eps has {values.size} values for {len(self.classes)} classes",
                "give one number, or one per class",
            )
        return values[self._rank]

    def _back(self, values: np.ndarray) -> np.ndarray:
        """From sorted positions to the order in which the points were given."""
        out = np.empty_like(values)
        out[self._order] = values
        return out


def hdbscan(
    x: np.ndarray, labels: np.ndarray, min_samples: int = 5, min_cluster_size: int = 5
) -> np.ndarray:
    """scikit-learn's HDBSCAN within each class: (n,) int32, numbered as in `ClassGraph`."""
    from sklearn.cluster import HDBSCAN

    found = np.full(len(x), UNCLUSTERED, np.int32)
    used = 0
    for label in np.unique(labels):
        (here,) = np.nonzero(labels == label)
        if len(here) < max(min_samples, min_cluster_size, 2):
            continue
        model = HDBSCAN(min_cluster_size=min_cluster_size, min_samples=min_samples, copy=True)
        part = model.fit_predict(np.asarray(x[here], dtype=np.float64))
        found[here] = np.where(part >= 0, part + used, NOISE)
        used += int(part.max(initial=-1)) + 1
    return found


def root(squared: np.ndarray) -> np.ndarray:
    """The least float64 r with r·r ≥ squared, so that eps ≥ r exactly where eps² ≥ squared."""
    r = np.sqrt(squared)
    with np.errstate(over="ignore"):
        for _ in range(2):
            below = np.nextafter(r, 0)
            r = np.where((r > 0) & np.isfinite(r) & (below * below >= squared), below, r)
        for _ in range(2):
            r = np.where(r * r < squared, np.nextafter(r, np.inf), r)
    return r


def _reach(x: np.ndarray, min_samples: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of one class: its neighbours (n, min_samples) itself included, core distances and noise
    thresholds, both squared."""
    everyone = np.arange(len(x))
    if min_samples == 1:
        return everyone[:, None], np.zeros(len(x)), np.zeros(len(x))
    near, d2 = _nearest(x, everyone, min_samples)
    core2 = d2.max(axis=1)
    # Among duplicates a point may be missing from its own list; it reaches itself all the same.
    threshold2 = np.minimum(core2, np.maximum(d2, core2[near]).min(axis=1))
    return near, core2, threshold2


def _nearest(x: np.ndarray, everyone: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest of each point (n, k), itself included, and their squared distances."""
    if x.shape[1] <= TREE_DIMENSIONS:
        near = cKDTree(x).query(x, k=k, workers=-1)[1]
        return near, _gather_squared(x, everyone, near)
    # Trees see nearly every point in many dimensions: products of blocks are faster. They round,
    # so a few more are asked for, and the distances themselves decide.
    from sklearn.neighbors import NearestNeighbors

    more = min(k + 8, len(x))
    index = NearestNeighbors(n_neighbors=more, algorithm="brute").fit(x)
    near = index.kneighbors(x, return_distance=False)
    d2 = _gather_squared(x, everyone, near)
    order = np.argsort(d2, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(near, order, axis=1), np.take_along_axis(d2, order, axis=1)


def _gather_squared(x: np.ndarray, rows: np.ndarray, near: np.ndarray) -> np.ndarray:
    """Squared distances from x[rows] to their neighbours x[near], summed dimension by dimension
    as in `spanning_tree.squared_distances`, so that equal distances are equal numbers."""
    total = np.zeros(near.shape)
    for column in x.T:
        total += (column[rows, None] - column[near]) ** 2
    return total
