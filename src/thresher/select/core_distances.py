"""Core distances and noise thresholds of DBSCAN, in squared distances as scikit-learn has them."""

import numpy as np

TREE_DIMENSIONS = 15


def root(squared: np.ndarray) -> np.ndarray:
    """Return the smallest float64 r with r·r ≥ squared: eps ≥ r exactly if eps² ≥ squared."""
    r = np.sqrt(squared)
    with np.errstate(over="ignore"):
        for _ in range(2):
            below = np.nextafter(r, 0)
            r = np.where((r > 0) & np.isfinite(r) & (below * below >= squared), below, r)
        for _ in range(2):
            r = np.where(r * r < squared, np.nextafter(r, np.inf), r)
    return r


def reach(x: np.ndarray, min_samples: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return neighbours (n, min_samples), squared core distances and noise thresholds, (n,)."""
    everyone = np.arange(len(x))
    if min_samples == 1:
        return everyone[:, None], np.zeros(len(x)), np.zeros(len(x))
    near, d2 = _nearest(x, everyone, min_samples)
    core2 = d2.max(axis=1)
    # Among duplicates a point may be missing from its own list, but it reaches itself.
    threshold2 = np.minimum(core2, np.maximum(d2, core2[near]).min(axis=1))
    return near, core2, threshold2


def _nearest(x: np.ndarray, everyone: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k nearest of each point (n, k), itself included, and their squared distances."""
    if x.shape[1] <= TREE_DIMENSIONS:
        from scipy.spatial import cKDTree  # not before it is needed: it loads slowly

        near = cKDTree(x).query(x, k=k, workers=-1)[1]
        return near, gather_squared(x, everyone, near)
    # In many dimensions trees visit nearly every point, and blocked products are faster. Products
    # round, so a few more neighbours are queried and exact distances decide.
    from sklearn.neighbors import NearestNeighbors

    more = min(k + 8, len(x))
    index = NearestNeighbors(n_neighbors=more, algorithm="brute").fit(x)
    near = index.kneighbors(x, return_distance=False)
    d2 = gather_squared(x, everyone, near)
    order = np.argsort(d2, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(near, order, axis=1), np.take_along_axis(d2, order, axis=1)


def gather_squared(x: np.ndarray, rows: np.ndarray, near: np.ndarray) -> np.ndarray:
    """Return squared distances from x[rows] to their neighbours x[near]."""
    # Summed in order, as in `spanning_tree.prim`: equal distances, equal numbers.
    total = np.zeros(near.shape)
    for column in x.T:
        total += (column[rows, None] - column[near]) ** 2
    return total
