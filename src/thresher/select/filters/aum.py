"""Area under the margin, from the record of a training run."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from thresher.select.filters.dynamics import DynamicsFilter
from thresher.select.inputs import FilterInputs


@dataclass(kw_only=True)
class AUMFilter(DynamicsFilter):
    """Drop samples by the area under the margin, which is low for wrong labels.

    The margin is the logit of the label minus the largest other logit, averaged over all epochs of
    a run (Pleiss et al., "Identifying Mislabeled Data using the Area Under the Margin Ranking",
    NeurIPS 2020). The paper stops at the first drop of the learning rate, and finds the threshold
    with samples of an artificial class; this filter drops a share. Costs a sort. Samples that the
    run did not train on are kept.

    Examples:
        >>> AUMFilter(drop=0.5).fit(None, [0, 0], dynamics={"margin": [3.0, -1.0]}).keep_.tolist()
        [True, False]
    """

    name: ClassVar[str] = "aum"

    def _fit(self, inputs: FilterInputs) -> None:
        margin = inputs.need_dynamics("margin").astype(np.float64)
        self._drop_side(inputs, -margin, "mean margin {:.2f}", shown=margin)
