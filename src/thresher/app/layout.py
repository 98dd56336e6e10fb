"""Where each sample stands on the page's map, and among whom it stands there."""

from dataclasses import dataclass

import numpy as np

from thresher.data.selection import Selection

NEIGHBOURS = 10
BLOCK = 100_000
"""Samples looked up at once, so that a million of them need no more memory than this many."""


@dataclass(frozen=True)
class Layout:
    """`x`, `y`: (n,) float32, finite. `kind`: "map" (the filter's own) or "score" (made here)."""

    x: np.ndarray
    y: np.ndarray
    kind: str

    @property
    def xy(self) -> np.ndarray:
        """(n, 2) float64."""
        return np.stack([self.x, self.y], axis=1).astype(np.float64)


def layout(selection: Selection, classes: int) -> Layout:
    """The selection's map; without one, a column per class with the score as height.

    A filter that makes no map (random, EL2N) is still worth looking at.
    """
    x, y, n = selection.x, selection.y, len(selection.ids)
    if x is not None and y is not None and n and np.isfinite(x).all() and np.isfinite(y).all():
        return Layout(x.astype(np.float32), y.astype(np.float32), "map")
    # A golden-ratio sequence spreads the points of a column evenly, the same way every time.
    spread = (np.arange(n) * 0.6180339887498949) % 1.0
    score = np.nan_to_num(np.asarray(selection.score, np.float64), posinf=0.0, neginf=0.0)
    height = np.ptp(score) if n else 0.0
    even = np.arange(n) * 0.7548776662466927 % 1.0
    up = (score - score.min()) / height if height > 0 else even
    across = selection.labels + 0.1 + 0.8 * spread
    scale = max(classes, 1)
    return Layout(across.astype(np.float32), (up * 0.6 * scale).astype(np.float32), "score")


def places(where: Layout, labels: np.ndarray) -> np.ndarray:
    """The label that prevails around each sample, (n,) int16: in whose cluster it lies.

    The majority among its ten nearest neighbours on the map, itself left out; ties go to its own
    label, then to the smallest. Without a map a sample lies with its own. O(n log n).
    """
    n = len(labels)
    k = min(NEIGHBOURS, n - 1)
    if where.kind != "map" or k < 1:
        return labels.astype(np.int16)
    from scipy.spatial import cKDTree

    tree = cKDTree(where.xy)
    place = np.empty(n, np.int16)
    # In the tree's own order neighbouring queries read the same memory: twice as fast for millions.
    for begin in range(0, n, BLOCK):
        rows = tree.indices[begin : begin + BLOCK]
        _, near = tree.query(tree.data[rows], k=k + 1, workers=-1)
        # The first is the point itself (or a twin at the same place, which is as good).
        place[rows] = _prevailing(labels[near[:, 1:]], labels[rows])
    return place


def _prevailing(others: np.ndarray, own: np.ndarray) -> np.ndarray:
    """The commonest of each row of `others` (m, k); ties go to `own` (m,), then to the smallest."""
    best = np.full(len(own), -1, np.int64)
    found = own
    for column in others.T:
        votes = 2 * (others == column[:, None]).sum(axis=1) + (column == own)
        # One number to compare by: more votes, then the smaller label.
        rank = (votes.astype(np.int64) << 32) - column
        better = rank > best
        best = np.where(better, rank, best)
        found = np.where(better, column, found)
    return found
