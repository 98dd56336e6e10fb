"""Combine selections: drop what any, all or most of them drop."""

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from thresher.data.class_order import check_class_order
from thresher.data.ids import rows_by_id
from thresher.data.selection import Selection
from thresher.errors import InvalidValueError, counted
from thresher.options import option
from thresher.select.filters.base import Filter
from thresher.select.inputs import FilterInputs, Need


@dataclass(kw_only=True)
class CombineFilter(Filter):
    """Base class of filters that combine two or more selections of the same pack.

    The score is the share of the selections that drop a sample. The map is that of the first
    selection that has one. Pass them as `fit(None, labels, ids=ids, selections=[a, b])`.

    Examples:
        >>> def dropping(*ids):
        ...     keep = np.array([id not in ids for id in "abc"])
        ...     return Selection(list("abc"), np.zeros(3, int), keep, 1.0 - keep, [""] * 3, "")
        >>> choices = [dropping("a"), dropping("a", "b"), dropping("a", "b", "c")]
        >>> for rule in UnionFilter(), IntersectionFilter(), VoteFilter():
        ...     rule.fit(None, [0, 0, 0], ids=list("abc"), selections=choices).keep_.tolist()
        [False, False, False]
        [False, True, True]
        [False, False, True]
    """

    needs: ClassVar[tuple[Need, ...]] = ("selections",)

    @abc.abstractmethod
    def _dropped(self, share: np.ndarray) -> np.ndarray:
        """Return what to drop, (n,) bool, from the share of selections that drop it, (n,)."""

    def _fit(self, inputs: FilterInputs) -> None:
        selections = inputs.selections
        if len(selections) < 2:
            raise InvalidValueError(
                f"selections must name two or more, got {len(selections)}", "", "selections"
            )
        rows = [rows_of(selection, inputs.ids) for selection in selections]
        drops = np.stack([~s.keep[at] for s, at in zip(selections, rows, strict=True)])
        share = drops.mean(axis=0)
        dropped = self._dropped(share)
        self.keep_, self.score_, self.votes_ = ~dropped, share.astype(np.float32), share
        names = _names(selections)
        self.reason_ = [
            ", ".join(name for name, drop in zip(names, drops[:, row], strict=True) if drop)
            if dropped[row]
            else ""
            for row in range(len(inputs))
        ]
        for one, at in zip(selections, rows, strict=True):
            if one.x is not None and one.y is not None and np.isfinite(one.x).any():
                self.map_ = np.stack([one.x, one.y], axis=1)[at]
                self.cluster_ = None if one.cluster is None else one.cluster[at]
                break
        self.new_labels_ = given_labels(selections, rows)
        self._mention_decisions(selections, rows)
        self.report_.update(rule=self.name, selections=names)

    def _mention_decisions(
        self, selections: Sequence[Selection], rows: Sequence[np.ndarray]
    ) -> None:
        """Warn of decisions by people that the rule, or another selection, overrules."""
        overruled, differs = np.zeros((2, len(self.keep_)), bool)
        for one, at in zip(selections, rows, strict=True):
            if one.decided is not None:
                overruled |= one.decided[at] & (one.keep[at] != self.keep_)
            if one.new_labels is not None and self.new_labels_ is not None:
                differs |= (one.new_labels[at] >= 0) & (one.new_labels[at] != self.new_labels_)
        if overruled.any():
            samples = counted(int(overruled.sum()), "sample is", "samples are")
            self.warnings_.append(
                f"{samples} kept or dropped against decisions by people in one of the selections"
            )
        if differs.any():
            samples = counted(int(differs.sum()), "sample has", "samples have")
            self.warnings_.append(
                f"{samples} different new labels, of which that of the first selection counts"
            )


@dataclass(kw_only=True)
class UnionFilter(CombineFilter):
    """Drop samples that any of several selections drops."""

    name: ClassVar[str] = "union"

    def _dropped(self, share: np.ndarray) -> np.ndarray:
        return share > 0


@dataclass(kw_only=True)
class IntersectionFilter(CombineFilter):
    """Drop samples that all of several selections drop."""

    name: ClassVar[str] = "intersection"

    def _dropped(self, share: np.ndarray) -> np.ndarray:
        return share == 1


@dataclass(kw_only=True)
class VoteFilter(CombineFilter):
    """Drop samples that most of several selections drop."""

    name: ClassVar[str] = "vote"

    quorum: float = option(0.5, ge=0, lt=1)
    """Drop samples that more than this share of the selections drop."""

    def _dropped(self, share: np.ndarray) -> np.ndarray:
        return share > self.quorum


def rows_of(selection: Selection, ids: Sequence[str]) -> np.ndarray:
    """Return the row of each id in a selection, (n,); raise if one is missing."""
    rows = rows_by_id(ids, selection.ids)
    if (rows < 0).any():
        missing = ids[int(np.argmax(rows < 0))]
        raise InvalidValueError(
            f'selection {selection.path or ""} has no sample "{missing}"',
            "give selections of the same pack",
        )
    return rows


def given_labels(selections: Sequence[Selection], rows: Sequence[np.ndarray]) -> np.ndarray | None:
    """Return the labels that people gave in any of the selections, the first one counts.

    Raises:
        InvalidValueError: A class has different numbers in two of the selections.
    """
    named = [one for one in selections if one.class_names]
    for other in named[1:]:
        first, fix = named[0], "make both on the same pack"
        check_class_order(first.class_names, other.class_names, first.title, other.title, fix)
    given = [
        s.new_labels[at] for s, at in zip(selections, rows, strict=True) if s.new_labels is not None
    ]
    if not given:
        return None
    labels = given[0].copy()
    for other in given[1:]:
        labels = np.where(labels < 0, other, labels)
    return labels


def _names(selections: Sequence[Selection]) -> list[str]:
    """Name selections by their files, or by their methods if the file names are not distinct."""
    stems = [s.path.stem for s in selections if s.path is not None]
    if len(set(stems)) == len(selections):
        return stems
    return [str(s.meta.get("method", "?")) for s in selections]
