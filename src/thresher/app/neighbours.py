"""Nearest neighbours in the network's feature space, where the selection says which that is."""

from pathlib import Path

import numpy as np

from thresher.app.viewed import Viewed
from thresher.errors import ThresherError

BLOCK = 8192


def has_features(viewed: Viewed) -> bool:
    """Whether the selection names features that are there; they are opened when first used."""
    if "features" in viewed.kept:
        return viewed.kept["features"] is not None
    where = viewed.selection.meta.get("features")
    return isinstance(where, str) and len(viewed) > 0 and Path(where).exists()


def feature_neighbours(viewed: Viewed, id: str, k: int) -> list[dict[str, object]]:
    """The `k` samples of the selection most like `id` by cosine, nearest first.

    Exact, by reading every feature once: 50,000 × 512 float16 take tens of milliseconds.
    """
    features = _features(viewed)
    if features is None:
        return []
    array, at = features
    row = int(viewed.rows([id])[0])
    wanted = _unit(np.asarray(array[at[row]], np.float32)[None])[0]
    likeness = np.empty(len(at), np.float32)
    for begin in range(0, len(at), BLOCK):
        block = np.asarray(array[at[begin : begin + BLOCK]], np.float32)
        likeness[begin : begin + BLOCK] = _unit(block) @ wanted
    likeness[row] = -np.inf
    k = min(k, len(at) - 1)
    near = np.argpartition(-likeness, k)[:k] if k < len(at) - 1 else np.arange(len(at))
    near = near[np.argsort(-likeness[near], kind="stable")][:k]
    return [{"row": int(n), "likeness": float(likeness[n])} for n in near]


def _features(viewed: Viewed) -> tuple[np.ndarray, np.ndarray] | None:
    """The feature array and, per row of the selection, its row there; None without (all of) them.

    Found once per viewed selection and kept with it.
    """
    if "features" not in viewed.kept:
        viewed.kept["features"] = _open(viewed)
    return viewed.kept["features"]


def _open(viewed: Viewed) -> tuple[np.ndarray, np.ndarray] | None:
    where = viewed.selection.meta.get("features")
    if not isinstance(where, str) or not len(viewed):
        return None
    # Here, not at the top: it loads torch, which a page without features does not need.
    from thresher.models.features import Features

    try:
        features = Features.open(where)
    except (ThresherError, OSError):
        # Features are large and often deleted once the map is made: the page does without.
        return None
    row = {id: n for n, id in enumerate(features.ids)}
    at = np.array([row.get(id, -1) for id in viewed.selection.ids], np.int64)
    return None if (at < 0).any() else (features.array, at)


def _unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
