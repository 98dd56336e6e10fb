"""Choose the samples with the highest scores."""

import numpy as np


def highest(score: np.ndarray, share: float, groups: np.ndarray | None = None) -> np.ndarray:
    """Mark the share of samples with the highest score; among equal scores the later samples.

    Args:
        score: (n,) float; NaN means unknown and is never marked.
        share: Share of the samples to mark, unknown ones counted.
        groups: (n,) int; mark the same share of each group.

    Returns:
        (n,) bool.
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
