"""Stratified sampling of the map's grid cells: thin what is dense, keep what is rare."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from thresher.errors import ThresherError
from thresher.select.filters.base import Filter, checked_share
from thresher.select.reduce import reduce
from thresher.select.samples import Samples


@dataclass
class GridFilter(Filter):
    """Lays a grid over each class's part of the map and evens out its cells.

    Every cell may keep up to a cap, the same throughout its class, chosen so that the wanted
    share of the class goes: crowded cells lose samples at random, thin ones keep all. The
    opposite of `network`, which drops the thin: they answer different questions.
    """

    name: ClassVar[str] = "grid"

    drop: float = 0.05
    """Share of every class to drop."""
    cells: int = 20
    """Cells along each side of a class's bounding box."""
    components: int = 50
    """Principal components that t-SNE sees."""
    perplexity: float = 30.0
    seed: int = 0
    device: str = "auto"

    def _fit(self, samples: Samples) -> None:
        share = checked_share(self.drop)
        if self.cells < 1:
            raise ThresherError(f"a grid of {self.cells} cells", "give at least 1")
        made = reduce(
            samples.need_features(),
            "tsne",
            self.components,
            self.perplexity,
            self.seed,
            self.device,
        )
        self.seconds_.update(made.seconds)
        self.x_, self.y_ = made.points[:, 0], made.points[:, 1]
        self.report_.update(kl=made.kl)
        random = np.random.Generator(np.random.Philox(key=[self.seed, 0x6171D]))
        n = len(samples)
        drop, score = np.zeros(n, bool), np.zeros(n)
        crowd, cell = np.zeros(n, int), np.zeros(n, np.int32)
        used = 0
        for label in np.unique(samples.labels):
            (rows,) = np.nonzero(samples.labels == label)
            # A random order, then a stable sort by cell: each sample's rank within its cell.
            rows = random.permutation(rows)
            where = _cells(made.points[rows].astype(np.float64), self.cells)
            _, number, counts = np.unique(where, return_inverse=True, return_counts=True)
            order = np.argsort(number, kind="stable")
            rank = np.empty(len(rows), int)
            rank[order] = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
            # Highest ranks go first: that levels the crowded cells down to a common cap.
            last = np.argsort(rank, kind="stable")[len(rows) - round(share * len(rows)) :]
            drop[rows[last]] = True
            score[rows], crowd[rows] = rank, counts[number]
            cell[rows] = number + used
            used += len(counts)
        self.keep_, self.score_, self.cluster_ = ~drop, score.astype(np.float32), cell
        self.reason_ = [f"cell of {crowd[r]} thinned" if drop[r] else "" for r in range(n)]
        self.report_["cells"] = self.cells


def _cells(points: np.ndarray, cells: int) -> np.ndarray:
    """Number of the grid cell of each point (n, 2) in its bounding box."""
    low, high = points.min(axis=0), points.max(axis=0)
    size = np.where(high > low, high - low, 1.0)
    at = np.minimum((points - low) / size * cells, cells - 1).astype(int)
    return at[:, 0] * cells + at[:, 1]
