"""Moderate coresets: samples at the median distance from the centre of their class."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from thresher.select.filters.base import ShareFilter
from thresher.select.inputs import FilterInputs, Need


@dataclass(kw_only=True)
class ModerateFilter(ShareFilter):
    """Drop samples that are unusually close to or far from the centre of their class.

    The score is the difference between a sample's Euclidean distance from the mean of its class and
    the median distance of the class (Xia et al., "Moderate Coreset", ICLR 2023). The same share of
    every class goes, unless `per_class` is off. Costs two passes over the features.

    Examples:
        >>> features = [[-9.0], [-4.0], [-3.0], [0.0], [3.0], [4.0], [9.0]]
        >>> ModerateFilter(drop=3 / 7).fit(features, [0] * 7).keep_.tolist()
        [False, True, True, False, True, True, False]
    """

    name: ClassVar[str] = "moderate"
    needs: ClassVar[tuple[Need, ...]] = ("features",)

    per_class: bool = True
    """Drop the same share of every class, but never all of its samples."""

    def _fit(self, inputs: FilterInputs) -> None:
        features = inputs.need_features()
        distance, score = np.empty(len(inputs)), np.empty(len(inputs))
        for label in np.unique(inputs.labels):
            (rows,) = np.nonzero(inputs.labels == label)
            x = np.asarray(features[rows], np.float32)
            distance[rows] = np.linalg.norm(x - x.mean(axis=0), axis=1)
            score[rows] = np.abs(distance[rows] - np.median(distance[rows]))
        self._drop_highest(inputs, score, "distance {:.3g} from the centre", shown=distance)
