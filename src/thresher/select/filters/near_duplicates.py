"""Near copies within a class, by the cosine of their features."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from thresher.errors import ThresherError
from thresher.select.filters.base import Filter
from thresher.select.samples import Samples

BLOCK_ELEMENTS = 1 << 24


@dataclass
class NearDuplicatesFilter(Filter):
    """Keeps the first of any samples of one class that are alike, in pack order.

    A sample is dropped when its cosine with an earlier *kept* one of its class reaches
    `similarity`. Costs n_c²·d operations per class, in blocks; memory is linear in the pairs found.
    """

    name: ClassVar[str] = "near-duplicates"

    similarity: float = 0.999
    """Cosine from which two samples count as copies."""
    centre: bool = True
    """Subtract the mean of all features first: rectified features all point the same way."""

    def _fit(self, samples: Samples) -> None:
        if not 0 < self.similarity <= 1:
            raise ThresherError(f"a cosine of {self.similarity} is no similarity", "choose 0 … 1")
        features = samples.need_features()
        n = len(samples)
        mean = np.asarray(features, np.float32).mean(axis=0) if self.centre else np.float32(0)
        score = np.full(n, -1.0, np.float32)
        copy_of = np.full(n, -1)
        for label in np.unique(samples.labels):
            (rows,) = np.nonzero(samples.labels == label)
            x = np.asarray(features[rows], np.float32) - mean
            norm = np.linalg.norm(x, axis=1, keepdims=True)
            x /= np.where(norm > 0, norm, 1)
            later, earlier, best = _pairs(x, np.float32(self.similarity))
            score[rows] = best
            dropped = np.zeros(len(rows), bool)
            # Pairs come ordered by the later sample, so what is earlier is already decided.
            for a, b in zip(later.tolist(), earlier.tolist(), strict=True):
                if not dropped[a] and not dropped[b]:
                    dropped[a] = True
                    copy_of[rows[a]] = rows[b]
        self.score_ = score
        self.keep_ = copy_of < 0
        self.reason_ = [
            "" if c < 0 else f"like {samples.ids[c]} (cosine {score[row]:.4f})"
            for row, c in enumerate(copy_of)
        ]
        self.report_["similarity"] = self.similarity


def _pairs(x: np.ndarray, least: np.float32) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows (a, b), b < a, of unit vectors x whose product reaches `least`, ordered by a then b;
    and of each row the greatest product with an earlier one, (n,)."""
    n = len(x)
    step = max(1, BLOCK_ELEMENTS // n)
    later, earlier = [], []
    best = np.full(n, -1.0, np.float32)
    for begin in range(0, n, step):
        end = min(begin + step, n)
        alike = x[begin:end] @ x[:end].T
        alike[np.arange(end)[None, :] >= np.arange(begin, end)[:, None]] = -2
        best[begin:end] = np.maximum(alike.max(axis=1), -1)
        a, b = np.nonzero(alike >= least)
        later.append(a + begin)
        earlier.append(b)
    return np.concatenate(later), np.concatenate(earlier), best
