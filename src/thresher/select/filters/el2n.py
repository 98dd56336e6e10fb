"""EL2N: the norm of the prediction error early in training."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from thresher.select.filters.dynamics import DynamicsFilter
from thresher.select.inputs import FilterInputs


@dataclass(kw_only=True)
class EL2NFilter(DynamicsFilter):
    """Drop samples by EL2N, the norm of the error early in training.

    The score is the norm of softmax output minus one-hot label, as a run recorded it (Paul et
    al., "Deep Learning on a Data Diet", 2021). The paper averages over ten networks and drops the
    easy end to save time; this filter uses one run, and drops the hard end by default to remove
    mislabelled samples. Costs a sort. Samples that the run did not train on are kept.

    Examples:
        >>> fitted = EL2NFilter(drop=0.5).fit(None, [0, 0], dynamics={"el2n": [0.1, 0.9]})
        >>> fitted.keep_.tolist()
        [True, False]
    """

    name: ClassVar[str] = "el2n"

    def _fit(self, inputs: FilterInputs) -> None:
        error = inputs.need_dynamics("el2n").astype(np.float64)
        self._drop_side(inputs, error, "EL2N {:.3f}")
