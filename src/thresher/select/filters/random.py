"""Random samples: the control."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from thresher.data.ids import rows_by_id
from thresher.errors import InvalidValueError
from thresher.options import option
from thresher.select.filters.base import ShareFilter
from thresher.select.inputs import FilterInputs, Need


@dataclass(kw_only=True)
class RandomFilter(ShareFilter):
    """Drop a random share of the samples: the control.

    A filter helps only if training on its selection beats training on a random selection of the
    same size. With `like`, the selection of that filter, as many samples of each class go as in
    that selection, so that the two differ in nothing but the choice within a class. Costs n random
    numbers.

    Examples:
        >>> int(RandomFilter(drop=0.25).fit(None, [0, 0, 1, 1]).keep_.sum())
        3
    """

    name: ClassVar[str] = "random"
    needs: ClassVar[tuple[Need, ...]] = ("like",)

    seed: int = option(0, ge=0)
    """Seed of the choice."""

    def _fit(self, inputs: FilterInputs) -> None:
        random = np.random.Generator(np.random.Philox(key=[self.seed, 0x5E1EC7]))
        score = random.random(len(inputs))
        if inputs.like is None:
            self._drop_highest(inputs, score, "random")
            return
        # Labels are those of these inputs: a person may have relabelled samples in `like`.
        dropped = [
            id for id, keep in zip(inputs.like.ids, inputs.like.keep, strict=True) if not keep
        ]
        rows = rows_by_id(dropped, inputs.ids)
        if dropped and (rows < 0).all():
            raise InvalidValueError(
                f'like drops only samples that are not among these, such as "{dropped[0]}"',
                "give the `ids` of the samples, and a selection of the same pack",
                "like",
            )
        removed = inputs.labels[rows[rows >= 0]]
        self.score_, self.keep_ = score, np.ones(len(inputs), bool)
        for label in np.unique(removed):
            (own,) = np.nonzero(inputs.labels == label)
            order = own[np.argsort(score[own], kind="stable")]
            self.keep_[order[len(own) - int((removed == label).sum()) :]] = False
