"""Options and result of a reduction. Importing them does not load torch: see `reduce`."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from thresher.options import option

Method = Literal["tsne", "pca", "none", "umap"]
Start = Literal["pca", "random"]


@dataclass(kw_only=True)
class MapOptions:
    """Options of a map, shared by the filters that make one."""

    components: int = option(50, ge=1)
    """Principal components of the features that t-SNE sees."""
    perplexity: float = option(30.0, ge=1)
    """Perplexity of t-SNE: roughly the number of neighbours that count."""
    seed: int = option(0, ge=0)
    """Seed of every random choice; the same seed gives the same file."""
    device: str = option("auto", changes_result=False)
    """auto (a CUDA device if there is one), cpu or cuda."""


@dataclass(frozen=True)
class Reduction:
    """Points to cluster, and how they were made."""

    points: np.ndarray
    """(n, m) float32; m is 2 for a map."""
    kl: float | None = None
    """Kullback-Leibler divergence of a t-SNE map."""
    explained: float | None = None
    """Share of the variance that the principal components explain."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time by stage; empty for a cached map."""
