"""Reductions kept beside the features they came from: another eps needs no other map."""

import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from thresher.environment import versions
from thresher.errors import ThresherError
from thresher.paths import atomic_file
from thresher.progress import say
from thresher.select.reduce import Reduction

BLOCK_ROWS = 1 << 14
PACKAGES = ("numpy", "torch", "openTSNE", "umap-learn")


def kept_reduction(
    folder: Path | None,
    features: np.ndarray,
    settings: dict[str, Any],
    make: Callable[[], Reduction],
) -> Reduction:
    """The reduction of these features with these settings, read from `folder` or made and kept.

    The name is a hash of the features' bytes, the settings and the versions. Without a folder, or
    where it may not be written, nothing is kept.
    """
    if folder is None:
        return make()
    path = folder / f"{_key(features, settings)}.npz"
    found = _read(path, len(features))
    if found is not None:
        say(f"the map is taken from {path}")
        return found
    made = make()
    try:
        with atomic_file(path) as temporary, open(temporary, "wb") as file:
            told = json.dumps({"kl": made.kl, "explained": made.explained, "settings": settings})
            np.savez(file, points=made.points, told=np.array(told))
    except ThresherError as error:
        say(f"the map is not kept: {error}")
    return made


def _key(features: np.ndarray, settings: dict[str, Any]) -> str:
    digest = hashlib.sha256(f"{features.shape} {features.dtype}".encode())
    for begin in range(0, len(features), BLOCK_ROWS):
        digest.update(np.ascontiguousarray(features[begin : begin + BLOCK_ROWS]).data)
    digest.update(json.dumps([settings, versions(PACKAGES)], sort_keys=True).encode())
    return digest.hexdigest()[:24]


def _read(path: Path, rows: int) -> Reduction | None:
    """A kept map; a damaged one is as good as none."""
    try:
        with np.load(path, allow_pickle=False) as file:
            points, told = file["points"], json.loads(str(file["told"]))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None
    if len(points) != rows:
        return None
    return Reduction(points, told["kl"], told["explained"])
