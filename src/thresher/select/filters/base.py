"""The interface of a filter, after scikit-learn's estimators.

A filter is a dataclass of its options. The constructor only stores them; `fit` validates them
and the data, and stores its results in attributes that end in an underscore.
"""

import abc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from thresher.data.copy_links import CopyLinks
from thresher.data.ids import id_texts
from thresher.effect import mention
from thresher.errors import InvalidValueError, counted, nearest
from thresher.options import describe, option, validate
from thresher.select.inputs import FilterInputs, Need, as_array, as_arrays

ROUNDING = 1e-9
"""Of shares of a number of samples: 0.29 · 100 is less than 29."""


class Filter(abc.ABC):
    """Base class of filters, which choose the training samples to keep.

    A subclass is a dataclass with a field per option (`thresher.options.option`), the class
    variables `name` and `needs`, and a method `_fit` that sets `score_` and `keep_`. Register it
    under the entry-point group `thresher.filters`, or name it as `package.module:Class`.

    Examples:
        >>> @dataclass
        ... class LongestFilter(Filter):
        ...     name: ClassVar[str] = "longest"
        ...     limit: float = option(2.0, gt=0)
        ...     def _fit(self, inputs: FilterInputs) -> None:
        ...         self.score_ = np.linalg.norm(inputs.need_features(), axis=1)
        ...         self.keep_ = self.score_ <= self.limit
        >>> LongestFilter().fit([[3.0, 4.0], [0.0, 1.0]], [0, 0]).keep_.tolist()
        [False, True]
    """

    name: ClassVar[str]
    """As in `thresher select NAME`."""
    needs: ClassVar[tuple[Need, ...]] = ()
    """What the caller prepares, beside labels."""
    hardness: ClassVar[bool] = False
    """Whether scores are highest for samples that are hard to learn, which `ccs` asks for."""

    score_: np.ndarray
    """(n,) float32, higher is more suspicious."""
    keep_: np.ndarray
    """(n,) bool."""
    reason_: list[str]
    """Why a sample is dropped, or kept against the rule; else empty."""
    map_: np.ndarray | None = None
    """(n, 2) float32 map of the samples, NaN where a sample is not on it."""
    cluster_: np.ndarray | None = None
    """(n,) int32; -1 is noise, -2 not clustered."""
    votes_: np.ndarray | None = None
    """(n,) float32, share of the votes that drop a sample."""
    new_labels_: np.ndarray | None = None
    """(n,) int32, labels that people gave in the selections that were combined; -1: none."""
    suggested_: np.ndarray | None = None
    """(n,) int32, the class that a sample probably belongs to; -1 where none is likelier."""
    copies_: CopyLinks | None = None
    """Near-copies, if the filter looks for them."""
    report_: dict[str, Any]
    """JSON values for the selection's sidecar; the same for the same input."""
    warnings_: list[str]
    """What a user should know before trusting the result."""
    seconds_: dict[str, float]
    """Wall time by stage."""

    def fit(
        self,
        features: ArrayLike | None,
        labels: ArrayLike,
        *,
        ids: Sequence[str] | None = None,
        classes: Sequence[str] = (),
        **inputs: Any,
    ) -> Self:
        """Choose the samples to keep; return the fitted filter.

        Args:
            features: (n, d) float array; None for filters that do not use features.
            labels: (n,) integers.
            ids: n sample ids; row numbers by default.
            classes: Class names, for reasons and reports.
            **inputs: Further fields of `thresher.select.inputs.FilterInputs`, such as
                `probabilities` (n, classes), `dynamics` or `selections`.

        Raises:
            InvalidValueError: An option or an array is invalid, or something is missing.
        """
        targets = as_array(labels)
        if targets.ndim != 1 or (len(targets) and targets.dtype.kind not in "iu"):
            raise InvalidValueError(
                f"labels must be (n,) integers, got {targets.dtype} of shape {targets.shape}",
                "`numpy.unique(labels, return_inverse=True)` numbers names",
            )
        mention(self)
        return self.fit_inputs(
            FilterInputs(
                labels=targets.astype(np.int64),
                ids=id_texts(range(len(targets)) if ids is None else ids),
                classes=list(classes),
                features=None if features is None else as_array(features),
                **as_arrays(inputs),
            )
        )

    def fit_inputs(self, inputs: FilterInputs) -> Self:
        """Choose the samples to keep, given everything as one object; return the filter."""
        validate(self)
        if len(inputs) == 0:
            raise InvalidValueError("there are no training samples")
        if "features" in self.needs:
            inputs.check_features()
        for fitted in [key for key in vars(self) if key.endswith("_")]:
            delattr(self, fitted)
        self.report_, self.warnings_, self.seconds_ = {}, [], {}
        begin = time.perf_counter()
        self._fit(inputs)
        self.seconds_["total"] = time.perf_counter() - begin
        self._check_result("score_", len(inputs))
        self._check_result("keep_", len(inputs))
        self.score_ = np.asarray(self.score_, np.float32)
        self.keep_ = np.asarray(self.keep_, bool)
        if not hasattr(self, "reason_"):
            self.reason_ = ["" if kept else self.name for kept in self.keep_.tolist()]
        self._check_result("reason_", len(inputs))
        gone = np.setdiff1d(inputs.labels, inputs.labels[self.keep_])
        if len(gone):
            first = inputs.class_name(int(gone[0]))
            several = f"{len(gone):,} classes is kept, such as {first}"
            which = f"class {first} is kept" if len(gone) == 1 else several
            self.warnings_.append(f"no sample of {which}")
        return self

    def _check_result(self, name: str, count: int) -> None:
        """Raise unless `_fit` has set this attribute to one value per sample."""
        own, values = type(self).__name__, getattr(self, name, None)
        if values is None:
            raise InvalidValueError(
                f"{own}._fit has not set {name}",
                "set score_ (higher is more suspicious) and keep_ (True or False) for each sample",
            )
        if np.shape(values) != (count,):
            raise InvalidValueError(
                f"{own}.{name} must have one value for each of {count} samples, "
                f"got the shape {np.shape(values)}"
            )

    def _mention_fewer(self, share: float) -> None:
        """Warn if fewer samples go than the share of all, because the others must stay."""
        asked, dropped = round(share * len(self.keep_)), int((~self.keep_).sum())
        if dropped < asked:
            self.warnings_.append(
                f"drop {share:g} means {counted(asked, 'sample')}, but only {dropped:,} could be "
                "dropped"
            )

    @abc.abstractmethod
    def _fit(self, inputs: FilterInputs) -> None:
        """Set `score_` and `keep_`, and whatever else applies."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the options, as scikit-learn's estimators do."""
        return {info.name: getattr(self, info.name) for info in describe(type(self))}

    def set_params(self, **params: Any) -> Self:
        """Set options by name and return the filter."""
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                own = type(self).__name__
                raise InvalidValueError(f'{own} has no option "{name}"', nearest(name, known))
            setattr(self, name, value)
        return self


