"""Distance to prototypes that are found without labels."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from thresher.options import option
from thresher.select.filters.base import ShareFilter
from thresher.select.inputs import FilterInputs, Need


@dataclass(kw_only=True)
class PrototypesFilter(ShareFilter):
    """Drop samples by their distance from prototypes that are found without labels.

    Prototypes are the centres of k-means on features of unit length; the score is the cosine
    distance from the nearest one (Sorscher et al., "Beyond Neural Scaling Laws", NeurIPS 2022). The
    paper takes features of a self-supervised network, SwAV, drops the easy end if there are many
    samples per class, and the hard end if there are few. Costs some passes over the features, each
    n·clusters·d operations.

    Examples:
        >>> features = [[1.0, 0.0], [1.0, 0.1], [1.0, 0.4], [0.0, 1.0]]
        >>> PrototypesFilter(drop=0.25, side="hard").fit(features, [0, 0, 0, 1]).keep_.tolist()
        [True, True, False, True]
    """

    name: ClassVar[str] = "prototypes"
    needs: ClassVar[tuple[Need, ...]] = ("features",)
    hardness: ClassVar[bool] = True

    side: Literal["easy", "hard"] = "easy"
    """Which end to drop: easy (close to a prototype, redundant) or hard (far from all)."""
    clusters: int | None = option(None, ge=1)
    """Number of prototypes; by default the number of classes."""
    seed: int = option(0, ge=0)
    """Seed of k-means."""

    def _fit(self, inputs: FilterInputs) -> None:
        from sklearn.cluster import KMeans

        x = np.array(inputs.need_features(), np.float32)
        x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
        clusters = min(self.clusters or len(np.unique(inputs.labels)), len(x))
        fitted = KMeans(clusters, n_init=3, random_state=self.seed).fit(x)
        centres = fitted.cluster_centers_
        centres /= np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-12)
        distance = 1 - (x @ centres.T).max(axis=1).astype(np.float64)
        self.cluster_ = fitted.labels_.astype(np.int32)
        score = distance if self.side == "hard" else -distance
        self._drop_highest(inputs, score, "distance {:.3f} from its prototype", shown=distance)
        self.report_["prototypes"] = clusters
