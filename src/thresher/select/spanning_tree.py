"""The minimum spanning tree of mutual reachability: every DBSCAN clustering in one structure.

The mutual reachability of two points is max(core_i, core_j, d_ij). Two core points share a DBSCAN
cluster at eps if and only if a path of edges of weight at most eps joins them, so cutting the
minimum spanning tree at eps gives the clusters, for every eps.

All distances here are *squared*, because that is what scikit-learn compares. Its own HDBSCAN builds
the same tree in n² operations: ten times as long as `boruvka` for 50,000 points of a plane.
"""

from dataclasses import dataclass

import numpy as np

from thresher.select import graphs

LEAF = 12
LEAVES_AT_ONCE = 1024
BLOCKS_AT_ONCE = 4096
Edges = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Points u and v, int64, and squared weights."""


def mutual_reachability_tree(x: np.ndarray, core2: np.ndarray) -> Edges:
    """Return the n - 1 edges of x (n, d) float64."""
    n, d = x.shape
    # In many dimensions trees prune nothing, and Prim's loop is faster.
    if n > 1000 and (d <= 2 or (d <= 10 and n > 20_000)):
        return boruvka(x, core2)
    return prim(x, core2)


def prim(x: np.ndarray, core2: np.ndarray) -> Edges:
    """Run Prim's algorithm, computing distances as needed: n²·d operations, n·d memory."""
    n = len(x)
    left = np.arange(1, n)
    best = np.full(n - 1, np.inf)
    parent = np.zeros(n - 1, np.int64)
    u, v, weight = (np.empty(n - 1, t) for t in (np.int64, np.int64, np.float64))
    columns, core = x[1:].T.copy(), core2[1:].copy()
    now, now_x, now_core = 0, x[0], core2[0]
    for step in range(n - 1):
        # Summed in order, as in `core_distances.gather_squared`: equal distances, equal numbers.
        d2 = (columns[0] - now_x[0]) ** 2
        for column, value in zip(columns[1:], now_x[1:], strict=True):
            d2 += (column - value) ** 2
        np.maximum(d2, core, out=d2)
        np.maximum(d2, now_core, out=d2)
        closer = d2 < best
        best[closer] = d2[closer]
        parent[closer] = now
        at = int(np.argmin(best))
        u[step], v[step], weight[step] = parent[at], left[at], best[at]
        now, now_x, now_core = int(left[at]), columns[:, at].copy(), core[at]
        # Remove `at` by moving the last live point into its place.
        last = n - 2 - step
        for array in (left, best, parent, core):
            array[at] = array[last]
        columns[:, at] = columns[:, last]
        left, best, parent, core = left[:last], best[:last], parent[:last], core[:last]
        columns = columns[:, :last]
    return u, v, weight


@dataclass(frozen=True)
class _Level:
    """The nodes of one depth, a power of two, as slices of the points in tree order."""

    start: np.ndarray
    low: np.ndarray
    """(nodes, d), lower corner of the bounding box."""
    high: np.ndarray
    least: np.ndarray
    """(nodes,) smallest squared core distance."""
    most: np.ndarray


def boruvka(x: np.ndarray, core2: np.ndarray) -> Edges:
    """Run Borůvka's algorithm on a kd-tree, for many points in few dimensions; linear memory.

    Each round finds the lightest edge of every component to another one, and joins them. A pair of
    a leaf and a node is pruned if it cannot hold such an edge: both lie in one component, or their
    boxes are farther apart than the best edge so far. Everything is array operations, level by
    level, after the dual-tree algorithm of March, Ram and Gray (2010).
    """
    order, levels = _build(x, core2)
    search = _Search(x[order], core2[order], levels)
    n = len(x)
    part = np.arange(n)
    edges: list[Edges] = []
    while part.max() > 0:
        u, v, weight = _acyclic(part, *search.lightest(part))
        edges.append((order[u], order[v], weight))
        part = graphs.connected_parts(part[u], part[v], int(part.max()) + 1)[part]
    u, v, weight = (np.concatenate(column) for column in zip(*edges, strict=True))
    return u, v, weight


def _build(x: np.ndarray, core2: np.ndarray) -> tuple[np.ndarray, list[_Level]]:
    """Return the points in tree order and the levels; nodes split at the median of a side."""
    n = len(x)
    depth = max(0, int(np.ceil(np.log2(n / LEAF))))
    order = np.arange(n)
    levels = []
    for level in range(depth + 1):
        start = np.arange(1 << level) * n // (1 << level)
        low = np.minimum.reduceat(x[order], start)
        high = np.maximum.reduceat(x[order], start)
        if level < depth:
            size = np.diff(np.append(start, n))
            node = np.repeat(np.arange(1 << level), size)
            side = np.argmax(high - low, axis=1)
            order = order[np.lexsort((x[order, side[node]], node))]
        levels.append([start, low, high])
    core = core2[order]
    built = [
        _Level(s, lo, hi, np.minimum.reduceat(core, s), np.maximum.reduceat(core, s))
        for s, lo, hi in levels
    ]
    return order, built


