"""The paper's filter: on the network's own map, drop what DBSCAN calls noise within its class."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from thresher.environment import choose_device
from thresher.errors import ThresherError, nearest
from thresher.select.cluster import NOISE, ClassGraph, hdbscan
from thresher.select.filters.base import Filter, checked_share
from thresher.select.maps import kept_reduction
from thresher.select.reduce import Method, Reduction, Start, reduce
from thresher.select.samples import Samples


@dataclass
class NetworkFilter(Filter):
    """Features → PCA → t-SNE over all samples → DBSCAN within each class → noise is dropped.

    The radius is given (`eps`), or found from a share to drop (`drop`), or, with neither, taken
    per class at the knee of its k-distance curve. The score is the least eps at which a sample
    is kept, over the eps used: above 1 is dropped.
    """

    name: ClassVar[str] = "network"

    eps: float | Literal["auto"] | None = None
    """Radius of DBSCAN in the map's own units; auto finds one per class."""
    drop: float | None = None
    """Share to drop; one radius for all classes is found that drops it."""
    min_samples: int = 5
    """Points within eps, itself included, that make a core point."""
    reduce: Method = "tsne"
    """What is clustered: a t-SNE or UMAP map, the principal components, or the features."""
    components: int = 50
    """Principal components that t-SNE sees."""
    perplexity: float = 30.0
    start: Start = "pca"
    """Where t-SNE begins: the first two components, or a random cloud drawn by the seed."""
    cluster: Literal["dbscan", "hdbscan"] = "dbscan"
    min_cluster_size: int = 5
    """Of HDBSCAN, which finds its own radii and so takes neither eps nor drop."""
    seed: int = 0
    device: str = "auto"
    maps: Path | None = None
    """A folder where maps are kept for the next time, whatever eps it asks for."""

    def _fit(self, samples: Samples) -> None:
        self._check()
        self.fit_points(samples, self._reduced(samples.need_features()))

    def _reduced(self, features: np.ndarray) -> Reduction:
        settings: dict[str, Any] = {
            "method": self.reduce,
            "components": self.components,
            "perplexity": self.perplexity,
            "seed": self.seed,
            "device": "cpu" if self.reduce == "none" else str(choose_device(self.device)),
            "start": self.start,
        }
        keep = None if self.reduce == "none" else self.maps
        return kept_reduction(keep, features, settings, lambda: reduce(features, **settings))

    def fit_points(self, samples: Samples, made: Reduction) -> "NetworkFilter":
        """Cluster and choose on points that exist already."""
        self._check()
        if not hasattr(self, "report_"):
            self.report_, self.warnings_, self.seconds_ = {}, [], {}
        self.reduction_: Reduction = made
        self.seconds_.update(made.seconds)
        begun = time.perf_counter()
        if made.points.shape[1] == 2:
            self.x_, self.y_ = made.points[:, 0], made.points[:, 1]
        self.report_.update(kl=made.kl, explained=made.explained, min_samples=self.min_samples)
        if self.cluster == "hdbscan":
            self._by_hdbscan(samples, made.points)
        else:
            self._by_dbscan(samples, made.points)
        self.seconds_["cluster"] = time.perf_counter() - begun
        return self

    def _check(self) -> None:
        if self.eps is not None and self.drop is not None:
            raise ThresherError("eps and drop exclude each other", "give one of them")
        if isinstance(self.eps, str) and self.eps != "auto":
            raise ThresherError(f'eps is "{self.eps}"', "give a positive number or auto")
        if isinstance(self.eps, int | float) and not (self.eps > 0 and np.isfinite(self.eps)):
            raise ThresherError(f"eps is {self.eps}", "give a positive number or auto")
        if self.drop is not None:
            checked_share(self.drop)
        if self.cluster not in ("dbscan", "hdbscan"):
            raise ThresherError(
                f'there is no clustering "{self.cluster}"',
                nearest(self.cluster, ("dbscan", "hdbscan")),
            )
        if self.cluster == "hdbscan" and (self.eps is not None or self.drop is not None):
            raise ThresherError("HDBSCAN takes neither eps nor drop", "leave them out")

    def _by_dbscan(self, samples: Samples, points: np.ndarray) -> None:
        graph = ClassGraph(points, samples.labels, self.min_samples)
        self.graph_: ClassGraph = graph
        eps: float | np.ndarray
        if self.drop is not None:
            eps = graph.eps_for_share(self.drop)
        elif self.eps is None or self.eps == "auto":
            eps = graph.eps_knee()
        else:
            eps = float(self.eps)
        noise = graph.noise(eps)
        self.keep_ = ~noise
        self.cluster_ = graph.clusters_once(eps)
        rank = np.searchsorted(graph.classes, samples.labels)
        used = np.broadcast_to(eps, graph.classes.shape)[rank]
        self.score_ = np.divide(
            graph.threshold, used, out=graph.threshold.copy(), where=used > 0
        ).astype(np.float32)
        small = np.isin(samples.labels, graph.small)
        self.reason_ = [""] * len(samples)
        for row in np.flatnonzero(noise):
            name = samples.class_name(int(samples.labels[row]))
            self.reason_[row] = f"noise in {name} at eps {used[row]:.4g}"
        for row in np.flatnonzero(small):
            self.reason_[row] = f"class kept whole: fewer than {self.min_samples} samples"
        self.report_["eps"] = _eps_report(eps, graph, samples)
        at, share = graph.curve(256)
        self.report_["curve"] = {"eps": _digits(at), "share": _digits(share)}
        for label in graph.small:
            self.warnings_.append(
                f"class {samples.class_name(label)} has fewer than {self.min_samples} samples "
                "and is kept whole"
            )
        if self.drop is not None and abs(noise.mean() - self.drop) > 0.001:
            self.warnings_.append(
                f"no eps drops {self.drop:.2%}: the nearest drops {noise.mean():.2%}"
            )

    def _by_hdbscan(self, samples: Samples, points: np.ndarray) -> None:
        found = hdbscan(points, samples.labels, self.min_samples, self.min_cluster_size)
        self.cluster_ = found
        self.keep_ = found != NOISE
        self.score_ = (found == NOISE).astype(np.float32)
        self.reason_ = [
            f"noise in {samples.class_name(int(label))} by HDBSCAN" if noise else ""
            for label, noise in zip(samples.labels, found == NOISE, strict=True)
        ]
        self.report_["eps"] = None


def _eps_report(eps: float | np.ndarray, graph: ClassGraph, samples: Samples) -> Any:
    if np.ndim(eps) == 0:
        return float(eps)
    values = np.asarray(eps)
    return {
        samples.class_name(int(c)): float(e) for c, e in zip(graph.classes, values, strict=True)
    }


def _digits(values: np.ndarray) -> list[float]:
    """Seven digits: enough to draw a curve, short enough for a sidecar."""
    return [float(f"{v:.7g}") for v in values]
