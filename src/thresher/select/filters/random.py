"""Random samples: the control."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from thresher.options import option
from thresher.select.filters.base import ShareFilter
from thresher.select.inputs import FilterInputs


@dataclass(kw_only=True)
class RandomFilter(ShareFilter):
    """Drop a random share of the samples: the control.

    A filter helps only if training on its selection beats training on a random selection of the
    same size. Costs n random numbers.

    Examples:
        >>> int(RandomFilter(drop=0.25).fit(None, [0, 0, 1, 1]).keep_.sum())
        3
    """

    name: ClassVar[str] = "random"

    seed: int = option(0, ge=0)
    """Seed of the choice."""

    def _fit(self, inputs: FilterInputs) -> None:
        random = np.random.Generator(np.random.Philox(key=[self.seed, 0x5E1EC7]))
        self._drop_highest(inputs, random.random(len(inputs)), "random")
