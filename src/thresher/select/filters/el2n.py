"""EL2N (Paul et al. 2021): the norm of softmax minus one-hot, early in training."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from thresher.errors import ThresherError, nearest
from thresher.select.filters.base import ShareFilter
from thresher.select.samples import Samples

Side = Literal["hard", "easy"]


@dataclass
class EL2NFilter(ShareFilter):
    """Drops the hardest (mislabelled and odd) or the easiest (redundant) by EL2N."""

    name: ClassVar[str] = "el2n"

    side: Side = "hard"
    """hard drops large errors; easy drops small ones, as the paper does to save time."""

    def _fit(self, samples: Samples) -> None:
        error = samples.need_dynamics("el2n").astype(np.float64)
        self._drop_highest(samples, sided(error, self.side), "EL2N {:.3f}")


def sided(score: np.ndarray, side: str) -> np.ndarray:
    """Turn a hardness so that what is to be dropped stands highest."""
    if side not in ("hard", "easy"):
        raise ThresherError(f'there is no side "{side}"', nearest(side, ("hard", "easy")))
    return score if side == "hard" else -score
