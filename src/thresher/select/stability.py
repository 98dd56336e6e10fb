"""Agreement of several choices over the same samples, and their vote."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from thresher.errors import InvalidValueError
from thresher.select.filters.base import Filter

NOISY_BELOW = 0.2


@dataclass(frozen=True)
class Stability:
    """Agreement of several choices over the same samples."""

    votes: np.ndarray
    """(n,) float32, share of the choices that drop each sample."""
    jaccard: float
    """Mean over pairs of |both drop| / |either drops|."""
    expected: float
    """Expected Jaccard of random choices of the same sizes."""
    lowest: float
    """Smallest Jaccard of any pair."""

    @property
    def agreement(self) -> float:
        """0 if the choices overlap like random ones, 1 if they are equal."""
        return (self.jaccard - self.expected) / (1 - self.expected) if self.expected < 1 else 1.0

    @property
    def noisy(self) -> bool:
        """Whether the choices agree little better than random ones."""
        return self.agreement < NOISY_BELOW

    def report(self) -> dict[str, float | bool]:
        """Return the numbers for a selection's sidecar."""
        return {
            "jaccard": round(self.jaccard, 6),
            "lowest": round(self.lowest, 6),
            "expected_at_random": round(self.expected, 6),
            "agreement": round(self.agreement, 6),
            "noisy": self.noisy,
        }


def stability(drops: np.ndarray) -> Stability:
    """Compare choices `drops` (v, n) bool; two that drop nothing agree (Jaccard 1)."""
    drops = np.asarray(drops, bool)
    if len(drops) < 2:
        raise InvalidValueError(f"drops must hold two or more choices, got {len(drops)}")
    overlaps, expected = [], []
    for a, b in combinations(drops, 2):
        either = (a | b).sum()
        overlaps.append((a & b).sum() / either if either else 1.0)
        # Random sets share p·q of the samples; p + q - p·q are in either.
        p, q = a.mean(), b.mean()
        expected.append(p * q / (p + q - p * q) if p + q > 0 else 1.0)
    return Stability(
        votes=drops.mean(axis=0).astype(np.float32),
        jaccard=float(np.mean(overlaps)),
        expected=float(np.mean(expected)),
        lowest=float(np.min(overlaps)),
    )


def combine_votes(
    voters: Sequence[Filter], drop: float | None
) -> tuple[np.ndarray, np.ndarray, Stability]:
    """Return what to drop, (n,) bool, the mean score, (n,) float32, and the agreement.

    With a share to `drop`, the samples with the most votes go, the mean score breaking ties;
    otherwise those that more than half of the fitted filters drop.
    """
    agreement = stability(np.stack([~one.keep_ for one in voters]))
    scores = np.stack([one.score_ for one in voters])
    score = scores.mean(axis=0, dtype=np.float64)
    if drop is None:
        return agreement.votes > 0.5, score.astype(np.float32), agreement
    order = np.lexsort((score, agreement.votes))
    # Small classes are kept whole by every vote and must stay so.
    order = order[~(scores == 0).all(axis=0)[order]]
    count = min(round(drop * len(score)), len(order))
    dropped = np.zeros(len(score), bool)
    dropped[order[len(order) - count :]] = True
    return dropped, score.astype(np.float32), agreement
