"""How far a difference depends on this test set: resample its images instead of the runs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

DRAWS = 4000
RunBits = tuple[np.ndarray, np.ndarray, float]
"""Which images the arm and the baseline predict correctly, (images,) each, with one seed in one
cell, and the weight of this pair of runs; the weights sum to 1."""


@dataclass(frozen=True)
class ImageSpread:
    """The difference of fixed runs, over test sets like this one."""

    images: int
    """Number of test images."""
    low: float
    """Lower end of the 95 % bootstrap interval over images, in points."""
    high: float
    p_mcnemar: float | None
    """Exact McNemar test, if one run is compared with one; None otherwise."""

    def sentence(self) -> str:
        """Return the interval in words."""
        test = "" if self.p_mcnemar is None else f"; McNemar p = {self.p_mcnemar:.3f}"
        return (
            f"With other test images, the same runs would differ by {self.low:+.2f} to "
            f"{self.high:+.2f} points (95 % bootstrap over {self.images:,} images{test})."
        )


def image_spread(pairs: Sequence[RunBits]) -> ImageSpread | None:
    """Resample the images of pairs of runs; None if a pair was tested on other images."""
    if not pairs or len({len(bits) for *both, _ in pairs for bits in both}) != 1:
        return None
    weighted = [weight * (100.0 * arm - 100.0 * baseline) for arm, baseline, weight in pairs]
    # Sums that are equal but for the rounding of their terms must stay equal.
    per_image = np.round(np.sum(weighted, axis=0), 9)
    n = len(per_image)
    # Few values occur, so that drawing their counts is the same as drawing images.
    values, counts = np.unique(per_image, return_counts=True)
    random = np.random.Generator(np.random.Philox(key=[0, n]))
    means = random.multinomial(n, counts / n, DRAWS) @ values / n
    low, high = np.quantile(means, [0.025, 0.975])
    p = mcnemar(*pairs[0][:2]) if len(pairs) == 1 else None
    return ImageSpread(n, float(low), float(high), p)


def mcnemar(arm: np.ndarray, baseline: np.ndarray) -> float:
    """Return the p-value of the exact McNemar test that both are right equally often."""
    gained, lost = int((arm & ~baseline).sum()), int((baseline & ~arm).sum())
    return min(1.0, 2 * float(special.bdtr(min(gained, lost), gained + lost, 0.5)))
