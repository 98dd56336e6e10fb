"""Coordinates of the samples on the page's map, and the majority label around each of them."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from thresher.data.selection import Selection

NEIGHBOURS = 10
BLOCK = 100_000
"""Samples queried at once; bounds the memory needed for millions of samples."""


@dataclass(frozen=True)
class MapLayout:
    """Finite coordinates of every sample."""

    x: np.ndarray
    """(n,) float32."""
    y: np.ndarray
    """(n,) float32."""
    kind: Literal["map", "score"]
    """"map": coordinates of the filter; "score": a column per class with the score as height."""

    @property
    def xy(self) -> np.ndarray:
        """(n, 2) float64."""
        return np.stack([self.x, self.y], axis=1).astype(np.float64)


def map_layout(selection: Selection, classes: int) -> MapLayout:
    """Return the map of a selection, or a column per class if the filter makes no map."""
    x, y, n = selection.x, selection.y, len(selection.ids)
    if x is not None and y is not None and n and np.isfinite(x).all() and np.isfinite(y).all():
        return MapLayout(x.astype(np.float32), y.astype(np.float32), "map")
    # A golden-ratio sequence spreads the points of a column evenly and reproducibly.
    spread = (np.arange(n) * 0.6180339887498949) % 1.0
    score = finite_scores(selection.score).astype(np.float64)
    score_range = np.ptp(score) if n else 0.0
    even = np.arange(n) * 0.7548776662466927 % 1.0
    height = (score - score.min()) / score_range if score_range > 0 else even
    x = selection.labels + 0.1 + 0.8 * spread
    y = height * 0.6 * max(classes, 1)
    return MapLayout(x.astype(np.float32), y.astype(np.float32), "score")


def finite_scores(score: np.ndarray) -> np.ndarray:
    """Return scores as (n,) float32; NaN and -inf become the lowest finite one, inf the highest."""
    score = np.asarray(score, np.float32)
    finite = score[np.isfinite(score)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    return np.nan_to_num(score, nan=low, posinf=high, neginf=low)


def neighbourhood_labels(layout: MapLayout, labels: np.ndarray) -> np.ndarray:
    """Return the majority label among the ten nearest samples of each sample, (n,) int16.

    The sample itself is left out. Ties go to its own label, then to the smallest. Without a map
    every sample gets its own label. O(n log n).
    """
    n = len(labels)
    k = min(NEIGHBOURS, n - 1)
    if layout.kind != "map" or k < 1:
        return labels.astype(np.int16)
    from scipy.spatial import cKDTree

    tree = cKDTree(layout.xy)
    majority = np.empty(n, np.int16)
    # In the order of the tree, successive queries read the same memory: twice as fast for millions.
    for begin in range(0, n, BLOCK):
        rows = tree.indices[begin : begin + BLOCK]
        _, near = tree.query(tree.data[rows], k=k + 1, workers=-1)
        # Samples at the same coordinates come in any order, so the sample itself need not be the
        # first of them. If it is not even among these, one of them is left out instead.
        itself = near == rows[:, None]
        itself[~itself.any(axis=1), -1] = True
        majority[rows] = _majority(labels[near[~itself].reshape(-1, k)], labels[rows])
    return majority


def _majority(others: np.ndarray, own: np.ndarray) -> np.ndarray:
    best_rank = np.full(len(own), -1, np.int64)
    best = own
    for column in others.T:
        votes = 2 * (others == column[:, None]).sum(axis=1) + (column == own)
        # One number to compare: more votes first, then the smaller label.
        rank = (votes.astype(np.int64) << 32) - column
        better = rank > best_rank
        best_rank = np.where(better, rank, best_rank)
        best = np.where(better, column, best)
    return best
