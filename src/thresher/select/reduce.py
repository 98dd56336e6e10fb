"""Reduce features to the points that are clustered: PCA, then t-SNE or UMAP.

On a CPU, t-SNE is openTSNE's optimiser on exact neighbours; on a CUDA device it is
`thresher.select.tsne`. The same seed gives the same bytes on the same machine.
"""

import time
from typing import get_args

import numpy as np
import torch

from thresher.environment import choose_device, core_count
from thresher.errors import InvalidValueError, MissingDependencyError, nearest
from thresher.progress import Bar, bar
from thresher.select.affinities import neighbours
from thresher.select.pca import fit_pca
from thresher.select.reduction import MapOptions, Method, Reduction, Start

EXAGGERATION = 12.0
EXAGGERATED_ITERATIONS = 250
ITERATIONS = 750
START_STD = 1e-4
JITTER = 0.01
RESIDENT_BYTES = 8 << 30


def reduce(
    features: np.ndarray,
    options: MapOptions,
    method: Method = "tsne",
    start: Start = "pca",
    iterations: int = ITERATIONS,
) -> Reduction:
    """Reduce features (n, d), any float type, possibly memory-mapped.

    "tsne" and "umap" give a map (n, 2) of the principal components, "pca" the components, "none"
    the features. t-SNE starts from the first two components, from which the seed hardly matters,
    or from a random cloud.
    """
    for name, value, known in (("method", method, Method), ("start", start, Start)):
        if value not in get_args(known):
            raise InvalidValueError(
                f'{name} cannot be "{value}"', nearest(value, get_args(known)), name
            )
    features = np.asanyarray(features)
    if features.ndim != 2 or len(features) < 3:
        raise InvalidValueError(
            f"features must be (n, d) with at least three rows, got {features.shape}",
            "",
            "features",
        )
    if method == "none":
        points = np.asarray(features, dtype=np.float32)
        if not np.isfinite(points).all():
            raise InvalidValueError("features must be finite", "", "features")
        return Reduction(points)
    device = choose_device(options.device)
    begin = time.perf_counter()
    resident: np.ndarray | torch.Tensor = features
    if device.type == "cuda" and features.nbytes <= RESIDENT_BYTES:
        # PCA reads the features three times; up to a few gigabytes they move to the device once.
        resident = torch.from_numpy(np.array(features)).to(device)
    pca = fit_pca(resident, options.components, options.seed, device)
    x = pca.project(resident)
    del resident
    seconds = {"pca": time.perf_counter() - begin}
    explained = float(pca.explained.sum())
    if method == "pca":
        return Reduction(x.cpu().numpy(), explained=explained, seconds=seconds)
    begin = time.perf_counter()
    kl: float | None = None
    if method == "umap":
        points = _umap(x.cpu().numpy(), options)
    elif device.type == "cuda":
        from thresher.select.tsne import tsne

        y, kl = tsne(
            x,
            torch.from_numpy(_initial(x, options.seed, start)).to(device),
            perplexity=options.perplexity,
            iterations=max(0, iterations - EXAGGERATED_ITERATIONS),
            early_iterations=min(EXAGGERATED_ITERATIONS, iterations),
            seed=options.seed,
        )
        kl = round(float(kl), 6)
        points = y.float().cpu().numpy()
    else:
        points, kl = open_tsne(x, _initial(x, options.seed, start), options, iterations)
    seconds[method] = time.perf_counter() - begin
    return Reduction(points, kl, explained, seconds)


def _initial(x: torch.Tensor, seed: int, start: Start) -> np.ndarray:
    """Return the points before the first step, (n, 2) float64 with a standard deviation of 1e-4.

    Either the first two columns of x, with a seeded jitter of a hundredth that separates copies,
    or a seeded random cloud.
    """
    if start == "random":
        return np.random.default_rng(seed).normal(0, START_STD, (len(x), 2))
    points = np.zeros((len(x), 2))
    points[:, : min(2, x.shape[1])] = x[:, :2].double().cpu().numpy()
    std = points[:, 0].std()
    points *= START_STD / std if std > 0 else 0.0
    return points + np.random.default_rng(seed).normal(0, START_STD * JITTER, points.shape)


def open_tsne(
    x: torch.Tensor, initial: np.ndarray, options: MapOptions, iterations: int = ITERATIONS
) -> tuple[np.ndarray, float]:
    """Map x (n, m) to (n, 2) float32 by openTSNE, from `initial` (n, 2); also return the KL."""
    from openTSNE import TSNE
    from openTSNE.affinity import PerplexityBasedNN
    from openTSNE.nearest_neighbors import PrecomputedNeighbors

    # Threads wait for each other at every iteration, spinning: 240 points on two busy cores took
    # 11 CPU seconds with two threads and 1.3 with one.
    jobs = max(1, min(core_count(), len(x) // 500))
    perplexity = options.perplexity
    with bar("t-SNE", iterations, "iterations") as shown:
        k = min(len(x) - 1, int(3 * perplexity))
        squared, near = neighbours(x, k)
        index = PrecomputedNeighbors(near.int().numpy(), squared.sqrt().numpy())
        affinities = PerplexityBasedNN(perplexity=perplexity, knn_index=index, n_jobs=jobs)
        model = TSNE(
            perplexity=perplexity,
            initialization=initial,
            early_exaggeration=EXAGGERATION,
            early_exaggeration_iter=min(EXAGGERATED_ITERATIONS, iterations),
            n_iter=max(0, iterations - EXAGGERATED_ITERATIONS),
            n_jobs=jobs,
            random_state=options.seed,
            callbacks=_Progress(shown),
            callbacks_every_iters=_Progress.EVERY,
        )
        embedding = model.fit(affinities=affinities)
    # openTSNE's threads sum the divergence in any order, so its last digits vary.
    kl = round(float(embedding.kl_divergence), 6)
    return np.asarray(embedding, dtype=np.float32), kl


class _Progress:
    """Callback of openTSNE; returning False lets the optimisation continue."""

    EVERY = 50

    def __init__(self, shown: Bar) -> None:
        self.shown = shown

    def __call__(self, iteration: int, error: float, embedding: np.ndarray) -> bool:
        self.shown.note(f"KL {error:.3f}")
        self.shown.advance(self.EVERY)
        return False


def _umap(x: np.ndarray, options: MapOptions) -> np.ndarray:
    try:
        import umap
    except ImportError:
        raise MissingDependencyError(
            "UMAP is not installed", "`pip install umap-learn`, or use `reduce` tsne"
        ) from None
    neighbours = max(2, min(len(x) - 1, round(options.perplexity / 2)))
    model = umap.UMAP(n_neighbors=neighbours, random_state=options.seed, n_jobs=1)
    return np.asarray(model.fit_transform(x), dtype=np.float32)
