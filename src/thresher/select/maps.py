"""Reductions cached beside the features, so that another eps does not need another map."""

import hashlib
import json
import logging
import zipfile
from pathlib import Path

import numpy as np

from thresher.environment import choose_device, versions
from thresher.errors import ThresherError
from thresher.paths import atomic_file
from thresher.select.reduction import MapOptions, Method, Reduction, Start

BLOCK_ROWS = 1 << 14
PACKAGES = ("numpy", "torch", "openTSNE", "umap-learn")
logger = logging.getLogger(__name__)


def cached_reduction(
    folder: Path | None,
    features: np.ndarray,
    options: MapOptions,
    method: Method = "tsne",
    start: Start = "pca",
) -> Reduction:
    """Return `reduce(features, options, method, start)`, cached in `folder`.

    The file name is a hash of the features' bytes, the settings and the versions. Nothing is
    stored without a folder, or if it is not writable.
    """
    # Here because it loads torch, which the options of filters do not need.
    from thresher.select.reduce import reduce

    if folder is None or method == "none":
        return reduce(features, options, method, start)
    settings = {
        "method": method,
        "components": options.components,
        "perplexity": options.perplexity,
        "seed": options.seed,
        "device": str(choose_device(options.device)),
        "start": start,
    }
    text = json.dumps([settings, versions(PACKAGES)], sort_keys=True)
    path = folder / f"{_digest(features, text)}.npz"
    cached = _read(path, len(features))
    if cached is not None:
        logger.info("Using the cached map %s", path)
        return cached
    reduction = reduce(features, options, method, start)
    try:
        with atomic_file(path) as temporary, open(temporary, "wb") as file:
            facts = {"kl": reduction.kl, "explained": reduction.explained, "settings": settings}
            np.savez(file, points=reduction.points, told=np.array(json.dumps(facts)))
    except ThresherError as error:
        logger.warning("The map is not cached: %s", error)
    return reduction


def _digest(features: np.ndarray, text: str) -> str:
    digest = hashlib.sha256(f"{features.shape} {features.dtype}".encode())
    for begin in range(0, len(features), BLOCK_ROWS):
        digest.update(np.ascontiguousarray(features[begin : begin + BLOCK_ROWS]).data)
    digest.update(text.encode())
    return digest.hexdigest()[:24]


def _read(path: Path, rows: int) -> Reduction | None:
    """Read a cached map; None if it is missing or damaged."""
    try:
        with np.load(path, allow_pickle=False) as file:
            points, facts = file["points"], json.loads(str(file["told"]))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None
    if len(points) != rows:
        return None
    return Reduction(points, facts["kl"], facts["explained"])
