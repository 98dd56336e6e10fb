"""Choose the radius of DBSCAN, and score samples by it."""

from typing import Literal

import numpy as np

from thresher.select.cluster import ClassGraph


def choose_eps(
    graph: ClassGraph, eps: float | Literal["auto"] | None = None, share: float | None = None
) -> float | np.ndarray:
    """Return the radius: the one that drops `share`, or `eps`, or the knee of each class.

    One number for all classes, or (classes,) float64 in the order of `graph.classes`.
    """
    if share is not None:
        return graph.eps_for_share(share)
    return graph.eps_knee() if eps is None or eps == "auto" else float(eps)


def eps_per_sample(graph: ClassGraph, eps: float | np.ndarray) -> np.ndarray:
    """Return the radius used for each sample, (n,) float64."""
    return np.broadcast_to(eps, graph.classes.shape)[np.searchsorted(graph.classes, graph.labels)]


def noise_score(graph: ClassGraph, eps: float | np.ndarray) -> np.ndarray:
    """Return the smallest radius that keeps a sample over that used, (n,) float32; noise: > 1."""
    used = eps_per_sample(graph, eps)
    score = np.divide(graph.threshold, used, out=graph.threshold.copy(), where=used > 0)
    return score.astype(np.float32)
