"""Near-copies within a class, by the cosine of their features."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from thresher.data.copy_links import CopyLinks
from thresher.options import option
from thresher.select.filters.base import Filter
from thresher.select.inputs import FilterInputs, Need

BLOCK_ELEMENTS = 1 << 24
ROUNDING = 1e-6
"""Most that the computed cosine of equal vectors is below 1."""


@dataclass(kw_only=True)
class NearDuplicatesFilter(Filter):
    """Drop near-copies within a class.

    A sample is dropped if the cosine of its features with an earlier *kept* sample of its class is
    at least `similarity`, so the first of several copies stays. The score is the largest cosine
    with any earlier sample of the class. Equal features have a cosine of 1, also if their length is
    0, as that of all is after the mean was subtracted from features that do not differ. Costs
    n_c²·d operations per class, in blocks; memory is linear in the number of pairs.

    Examples:
        >>> features = [[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]]
        >>> NearDuplicatesFilter(centre=False).fit(features, [0, 0, 0]).keep_.tolist()
        [True, True, False]
    """

    name: ClassVar[str] = "near-duplicates"
    needs: ClassVar[tuple[Need, ...]] = ("features",)

    similarity: float = option(0.999, gt=0, le=1)
    """Cosine from which two samples of a class count as copies."""
    centre: bool = True
    """Subtract the mean of all features first; rectified features all point the same way."""

    def _fit(self, inputs: FilterInputs) -> None:
        features = inputs.need_features()
        n = len(inputs)
        mean = _mean(features) if self.centre else np.float32(0)
        score = np.full(n, -1.0, np.float32)
        copy_of = np.full(n, -1)
        cosine = np.zeros(n, np.float32)
        for label in np.unique(inputs.labels):
            (rows,) = np.nonzero(inputs.labels == label)
            x = np.asarray(features[rows], np.float32) - mean
            norm = np.linalg.norm(x, axis=1, keepdims=True)
            x /= np.where(norm > 0, norm, 1)
            if (norm == 0).any():  # a direction of their own: equal features have a cosine of 1
                x = np.append(x, norm == 0, axis=1)
            later, earlier, best = similar_pairs(x, np.float32(self.similarity - ROUNDING))
            score[rows] = best
            dropped = np.zeros(len(rows), bool)
            # Pairs are sorted by the later sample, so the earlier one is already decided.
            for a, b in zip(later.tolist(), earlier.tolist(), strict=True):
                if not dropped[a] and not dropped[b]:
                    dropped[a] = True
                    copy_of[rows[a]] = rows[b]
                    cosine[rows[a]] = x[a] @ x[b]
        self.score_, self.keep_ = score, copy_of < 0
        self.reason_ = [
            "" if c < 0 else f"like {inputs.ids[c]} (cosine {cosine[row]:.4f})"
            for row, c in enumerate(copy_of)
        ]
        (copies,) = np.nonzero(copy_of >= 0)
        self.copies_ = CopyLinks(
            ids=[inputs.ids[row] for row in copies.tolist()],
            others=[inputs.ids[row] for row in copy_of[copies].tolist()],
            similarity=cosine[copies],
            measure="cosine of the features",
        )
        self.report_["similarity"] = self.similarity
        if len(copies) and n - len(copies) == len(np.unique(inputs.labels)):
            self.warnings_.append(
                "all samples of a class count as copies of one: check the network that the "
                "features come from"
            )


def _mean(features: np.ndarray) -> np.ndarray:
    import torch

    from thresher.select.feature_blocks import mean_of

    return mean_of(features, torch.device("cpu")).float().numpy()


def similar_pairs(x: np.ndarray, least: np.float32) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows a > b, sorted, of unit vectors x (n, d) with a product of at least `least`.

    Also the largest product of each row with an earlier one, (n,).
    """
    n = len(x)
    step = max(1, BLOCK_ELEMENTS // n)
    later, earlier = [], []
    best = np.full(n, -1.0, np.float32)
    for begin in range(0, n, step):
        end = min(begin + step, n)
        cosine = x[begin:end] @ x[:end].T
        cosine[np.arange(end)[None, :] >= np.arange(begin, end)[:, None]] = -2
        best[begin:end] = np.maximum(cosine.max(axis=1), -1)
        a, b = np.nonzero(cosine >= least)
        later.append(a + begin)
        earlier.append(b)
    return np.concatenate(later), np.concatenate(earlier), best
