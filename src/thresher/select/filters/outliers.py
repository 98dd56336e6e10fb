"""Samples far from the rest of their class, and images with nothing to learn from."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from thresher.data.image_statistics import BROKEN, median_and_deviation
from thresher.options import option
from thresher.select.filters.base import Filter
from thresher.select.inputs import FilterInputs, Need

LEAST_NEIGHBOURS = 10
NEIGHBOUR_SHARE = 0.05


@dataclass(kw_only=True)
class OutliersFilter(Filter):
    """Drop samples far from their class, and blank, noise or unreadable images.

    The distance of a sample is the mean distance of its features from the k nearest samples of its
    class (Angiulli and Pizzuti, "Fast Outlier Detection in High Dimensional Spaces", 2002, after
    Ramaswamy et al., 2000, who take the distance of the k-th). A sample is dropped if the logarithm
    of its distance is more than `limit` robust deviations above the median of its class, so that no
    share must be guessed. By default k is 5 % of the class, so that the members of a small cluster
    far from their class are found as well. Images are dropped whatever their features if they
    cannot be read, have no contrast, or consist of independent pixels, which a network often places
    inside a class. Costs n_c²·d operations per class, and a pass over the images.

    Examples:
        >>> random = np.random.default_rng(0)
        >>> features = np.concatenate([random.normal(size=(200, 8)), np.full((3, 8), 9.0)])
        >>> OutliersFilter().fit(features, [0] * 203).keep_[-4:].tolist()
        [True, False, False, False]
    """

    name: ClassVar[str] = "outliers"
    needs: ClassVar[tuple[Need, ...]] = ("features", "statistics")

    limit: float = option(5.0, gt=0)
    """Robust deviations above the median of the class from which a sample is dropped."""
    k: int | None = option(None, ge=1)
    """Number of neighbours; by default 5 % of the class, at least ten."""

    def _fit(self, inputs: FilterInputs) -> None:
        score = np.zeros(len(inputs))
        for label in np.unique(inputs.labels):
            (rows,) = np.nonzero(inputs.labels == label)
            if len(rows) > 2:
                score[rows] = self._deviations(inputs.need_features()[rows])
        reason = [f"{s:.1f} deviations from its class" if s > self.limit else "" for s in score]
        keep = score <= self.limit
        if inputs.statistics is not None:
            faults = inputs.statistics.faults()
            for fault in BROKEN:
                for row in np.flatnonzero(faults[fault]):
                    reason[row] = f"{fault} image"
                keep &= ~faults[fault]
                self.report_[fault] = int(faults[fault].sum())
        self.score_, self.keep_, self.reason_ = score, keep, reason

    def _deviations(self, features: np.ndarray) -> np.ndarray:
        """Return how far each sample of one class is from the others, (n,), in deviations."""
        import torch

        from thresher.select.neighbours import neighbours

        n = len(features)
        k = self.k or max(LEAST_NEIGHBOURS, round(NEIGHBOUR_SHARE * n))
        squared, _ = neighbours(torch.from_numpy(np.array(features, np.float32)), min(k, n - 1))
        distance = np.log(np.maximum(squared.sqrt().mean(dim=1).numpy(), 1e-12))
        median, deviation = median_and_deviation(distance)
        # Copies of one image have a deviation of zero: then nothing is far.
        return (distance - median) / deviation if deviation > 1e-6 else np.zeros(n)
