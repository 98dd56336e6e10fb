"""Forgetting events: how often a sample went from right to wrong during training."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from thresher.select.filters.dynamics import DynamicsFilter
from thresher.select.inputs import FilterInputs


@dataclass(kw_only=True)
class ForgettingFilter(DynamicsFilter):
    """Drop samples by how often they were forgotten during training.

    A sample is forgotten when the network classifies it correctly in one epoch and wrongly in the
    next (Toneva et al., "An Empirical Study of Example Forgetting", 2019). Samples that were never
    learned count as the hardest; the last loss breaks ties, of which there are thousands. The
    paper drops the easy end to save time. Costs a sort. Samples that the run did not train on are
    kept.

    Examples:
        >>> record = {"forgetting": [0, 3], "learned_epoch": [1, 2], "loss": [0.1, 0.2]}
        >>> ForgettingFilter(drop=0.5).fit(None, [0, 0], dynamics=record).keep_.tolist()
        [True, False]
    """

    name: ClassVar[str] = "forgetting"

    def _fit(self, inputs: FilterInputs) -> None:
        count = inputs.need_dynamics("forgetting").astype(np.float64)
        never = inputs.need_dynamics("learned_epoch") < 0
        count[never] = count.max(initial=0, where=np.isfinite(count)) + 1
        # The loss, squeezed below one, orders equal counts.
        loss = np.nan_to_num(inputs.need_dynamics("loss").astype(np.float64), nan=0.0)
        score = count + loss / (1 + np.abs(loss)) * 0.999
        self._drop_side(inputs, score, "forgotten {:.2f} times")
        self.report_["never_learned"] = int(never.sum())
