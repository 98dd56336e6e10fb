"""Label consistency among nearest neighbours."""

from dataclasses import dataclass
from typing import ClassVar

from thresher.environment import choose_device
from thresher.options import option
from thresher.select.filters.base import ShareFilter
from thresher.select.inputs import FilterInputs, Need


@dataclass(kw_only=True)
class KNNFilter(ShareFilter):
    """Drop samples whose nearest neighbours have other labels.

    The score is the share of the `k` nearest samples, by the cosine of their features, that have
    another label (Bahri, Jiang and Gupta, "Deep k-NN for Noisy Labels", ICML 2020; Wilson's edited
    nearest neighbours, 1972). The paper keeps a sample if the neighbours' majority agrees with its
    label; this filter drops a share, and of equal scores the sample that is farther from its
    neighbours. Costs n²·d operations, in blocks; above 200,000 samples, 99 % of the neighbours
    are found, much faster.

    Examples:
        >>> features = [[1.0, 0.0], [0.9, 0.1], [0.8, 0.1], [0.0, 1.0], [0.1, 0.9], [0.1, 0.8]]
        >>> KNNFilter(k=2, drop=1 / 6).fit(features, [0, 0, 1, 1, 1, 1]).keep_.tolist()
        [True, True, False, True, True, True]
    """

    name: ClassVar[str] = "knn"
    needs: ClassVar[tuple[Need, ...]] = ("features",)
    hardness: ClassVar[bool] = True

    k: int = option(10, ge=1)
    """Number of neighbours."""

    def _fit(self, inputs: FilterInputs) -> None:
        from thresher.select.feature_blocks import unit_rows
        from thresher.select.neighbours import nearest

        x = unit_rows(inputs.need_features(), choose_device())
        distances, near = nearest(x, min(self.k, len(x) - 1), overwrite=True)
        k = max(1, near.shape[1])  # a single sample has no neighbour
        other = (inputs.labels[near.cpu().numpy()] != inputs.labels[:, None]).sum(axis=1) / k
        # Squared distances of unit vectors are at most 4; shares differ by at least 1 / k.
        tie = distances.sum(dim=1).cpu().numpy() / k / (5 * self.k)
        self._drop_highest(inputs, other + tie, "{:.0f} % of neighbours differ", shown=100 * other)
