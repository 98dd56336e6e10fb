"""Dynamic uncertainty, from the record of a training run."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from thresher.select.filters.base import ShareFilter
from thresher.select.inputs import FilterInputs, Need


@dataclass(kw_only=True)
class UncertaintyFilter(ShareFilter):
    """Drop samples whose predicted probability hardly changed during training.

    The score is the standard deviation of the probability of the label over ten consecutive epochs,
    averaged over all such windows of a run (He et al., "Large-scale Dataset Pruning with Dynamic
    Uncertainty", CVPR Workshops 2024); the lowest are dropped, both easy samples and ones never
    learned. The probabilities are those of the training steps, as in the paper; a run of fewer than
    ten epochs has one shorter window. Costs a sort. Samples that the run trained on in fewer than
    two epochs are kept.

    Examples:
        >>> steady = UncertaintyFilter(drop=0.5)
        >>> steady.fit(None, [0, 0], dynamics={"uncertainty": [0.01, 0.2]}).keep_.tolist()
        [False, True]
    """

    name: ClassVar[str] = "uncertainty"
    needs: ClassVar[tuple[Need, ...]] = ("dynamics",)

    def _fit(self, inputs: FilterInputs) -> None:
        deviation = inputs.need_dynamics("uncertainty").astype(np.float64)
        self._drop_highest(inputs, -deviation, "deviation {:.3f}", shown=deviation)
