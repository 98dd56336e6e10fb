"""HDBSCAN within each class."""

import numpy as np

from thresher.select.cluster import NOISE, UNCLUSTERED


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
