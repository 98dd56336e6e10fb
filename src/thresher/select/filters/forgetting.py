"""Forgetting events (Toneva et al. 2019): how often a sample went from right to wrong."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from thresher.select.filters.base import ShareFilter
from thresher.select.filters.el2n import Side, sided
from thresher.select.samples import Samples


@dataclass
class ForgettingFilter(ShareFilter):
    """Drops the most forgotten samples (a never learned one counts as most) or the least."""

    name: ClassVar[str] = "forgetting"

    side: Side = "hard"
    """hard drops the often forgotten; easy drops the never forgotten, as the paper does."""

    def _fit(self, samples: Samples) -> None:
        count = samples.need_dynamics("forgetting").astype(np.float64)
        never = samples.need_dynamics("learned_epoch") < 0
        known = np.isfinite(count)
        count[never] = count.max(initial=0, where=known) + 1
        # Counts tie by the thousand: the last loss, squeezed below one, orders them.
        loss = np.nan_to_num(samples.need_dynamics("loss").astype(np.float64), nan=0.0)
        score = count + loss / (1 + np.abs(loss)) * 0.999
        self._drop_highest(samples, sided(score, self.side), "forgotten {:.2f} times")
        self.report_["never_learned"] = int(never.sum())
