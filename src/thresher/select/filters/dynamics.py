"""Filters that score samples by the record of a training run."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from thresher.select.filters.base import ShareFilter
from thresher.select.inputs import FilterInputs, Need


@dataclass(kw_only=True)
class DynamicsFilter(ShareFilter):
    """A filter that scores samples by the record of a training run."""

    needs: ClassVar[tuple[Need, ...]] = ("dynamics",)

    side: Literal["hard", "easy"] = "hard"
    """Which end to drop: hard (mislabelled or odd samples) or easy (redundant ones)."""

    def _drop_side(self, inputs: FilterInputs, hardness: np.ndarray, reason: str) -> None:
        """Drop the hardest or the easiest samples by `hardness` (n,), which `reason` formats."""
        score = hardness if self.side == "hard" else -hardness
        self._drop_highest(inputs, score, reason, shown=hardness)
