"""The network filter: noise on a map of the network's features."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from thresher.errors import InvalidValueError
from thresher.options import option
from thresher.select.cluster import (
    NOISE,
    UNCLUSTERED,
    ClassGraph,
    Eps,
    choose_eps,
    eps_per_sample,
    hdbscan,
    noise_score,
)
from thresher.select.filters.base import Filter
from thresher.select.inputs import FilterInputs, Need
from thresher.select.reduction import MapOptions, Method, Reduction, Start, cached_reduction
from thresher.select.stability import Stability, combine_votes


@dataclass(kw_only=True)
class NetworkOptions(MapOptions):
    """Options of the network filter, in one round and without votes."""

    eps: float | Literal["auto"] | None = option(None, gt=0)
    """Radius of DBSCAN, or auto (default without `drop`): each class's k-distance knee."""
    drop: float | None = option(None, ge=0, lt=1)
    """Share of the samples to drop; eps is chosen to match it. Excludes `eps`."""
    min_samples: int = option(5, ge=1)
    """Points within eps, itself included, that make a core point of DBSCAN."""
    reduce: Method = "tsne"
    """What to cluster: a t-SNE or UMAP map, the principal components, or the features."""
    start: Start | None = option(None, only_with={"reduce": ("tsne",)})
    """Where t-SNE starts: the first two principal components (pca), or a random cloud; default pca,
    or random with `tsne` sklearn-2020."""
    cluster: Literal["dbscan", "hdbscan"] = "dbscan"
    """Clustering; hdbscan finds its own radii and takes neither `eps` nor `drop`."""
    min_cluster_size: int = option(5, ge=2, only_with={"cluster": ("hdbscan",)})
    """Smallest cluster of HDBSCAN."""

    def _check_radius(self) -> None:
        if self.eps is not None and self.drop is not None:
            raise InvalidValueError("eps and `drop` exclude each other", "give one of them", "eps")
        if self.cluster == "hdbscan" and (self.eps is not None or self.drop is not None):
            raise InvalidValueError(
                "cluster hdbscan takes neither `eps` nor `drop`", "leave them out", "cluster"
            )


