"""As many samples dropped at random: the control without which no filter means anything."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from thresher.select.filters.base import ShareFilter
from thresher.select.samples import Samples


@dataclass
class RandomFilter(ShareFilter):
    """Drops a share uniformly at random, or the same share of each class."""

    name: ClassVar[str] = "random"

    seed: int = 0
    """Another seed, another choice."""

    def _fit(self, samples: Samples) -> None:
        random = np.random.Generator(np.random.Philox(key=[self.seed, 0x5E1EC7]))
        self._drop_highest(samples, random.random(len(samples)), "random")
