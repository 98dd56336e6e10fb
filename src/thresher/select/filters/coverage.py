"""Coverage-centric coresets, from the scores of any selection."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from thresher.data.selection import Selection
from thresher.errors import InvalidValueError
from thresher.options import option
from thresher.select.filters.base import Filter, highest
from thresher.select.filters.combine import given_labels, rows_of
from thresher.select.filters.registry import FILTERS, load_filter
from thresher.select.inputs import FilterInputs, Need


@dataclass(kw_only=True)
class CoverageFilter(Filter):
    """Drop the hardest samples, then thin out common scores: coverage-centric selection.

    Takes the scores of a finished selection that are highest for hard samples, such as those of
    `el2n` or `aum` with `side` hard. The share `cutoff` of the highest scores is dropped; the range
    of the others is divided into `strata` of equal width, and the samples to keep are drawn at
    random, as evenly from all strata as their sizes allow (Zheng et al., "Coverage-centric Coreset
    Selection for High Pruning Rates", ICLR 2023). The paper tunes the cutoff for each share to
    drop; here it is an option, and never drops more than `drop`. Infinite scores belong to the
    first or the last stratum. Samples that people kept or dropped in that selection stay so; they
    count towards `drop`. Costs a sort.

    Examples:
        >>> from thresher import Selection
        >>> hard = np.array([0, 0, 0, 0, 0, 0, 1, 2, 3, 9.0])
        >>> ids, labels = [str(n) for n in range(10)], np.zeros(10, int)
        >>> scored = Selection(ids, labels, np.ones(10, bool), hard, [""] * 10, "")
        >>> spread = CoverageFilter(drop=0.6, cutoff=0.1, strata=4)
        >>> spread.fit(None, labels, ids=ids, selections=[scored]).keep_[6:].tolist()
        [True, True, True, False]
    """

    name: ClassVar[str] = "ccs"
    needs: ClassVar[tuple[Need, ...]] = ("selections",)
    hardness: ClassVar[bool] = True

    drop: float = option(0.5, ge=0, lt=1)
    """Share of the training samples to drop."""
    cutoff: float = option(0.1, ge=0, lt=1)
    """Share with the highest scores that is dropped first, as mislabelled or too hard."""
    strata: int = option(50, ge=1)
    """Number of ranges of the score to draw from."""
    seed: int = option(0, ge=0)
    """Seed of the choice within a stratum."""

    def _fit(self, inputs: FilterInputs) -> None:
        if len(inputs.selections) != 1:
            raise InvalidValueError(
                f"selections must name one, whose scores are used, got {len(inputs.selections)}",
                "",
                "selections",
            )
        (scored,) = inputs.selections
        _check_hardness(scored)
        rows = rows_of(scored, inputs.ids)
        score = scored.score[rows].astype(np.float64)
        score[np.isnan(score)] = 0.0
        n = len(inputs)
        decided = np.zeros(n, bool) if scored.decided is None else scored.decided[rows]
        kept, dropped = decided & scored.keep[rows], decided & ~scored.keep[rows]
        gone = round(self.drop * n)
        most = max(0, min(round(self.cutoff * n), gone - int(dropped.sum())))
        hardest = highest(np.where(decided, np.nan, score), most / n)
        free = ~hardest & ~decided
        finite = score[free & np.isfinite(score)]
        low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
        width = (high - low) / self.strata or 1.0
        places = (np.clip(score, low, high) - low) / width
        stratum = np.minimum(places, self.strata - 1).astype(int)
        stratum[~free] = -1
        random = np.random.Generator(np.random.Philox(key=[self.seed, 0xC0FE7]))
        keep, left = kept.copy(), max(0, n - gone - int(kept.sum()))
        numbers, sizes = np.unique(stratum[free], return_counts=True)
        order = np.argsort(sizes, kind="stable")
        for done, at in enumerate(order):  # the smallest first: what it cannot give, others do
            taken = min(int(sizes[at]), left // (len(order) - done))
            keep[random.permutation(np.flatnonzero(stratum == numbers[at]))[:taken]] = True
            left -= taken
        self.keep_, self.score_ = keep, score
        self.new_labels_ = given_labels([scored], [rows])
        crowd = dict(zip(numbers.tolist(), sizes.tolist(), strict=True))
        self.reason_ = [
            "" if k else "above the cutoff" if s < 0 else f"one of {crowd[s]} with such a score"
            for k, s in zip(keep.tolist(), stratum.tolist(), strict=True)
        ]
        for row in np.flatnonzero(decided):
            self.reason_[row] = scored.reason[rows[row]]
        self.report_.update(strata=len(numbers), scores=str(scored.path or ""))


def _check_hardness(scored: Selection) -> None:
    """Refuse scores that are not highest for hard samples, as far as the sidecar tells."""
    method, settings = scored.meta.get("method"), scored.meta.get("settings")
    name = scored.path or method or "the selection"
    if isinstance(settings, Mapping) and settings.get("side") == "easy":
        raise InvalidValueError(
            f"the scores of {name} are highest for easy samples, but the hardest are dropped first",
            "make that selection with `side` hard",
            "selections",
        )
    if method in FILTERS.names() and not load_filter(str(method)).hardness:
        kinds = [filter for filter in FILTERS.built_in if load_filter(filter).hardness]
        raise InvalidValueError(
            f"the scores of {name} are those of filter {method}, which do not say how hard a "
            "sample is, but the hardest are dropped first",
            f"give a selection of one of {', '.join(kinds)}",
            "selections",
        )
