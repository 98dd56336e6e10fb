"""Several selections made into one: what any, all, or most of them drop."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from thresher.data.selection import Selection
from thresher.errors import ThresherError
from thresher.select.filters.base import Filter
from thresher.select.samples import Samples

Rule = Literal["union", "intersection", "vote"]


@dataclass
class CombineFilter(Filter):
    """Drops what `selections` drop, by the rule.

    The score is the share of them that drop a sample. The map is that of the first one that
    has one.
    """

    name: ClassVar[str] = "combine"

    selections: Sequence[Selection] = field(repr=False)
    rule: Rule = "union"
    """union: any drops it; intersection: all do; vote: more than `quorum` of them do."""
    quorum: float = 0.5
    names: Sequence[str] = ()
    """What to call the selections in reasons; their filters' names by default."""

    def _fit(self, samples: Samples) -> None:
        if len(self.selections) < 2:
            raise ThresherError("one selection alone cannot be combined", "give two or more")
        if not 0 <= self.quorum < 1:
            raise ThresherError(f"a quorum of {self.quorum} is no share", "choose one in [0, 1)")
        names = list(self.names) or [s.meta.get("method", "?") for s in self.selections]
        drops = np.stack([_aligned_drop(s, samples) for s in self.selections])
        share = drops.mean(axis=0)
        if self.rule == "union":
            dropped = share > 0
        elif self.rule == "intersection":
            dropped = drops.all(axis=0)
        else:
            dropped = share > self.quorum
        self.keep_, self.score_, self.votes_ = ~dropped, share.astype(np.float32), share
        self.reason_ = [
            ", ".join(name for name, drop in zip(names, drops[:, row], strict=True) if drop)
            if dropped[row]
            else ""
            for row in range(len(samples))
        ]
        for selection in self.selections:
            if selection.x is not None and np.isfinite(selection.x).any():
                row = {id: n for n, id in enumerate(selection.ids)}
                order = [row[id] for id in samples.ids]
                assert selection.y is not None
                self.x_, self.y_ = selection.x[order], selection.y[order]
                if selection.cluster is not None:
                    self.cluster_ = selection.cluster[order]
                break
        self.report_.update(rule=self.rule, selections=names)

    def method(self) -> str:
        return self.rule

    def settings(self) -> dict[str, object]:
        return {"rule": self.rule, "quorum": self.quorum, "names": list(self.names)}


def _aligned_drop(selection: Selection, samples: Samples) -> np.ndarray:
    """(n,) bool of what a selection drops, in the order of the samples."""
    row = {id: n for n, id in enumerate(selection.ids)}
    try:
        order = [row[id] for id in samples.ids]
    except KeyError as missing:
        raise ThresherError(
            f"the selection {selection.path or ''} does not know the sample {missing}",
            "combine selections of the same pack",
        ) from None
    return ~np.asarray(selection.keep)[order]
