"""The flags of `thresher select …`: one dataclass per filter."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True, kw_only=True)
class Common:
    data: str
    """The pack to choose from: a folder, or a name in the cache."""
    out: Path
    """The selection to write, a new S.parquet; S.json beside it says how it was made."""
    export: tuple[Path, ...] = ()
    """Also write what is kept as a .txt of ids or a .npy of positions in the pack."""


@dataclass(frozen=True, kw_only=True)
class Featured(Common):
    run: Path | None = None
    """A finished run whose network gives the features; they are made once and kept in it."""
    features: Path | None = None
    """Features made before (`thresher embed`), or a .npy or Parquet with ids from elsewhere."""


@dataclass(frozen=True, kw_only=True)
class Mapped(Featured):
    components: int = 50
    """Principal components of the features that t-SNE sees."""
    perplexity: float = 30.0
    """Perplexity of t-SNE: about how many neighbours count."""
    seed: int = 0
    """Of every random choice; the same seed gives the same file."""
    device: str = "auto"
    """auto takes a CUDA device where there is one; cpu; cuda."""


@dataclass(frozen=True, kw_only=True)
class Network(Mapped):
    eps: str | None = None
    """Radius of DBSCAN in the map's units, or auto: the knee of each class's k-distance curve."""
    drop: float | None = None
    """Share to drop: the radius is found. Exclusive with --eps; with neither, --eps auto."""
    min_samples: int = 5
    """Points within eps, itself counted, that make a core point of DBSCAN."""
    reduce: Literal["tsne", "pca", "none", "umap"] = "tsne"
    """Where to cluster: a t-SNE or UMAP map, the principal components, or the features."""
    cluster: Literal["dbscan", "hdbscan"] = "dbscan"
    """hdbscan finds its own radii and takes neither --eps nor --drop."""
    min_cluster_size: int = 5
    """Of HDBSCAN: fewer points than this are no cluster."""
    votes: int = 1
    """Make this many maps and let them vote; says how far they agree."""
    perplexities: tuple[float, ...] = ()
    """Vote with each of these perplexities as well."""
    also: tuple[Path, ...] = ()
    """Further runs or features whose networks vote as well."""


@dataclass(frozen=True, kw_only=True)
class Recursive(Mapped):
    rounds: int = 2
    """How many times to filter; each round after the first retrains the run on what is kept."""
    eps: str | None = None
    """As in `select network`, in every round."""
    drop: float | None = None
    """Share to drop in all, in equal steps."""
    min_samples: int = 5
    """As in `select network`."""


@dataclass(frozen=True, kw_only=True)
class Random(Common):
    drop: float
    """Share of the training samples to drop."""
    per_class: bool = False
    """Drop the same share of every class (stratified)."""
    seed: int = 0
    """Another seed, another choice."""


@dataclass(frozen=True, kw_only=True)
class Grid(Mapped):
    drop: float = 0.05
    """Share of every class to drop."""
    cells: int = 20
    """Grid cells along each side of a class's part of the map."""


@dataclass(frozen=True, kw_only=True)
class Dynamic(Common):
    run: Path
    """A run that was trained with --record-dynamics."""
    drop: float = 0.05
    """Share of the training samples to drop."""
    per_class: bool = False
    """Drop the same share of every class."""
    side: Literal["hard", "easy"] = "hard"
    """Which end goes: hard (mislabelled, odd) or easy (redundant)."""


@dataclass(frozen=True, kw_only=True)
class NearDuplicates(Featured):
    similarity: float = 0.999
    """Cosine from which two samples of a class count as copies."""
    centre: bool = True
    """Subtract the mean of all features first."""


@dataclass(frozen=True, kw_only=True)
class LabelErrors(Featured):
    probabilities: Literal["probe", "own"] = "probe"
    """Whose class probabilities: a cross-validated linear probe's, or the network's own."""
    engine: Literal["auto", "cleanlab", "builtin"] = "auto"
    """auto takes cleanlab where it is installed."""
    folds: int = 5
    """Of the probe's cross-validation."""
    seed: int = 0
    """Of the folds."""


@dataclass(frozen=True, kw_only=True)
class Combine(Common):
    selections: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Two or more selections of the same pack."""


@dataclass(frozen=True, kw_only=True)
class Vote(Combine):
    quorum: float = 0.5
    """Drop what more than this share of the selections drop."""