@dataclass(kw_only=True)
class NetworkFilter(NetworkOptions, Filter):
    """Drop samples that DBSCAN labels as noise on a map of the network's features.

    Which samples does the network place away from their own class? The penultimate features go
    through PCA and t-SNE to one map of all training samples; each class is clustered on its own,
    and noise is dropped. A fixed eps is rarely meaningful because the scale of a t-SNE map varies:
    give the share to `drop`, or rely on the knee of the k-distance curve.

    With `votes`, `perplexities` or features of further networks, several maps vote, and the report
    says how far they agree. The first vote of each network and perplexity starts as `start` says,
    the others from random clouds, because the seed hardly matters otherwise. With
    `drop`, the samples with the most votes go, the mean score breaking ties; otherwise those that
    more than half of the votes drop.

    The score is the smallest eps that keeps a sample, divided by the eps used: above 1 is dropped.
    Classes with fewer than `min_samples` samples are kept whole. Costs a t-SNE map per vote: about
    three minutes for 50,000 samples on two cores, a second on a GPU.

    Attributes:
        eps_: Radius used: a float, (classes,) float64, or None with HDBSCAN.
        reduction_: The points clustered, with KL divergence and explained variance.
        graph_: DBSCAN structure, which answers for any other eps.
        stability_: Agreement of the votes; None without votes.

    Examples:
        >>> features, labels = np.eye(40)[:, :8], np.arange(40) % 2
        >>> NetworkFilter(drop=0.1, reduce="pca").fit(features, labels).keep_.shape
        (40,)
    """

    name: ClassVar[str] = "network"
    needs: ClassVar[tuple[Need, ...]] = ("features", "other_features")

    votes: int = option(1, ge=1)
    """Number of maps that vote, with seeds `seed`, `seed` + 1, …"""
    perplexities: tuple[float, ...] = option((), ge=1)
    """Perplexities that vote, instead of `perplexity` alone."""

    def _fit(self, inputs: FilterInputs) -> None:
        self._check_radius()
        if self.votes == 1 and not self.perplexities and not inputs.other_features:
            self._fit_map(inputs)
        else:
            self._fit_votes(inputs)

    def _fit_map(self, inputs: FilterInputs) -> None:
        features = inputs.need_features()
        reduction = cached_reduction(inputs.maps, features, self, self.reduce, self.start)
        self.eps_: Eps | None = None
        self.reduction_: Reduction = reduction
        self.graph_: ClassGraph | None = None
        self.stability_: Stability | None = None
        self.seconds_.update(reduction.seconds)
        begin = time.perf_counter()
        if reduction.points.shape[1] == 2:
            self.map_ = reduction.points
        self.report_.update(kl=reduction.kl, explained=reduction.explained)
        self.report_["min_samples"] = self.min_samples
        if self.cluster == "hdbscan":
            self._cluster_hdbscan(inputs)
        else:
            self._cluster_dbscan(inputs)
        self.seconds_["cluster"] = time.perf_counter() - begin

    def _cluster_dbscan(self, inputs: FilterInputs) -> None:
        graph = ClassGraph(self.reduction_.points, inputs.labels, self.min_samples)
        eps = choose_eps(graph, self.eps, self.drop)
        self.graph_, self.eps_ = graph, eps
        noise = graph.noise(eps)
        self.keep_, self.score_ = ~noise, noise_score(graph, eps)
        self.cluster_ = graph.clusters_once(eps)
        used = eps_per_sample(graph, eps)
        self.reason_ = [""] * len(inputs)
        for row in np.flatnonzero(noise):
            name = inputs.class_name(int(inputs.labels[row]))
            self.reason_[row] = f"noise in {name} at eps {used[row]:.4g}"
        for row in np.flatnonzero(np.isin(inputs.labels, graph.small)):
            self.reason_[row] = f"class kept whole: fewer than {self.min_samples} samples"
        self.report_["eps"] = (
            float(eps)
            if not isinstance(eps, np.ndarray)
            else {
                inputs.class_name(int(label)): float(radius)
                for label, radius in zip(graph.classes, eps, strict=True)
            }
        )
        radii, share = graph.curve(256)
        self.report_["curve"] = {"eps": _digits(radii), "share": _digits(share)}
        self.warnings_ += self._kept_whole(inputs)
        tolerance = max(0.001, 0.5 / len(noise) + 1e-9)  # half a sample: 5 % of 390 is 19.5
        if self.drop is not None and abs(noise.mean() - self.drop) > tolerance:
            self.warnings_.append(
                f"no eps drops {100 * self.drop:.2f} %: the nearest drops "
                f"{100 * noise.mean():.2f} %"
            )

    def _kept_whole(self, inputs: FilterInputs) -> list[str]:
        """Return a warning for each class that is too small to cluster."""
        least, small = self.min_samples, [] if self.graph_ is None else self.graph_.small
        if self.cluster == "hdbscan":
            assert self.cluster_ is not None
            least = max(self.min_samples, self.min_cluster_size)
            small = np.unique(inputs.labels[self.cluster_ == UNCLUSTERED]).tolist()
        few = f"has fewer than {least} samples and is kept whole"
        return [f"class {inputs.class_name(label)} {few}" for label in small]

    def _cluster_hdbscan(self, inputs: FilterInputs) -> None:
        points = self.reduction_.points
        cluster = hdbscan(points, inputs.labels, self.min_samples, self.min_cluster_size)
        noise = cluster == NOISE
        self.cluster_, self.keep_, self.score_ = cluster, ~noise, noise.astype(np.float32)
        self.reason_ = [
            f"noise in {inputs.class_name(int(label))} by HDBSCAN" if dropped else ""
            for label, dropped in zip(inputs.labels, noise, strict=True)
        ]
        self.report_["eps"] = None
        for row in np.flatnonzero(cluster == UNCLUSTERED):
            self.reason_[row] = "class kept whole: too few samples"
        self.warnings_ += self._kept_whole(inputs)

    def _fit_votes(self, inputs: FilterInputs) -> None:
        if self.reduce in ("pca", "none") and (self.votes > 1 or len(self.perplexities) > 1):
            raise InvalidValueError(
                f"votes and `perplexities` need a map: with `reduce` {self.reduce} all votes of a "
                "network are the same",
                "use `reduce` tsne, or features of several networks",
                "votes",
            )
        voters = [one.fit_inputs(seen) for one, seen in self._voters(inputs)]
        if len(voters) < 2:
            raise InvalidValueError(
                "a single map cannot vote", "give `votes` of at least 2, or two `perplexities`"
            )
        first = voters[0]
        self.eps_, self.reduction_, self.graph_ = first.eps_, first.reduction_, first.graph_
        self.map_, self.cluster_ = first.map_, first.cluster_
        dropped, score, self.stability_ = combine_votes(voters, self.drop)
        share = self.stability_.votes
        self.keep_, self.score_, self.votes_ = ~dropped, score, share
        self.reason_ = [
            f"{share[row] * len(voters):.0f} of {len(voters)} votes"
            if dropped[row]
            else (first.reason_[row] if first.keep_[row] else "")
            for row in range(len(inputs))
        ]
        self.report_.update(first.report_)
        self.report_["networks"] = 1 + len(inputs.other_features)
        self.report_["stability"] = {"votes": len(voters), **self.stability_.report()}
        self.report_["by_vote"] = [
            {
                "seed": one.seed,
                "perplexity": one.perplexity,
                "dropped": int((~one.keep_).sum()),
                "eps": one.report_["eps"],
                "kl": one.report_["kl"],
            }
            for one in voters
        ]
        self.warnings_ += self._kept_whole(inputs)
        if self.stability_.noisy:
            self.warnings_.append(
                f"the votes hardly agree (Jaccard {self.stability_.jaccard:.2f}, random choices "
                f"would have {self.stability_.expected:.2f}): this filter is mostly noise here"
            )
        for one in voters:
            for stage, seconds in one.seconds_.items():
                if stage != "total":
                    self.seconds_[stage] = self.seconds_.get(stage, 0.0) + seconds

    def _voters(self, inputs: FilterInputs) -> "Iterator[tuple[NetworkFilter, FilterInputs]]":
        """Yield each filter that votes, and the inputs that it sees."""
        for features in (inputs.need_features(), *inputs.other_features):
            seen = replace(inputs, features=features, other_features=())
            for perplexity in self.perplexities or (self.perplexity,):
                one = replace(self, votes=1, perplexities=(), perplexity=perplexity)
                for vote in range(self.votes):
                    start: Start | None = "random" if vote else self.start
                    yield replace(one, seed=self.seed + vote, start=start), seen


def _digits(values: np.ndarray) -> list[float]:
    """Round to seven digits: enough to draw a curve, short enough for a sidecar."""
    return [float(f"{v:.7g}") for v in values]
