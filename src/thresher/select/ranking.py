"""Choose the samples with the highest scores."""

import numpy as np


def highest(score: np.ndarray, share: float, groups: np.ndarray | None = None) -> np.ndarray:
    """Mark the share of samples with the highest score, (n,) bool; of equal ones the later.

    A score (n,) of NaN means unknown: it counts, but is never marked. With `groups` (n,), mark the
    same share of each group.
    """
    marked = np.zeros(len(score), bool)
    parts = [np.arange(len(score))]
    if groups is not None:
        parts = [np.flatnonzero(groups == group) for group in np.unique(groups)]
    for rows in parts:
        count = round(share * len(rows))
        rows = rows[~np.isnan(score[rows])]
        order = rows[np.argsort(score[rows], kind="stable")]
        marked[order[max(0, len(order) - count) :]] = True
    return marked