@dataclass(kw_only=True)
class ShareFilter(Filter):
    """A filter that scores samples and drops a share of them, highest scores first."""

    drop: float = option(0.05, ge=0, lt=1, only_with={"like": False})
    """Share of the training samples to drop."""
    per_class: bool = option(False, only_with={"like": False})
    """Drop the same share of every class, but never all of its samples."""

    def _drop_highest(
        self, inputs: FilterInputs, score: np.ndarray, reason: str, shown: np.ndarray | None = None
    ) -> None:
        """Drop the highest scores (n,), not NaN; `reason` formats the score or `shown` (n,)."""
        unknown, shown = np.isnan(score), score if shown is None else shown
        drop = highest(score, self.drop, inputs.labels if self.per_class else None)
        self.score_ = np.where(unknown, np.nanmin(score) if not unknown.all() else 0.0, score)
        self.keep_ = ~drop
        unseen = "kept: not seen enough in training"
        self.reason_ = [
            reason.format(shown[n]) if drop[n] else (unseen if u else "")
            for n, u in enumerate(unknown.tolist())
        ]
        self._mention_fewer(self.drop)
        if unknown.any():
            count = int(unknown.sum())
            self.warnings_.append(
                f"{counted(count, 'sample was', 'samples were')} seen too rarely in that run's "
                f"training to be judged and {'is' if count == 1 else 'are'} kept"
            )


def highest(score: np.ndarray, share: float, groups: np.ndarray | None = None) -> np.ndarray:
    """Mark the share of samples with the highest score, (n,) bool; of equal ones the later.

    A score (n,) of NaN means unknown: it counts, but is never marked. With `groups` (n,), mark the
    same share of each group, as nearly as whole samples allow; see `group_counts`.
    """
    marked = np.zeros(len(score), bool)
    parts = [np.arange(len(score))]
    if groups is not None:
        parts = [np.flatnonzero(groups == group) for group in np.unique(groups)]
    known = [rows[~np.isnan(score[rows])] for rows in parts]
    orders = [rows[np.argsort(score[rows], kind="stable")] for rows in known]
    counts = [round(share * len(score))]
    if groups is not None:
        sizes = np.array([len(rows) for rows in parts])
        at = np.floor(share * sizes + ROUNDING).astype(int)
        following = [
            score[order[-1 - n]] if n < len(order) else -np.inf
            for order, n in zip(orders, at.tolist(), strict=True)
        ]
        counts = group_counts(sizes, share, np.array(following)).tolist()
    for order, count in zip(orders, counts, strict=True):
        marked[order[max(0, len(order) - count) :]] = True
    return marked


def group_counts(
    sizes: np.ndarray, share: float, preference: np.ndarray | None = None
) -> np.ndarray:
    """Return how many samples are a share of each group, (groups,) int, within one sample.

    Together they are that share of all samples: rounded on their own, 5 % of groups of nine would
    be nothing. The largest remainders are rounded up, of equal ones those with the highest
    `preference` (groups,), but no group is used up.
    """
    exact = share * sizes
    counts = np.floor(exact + ROUNDING).astype(int)
    remainder = (exact - counts).round(9)
    order = np.lexsort((np.zeros(len(sizes)) if preference is None else -preference, -remainder))
    order = order[counts[order] + 1 < sizes[order]]
    counts[order[: max(0, round(share * int(sizes.sum())) - int(counts.sum()))]] += 1
    return counts