class _Search:
    """Search for the lightest edge out of each component; points are in tree order."""

    def __init__(self, x: np.ndarray, core2: np.ndarray, levels: list[_Level]) -> None:
        self.x, self.core2, self.levels = x, core2, levels
        bounds = np.append(levels[-1].start, len(x))
        size = np.diff(bounds)
        # Leaves differ by one point; the shorter ones repeat their last, which is harmless.
        reach = np.minimum(np.arange(size.max())[None, :], size[:, None] - 1)
        self.members = bounds[:-1, None] + reach

    def lightest(self, part: np.ndarray) -> Edges:
        """Return per component points u inside and v outside, and the squared weight."""
        count = int(part.max()) + 1
        self.part = part
        self.weight = np.full(count, np.inf)
        self.u, self.v = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.bound = np.full(count, np.inf)
        """Upper bound of the weight, from whole boxes, before any edge is known."""
        self.first = [np.minimum.reduceat(part, level.start) for level in self.levels]
        self.last = [np.maximum.reduceat(part, level.start) for level in self.levels]
        leaves = np.arange(len(self.members))
        mixed = leaves[self.first[-1] != self.last[-1]]
        self._compare(mixed, mixed)
        for begin in range(0, len(leaves), LEAVES_AT_ONCE):
            self._descend(leaves[begin : begin + LEAVES_AT_ONCE])
        return self.u, self.v, self.weight

    def _descend(self, leaves: np.ndarray) -> None:
        """Descend the tree from its root for each of these leaves, pruning pairs."""
        q, r = leaves, np.zeros(len(leaves), np.int64)
        floor = self.levels[-1]
        for level in range(len(self.levels)):
            if level:
                q, r = np.repeat(q, 2), np.repeat(2 * r, 2) + np.tile([0, 1], len(r))
            node = self.levels[level]
            first, last = self.first[level][r], self.last[level][r]
            own = np.where(self.first[-1][q] == self.last[-1][q], self.first[-1][q], -1)
            q, r, own = _masked((first != own) | (last != own), q, r, own)
            apart = np.maximum(node.low[r] - floor.high[q], floor.low[q] - node.high[r])
            least = np.square(np.maximum(apart, 0)).sum(axis=1)
            least = np.maximum(least, np.maximum(floor.least[q], node.least[r]))
            whole = own >= 0
            wide = np.maximum(node.high[r] - floor.low[q], floor.high[q] - node.low[r])
            most = np.maximum(np.square(wide).sum(axis=1), np.maximum(floor.most[q], node.most[r]))
            np.minimum.at(self.bound, own[whole], most[whole])
            here = self.part[self.members]
            hope = np.minimum(self.bound, self.weight)[here[leaves]].max(axis=1)
            known = self.weight[here[leaves]].max(axis=1)
            at = q - leaves[0]
            # An edge as light as a known one is no gain; one as light as the bound may be it. Boxes
            # round differently from points, so a little slack keeps equal ones.
            slack = least * (1 - 1e-12)
            q, r = _masked((slack <= hope[at]) & (slack < known[at]), q, r)
        self._compare(q, r)

    def _compare(self, q: np.ndarray, r: np.ndarray) -> None:
        """Compare all points of leaves q with all points of leaves r, pair by pair."""
        for begin in range(0, len(q), BLOCKS_AT_ONCE):
            a = self.members[q[begin : begin + BLOCKS_AT_ONCE]]
            b = self.members[r[begin : begin + BLOCKS_AT_ONCE]]
            weight = np.zeros((len(a), a.shape[1], b.shape[1]))
            for column in self.x.T:
                weight += (column[a][:, :, None] - column[b][:, None, :]) ** 2
            np.maximum(weight, self.core2[a][:, :, None], out=weight)
            np.maximum(weight, self.core2[b][:, None, :], out=weight)
            weight[self.part[a][:, :, None] == self.part[b][:, None, :]] = np.inf
            best = weight.argmin(axis=2)
            lightest = np.take_along_axis(weight, best[:, :, None], axis=2)[:, :, 0].ravel()
            u, v = a.ravel(), np.take_along_axis(b, best, axis=1).ravel()
            own = self.part[u]
            better = lightest < self.weight[own]
            u, v, own, lightest = u[better], v[better], own[better], lightest[better]
            np.minimum.at(self.weight, own, lightest)
            (is_least,) = np.nonzero(lightest == self.weight[own])
            self.u[own[is_least]], self.v[own[is_least]] = u[is_least], v[is_least]


def _masked(mask: np.ndarray, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple(array[mask] for array in arrays)


def _acyclic(part: np.ndarray, u: np.ndarray, v: np.ndarray, weight: np.ndarray) -> Edges:
    """Return the chosen edges without those that close a cycle, which ties can cause."""
    a, b = part[u], part[v]
    count = int(part.max()) + 1
    key = np.minimum(a, b) * count + np.maximum(a, b)
    by = np.lexsort((weight, key))
    by = by[np.unique(key[by], return_index=True)[1]]
    by = by[np.argsort(weight[by], kind="stable")]
    # Ranks instead of weights: in a sparse matrix a weight of zero means no edge.
    ends = np.minimum(a, b)[by], np.maximum(a, b)[by]
    *_, ranks = graphs.spanning_tree(*ends, np.arange(1.0, len(by) + 1), count)
    kept = by[ranks.astype(np.int64) - 1]
    return u[kept], v[kept], weight[kept]
