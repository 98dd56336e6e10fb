"""The minimum spanning tree of mutual reachability: every DBSCAN clustering in one structure.

The mutual reachability of two points is max(core_i, core_j, d_ij). Two core points share a DBSCAN
cluster at eps if and only if a path of edges of weight at most eps joins them, so cutting the
minimum spanning tree at eps gives the clusters, for every eps.

All distances here are *squared*, because that is what scikit-learn compares.
"""

import numpy as np

from thresher.select.boruvka import boruvka


def mutual_reachability_tree(
    x: np.ndarray, core2: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return edges (u, v) int64 and squared weights, n - 1 of each, of x (n, d) float64.

    Uses a tree in a plane, and for many points in few dimensions. In many dimensions trees prune
    nothing, and Prim's loop is faster.
    """
    n, d = x.shape
    if n > 1000 and (d <= 2 or (d <= 10 and n > 20_000)):
        return boruvka(x, core2)
    return prim(x, core2)


def prim(x: np.ndarray, core2: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Run Prim's algorithm, computing distances as needed: n²·d operations, n·d memory."""
    n = len(x)
    columns = np.ascontiguousarray(x.T)
    left = np.arange(1, n)
    best = np.full(n - 1, np.inf)
    parent = np.zeros(n - 1, np.int64)
    u, v, weight = (np.empty(n - 1, t) for t in (np.int64, np.int64, np.float64))
    columns, core = columns[:, 1:].copy(), core2[1:].copy()
    now, now_x, now_core = 0, x[0], core2[0]
    for step in range(n - 1):
        d2 = squared_distances(columns, now_x)
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


def squared_distances(columns: np.ndarray, point: np.ndarray) -> np.ndarray:
    """Return squared distances (n,) from `point` (d,) to `columns` (d, n), summed in order."""
    total = (columns[0] - point[0]) ** 2
    for column, value in zip(columns[1:], point[1:], strict=True):
        total += (column - value) ** 2
    return total
