"""Stratified sampling of the map's grid cells."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from thresher.options import option
from thresher.select.filters.base import Filter, group_counts
from thresher.select.inputs import FilterInputs, Need
from thresher.select.reduction import MapOptions, cached_reduction


@dataclass(kw_only=True)
class GridFilter(MapOptions, Filter):
    """Drop samples by how crowded their cell of a grid over the map is.

    Lays a grid over each class's part of a t-SNE map, and drops the share `drop` of every class.

    With `keep` sparse (default) it answers "which samples are redundant?": every cell keeps up to a
    cap, the same for all cells of a class, so crowded cells lose random samples and sparse ones
    keep all. This is stratified sampling, and the opposite of `network`. With `keep` dense it
    answers "which samples lie apart from their class?", as `network` does: samples of the sparsest
    cells go first, at random among equally crowded cells. Costs the map: see `network`.

    Examples:
        >>> features, labels = np.random.default_rng(0).normal(size=(60, 8)), np.arange(60) % 2
        >>> int(GridFilter(drop=0.5, perplexity=5).fit(features, labels).keep_.sum())
        30
    """

    name: ClassVar[str] = "grid"
    needs: ClassVar[tuple[Need, ...]] = ("features",)

    drop: float = option(0.05, ge=0, lt=1)
    """Share of every class to drop."""
    cells: int = option(20, ge=1)
    """Grid cells along each side of a class's bounding box."""
    keep: Literal["sparse", "dense"] = "sparse"
    """The cells to keep: sparse thins out the crowded ones, dense drops the sparse ones."""

    def _fit(self, inputs: FilterInputs) -> None:
        reduction = cached_reduction(inputs.maps, inputs.need_features(), self)
        self.seconds_.update(reduction.seconds)
        self.map_ = reduction.points
        self.report_.update(kl=reduction.kl)
        random = np.random.Generator(np.random.Philox(key=[self.seed, 0x6171D]))
        n = len(inputs)
        drop, score = np.zeros(n, bool), np.zeros(n)
        crowd, cell = np.zeros(n, int), np.zeros(n, np.int32)
        used = 0
        classes, sizes = np.unique(inputs.labels, return_counts=True)
        for label, gone in zip(classes, group_counts(sizes, self.drop), strict=True):
            (rows,) = np.nonzero(inputs.labels == label)
            # A random order, then a stable sort by cell: each sample's rank within its cell.
            rows = random.permutation(rows)
            points = reduction.points[rows].astype(np.float64)
            low, high = points.min(axis=0), points.max(axis=0)
            size = np.where(high > low, high - low, 1.0)
            at = np.minimum((points - low) / size * self.cells, self.cells - 1).astype(int)
            cells = at[:, 0] * self.cells + at[:, 1]
            _, number, counts = np.unique(cells, return_inverse=True, return_counts=True)
            order = np.argsort(number, kind="stable")
            rank = np.empty(len(rows), int)
            rank[order] = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
            # Dropping the highest ranks levels the crowded cells down to a common cap.
            suspicion = rank if self.keep == "sparse" else -counts[number]
            last = np.argsort(suspicion, kind="stable")[len(rows) - gone :]
            drop[rows[last]] = True
            score[rows], crowd[rows] = suspicion, counts[number]
            cell[rows] = number + used
            used += len(counts)
        self.keep_, self.score_, self.cluster_ = ~drop, score.astype(np.float32), cell
        what = "thinned" if self.keep == "sparse" else "sparse"
        self.reason_ = [f"cell of {crowd[r]} {what}" if drop[r] else "" for r in range(n)]
        self.report_["cells"] = self.cells
        self._mention_fewer(self.drop)
