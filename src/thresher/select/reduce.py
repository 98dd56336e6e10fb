"""From features to the points that are clustered: PCA, then t-SNE to a map.

On a CPU t-SNE is openTSNE's optimiser on neighbours of ours; on a CUDA device it is
`thresher.select.tsne`. Perplexity 30, a PCA start and an early exaggeration of 12, as usual. The
same seed gives the same bytes on the same machine.
"""

import time
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch

from thresher.environment import choose_device, core_count
from thresher.errors import ThresherError, nearest
from thresher.progress import Bar, bar
from thresher.select.affinities import neighbours
from thresher.select.pca import fit_pca

Method = Literal["tsne", "pca", "none", "umap"]
Start = Literal["pca", "random"]
METHODS = ("tsne", "pca", "none", "umap")
EXAGGERATION = 12.0
EXAGGERATED_ITERATIONS = 250
ITERATIONS = 750
START_STD = 1e-4
JITTER = 0.01
RESIDENT_BYTES = 8 << 30


@dataclass(frozen=True)
class Reduction:
    """Points (n, m) float32 to cluster, and how they came about."""

    points: np.ndarray
    kl: float | None = None
    """Kullback–Leibler divergence of the t-SNE map."""
    explained: float | None = None
    """Share of the variance that the principal components keep."""
    seconds: dict[str, float] = field(default_factory=dict)


def reduce(
    features: np.ndarray,
    method: Method = "tsne",
    components: int = 50,
    perplexity: float = 30.0,
    seed: int = 0,
    device: str = "auto",
    start: Start = "pca",
    iterations: int = ITERATIONS,
) -> Reduction:
    """Reduce features (n, d), any float type, possibly memory-mapped.

    `tsne` and `umap` give a map (n, 2) of the principal components; `pca` gives those
    components; `none` gives the features themselves. t-SNE starts from the first two components,
    where the seed hardly matters, or from a random cloud, where it does.
    """
    if method not in METHODS:
        raise ThresherError(f'there is no reduction "{method}"', nearest(method, METHODS))
    features = np.asarray(features) if not isinstance(features, np.memmap) else features
    if features.ndim != 2 or len(features) < 3:
        raise ThresherError(
            f"features of shape {features.shape} cannot be reduced", "give at least three rows"
        )
    if method == "none":
        points = np.asarray(features, dtype=np.float32)
        if not np.isfinite(points).all():
            raise ThresherError("some features are not finite numbers")
        return Reduction(points)
    where = choose_device(device)
    begun = time.perf_counter()
    held: np.ndarray | torch.Tensor = features
    if where.type == "cuda" and features.nbytes <= RESIDENT_BYTES:
        # PCA passes over them three times: up to a few gigabytes they go to the device once.
        held = torch.from_numpy(np.array(features)).to(where)
    fitted = fit_pca(held, components, seed, where)
    x = fitted.project(held)
    del held
    seconds = {"pca": time.perf_counter() - begun}
    explained = float(fitted.explained.sum())
    if method == "pca":
        return Reduction(x.cpu().numpy(), explained=explained, seconds=seconds)
    begun = time.perf_counter()
    kl: float | None = None
    if method == "umap":
        points = _umap(x.cpu().numpy(), perplexity, seed)
    elif where.type == "cuda":
        from thresher.select.tsne import tsne

        begin = torch.from_numpy(_begin(x, seed, start)).to(where)
        y, kl = tsne(
            x,
            perplexity=perplexity,
            iterations=max(0, iterations - EXAGGERATED_ITERATIONS),
            early_iterations=min(EXAGGERATED_ITERATIONS, iterations),
            exaggeration=EXAGGERATION,
            seed=seed,
            init=begin,
        )
        kl = round(float(kl), 6)
        points = y.float().cpu().numpy()
    else:
        points, kl = open_tsne(x, _begin(x, seed, start), perplexity, seed, iterations)
    seconds[method] = time.perf_counter() - begun
    return Reduction(points, kl, explained, seconds)


def _begin(x: torch.Tensor, seed: int, how: Start) -> np.ndarray:
    """Where the points stand before the first step, (n, 2) float64, standard deviation 1e-4: the
    first two columns of x with a seeded jitter of a hundredth, which separates copies; or a
    seeded random cloud."""
    if how not in ("pca", "random"):
        raise ThresherError(f'there is no start "{how}"', nearest(how, ("pca", "random")))
    if how == "random":
        return np.random.default_rng(seed).normal(0, START_STD, (len(x), 2))
    start = np.zeros((len(x), 2))
    start[:, : min(2, x.shape[1])] = x[:, :2].double().cpu().numpy()
    std = start[:, 0].std()
    start *= START_STD / std if std > 0 else 0.0
    return start + np.random.default_rng(seed).normal(0, START_STD * JITTER, start.shape)


def open_tsne(
    x: torch.Tensor,
    begin: np.ndarray,
    perplexity: float,
    seed: int,
    iterations: int = ITERATIONS,
) -> tuple[np.ndarray, float]:
    """A t-SNE map (n, 2) float32 of x (n, m) by openTSNE, from `begin`; and its divergence."""
    from openTSNE import TSNE
    from openTSNE.affinity import PerplexityBasedNN
    from openTSNE.nearest_neighbors import PrecomputedNeighbors

    jobs = core_count()
    with bar("t-SNE", iterations, "iterations") as shown:
        k = min(len(x) - 1, int(3 * perplexity))
        squared, near = neighbours(x, k)
        index = PrecomputedNeighbors(near.int().numpy(), squared.sqrt().numpy())
        affinities = PerplexityBasedNN(perplexity=perplexity, knn_index=index, n_jobs=jobs)
        model = TSNE(
            perplexity=perplexity,
            initialization=begin,
            early_exaggeration=EXAGGERATION,
            early_exaggeration_iter=min(EXAGGERATED_ITERATIONS, iterations),
            n_iter=max(0, iterations - EXAGGERATED_ITERATIONS),
            n_jobs=jobs,
            random_state=seed,
            callbacks=_Progress(shown),
            callbacks_every_iters=_Progress.EVERY,
        )
        embedding = model.fit(affinities=affinities)
    # openTSNE's threads sum it in any order: the last digits differ from run to run.
    kl = round(float(embedding.kl_divergence), 6)
    return np.asarray(embedding, dtype=np.float32), kl


class _Progress:
    """openTSNE calls this every few iterations; a false answer lets it go on."""

    EVERY = 50

    def __init__(self, shown: Bar) -> None:
        self.shown = shown

    def __call__(self, iteration: int, error: float, embedding: np.ndarray) -> bool:
        self.shown.note(f"KL {error:.3f}")
        self.shown.advance(self.EVERY)
        return False


def _umap(x: np.ndarray, perplexity: float, seed: int) -> np.ndarray:
    try:
        import umap
    except ImportError:
        raise ThresherError(
            "UMAP is not installed", "`pip install umap-learn`, or use `--reduce tsne`"
        ) from None
    neighbours = max(2, min(len(x) - 1, round(perplexity / 2)))
    model = umap.UMAP(n_neighbors=neighbours, random_state=seed, n_jobs=1)
    return np.asarray(model.fit_transform(x), dtype=np.float32)
