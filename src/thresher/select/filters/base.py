"""The contract of a filter, in scikit-learn's manner.

The constructor only stores its settings; `fit` validates them and the samples, and leaves its
findings in attributes that end in `_`. Every finding is a score *and* a yes or no per sample.
"""

import abc
import time
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np

from thresher.errors import ThresherError
from thresher.select.samples import Samples

Self = TypeVar("Self", bound="Filter")


class Filter(abc.ABC):
    """Chooses which training samples stay. Subclasses are dataclasses of their settings."""

    name: ClassVar[str]
    """As typed: `thresher select NAME`."""

    score_: np.ndarray
    """(n,) float32, higher is more suspicious."""
    keep_: np.ndarray
    """(n,) bool."""
    reason_: list[str]
    """Why a sample is dropped, or was kept against the rule; else empty."""
    x_: np.ndarray | None = None
    """(n,) float32, the map, where the filter has one."""
    y_: np.ndarray | None = None
    cluster_: np.ndarray | None = None
    """(n,) int32; -1 is noise, -2 not clustered."""
    votes_: np.ndarray | None = None
    """(n,) float32, share of votes to drop, where the filter voted."""
    report_: dict[str, Any]
    """What else is worth keeping in the sidecar; the same for the same input."""
    warnings_: list[str]
    """What a person should know before trusting the result."""
    seconds_: dict[str, float]
    """Wall time by stage."""

    def fit(self: Self, samples: Samples) -> Self:
        """Choose among the samples; gives itself back."""
        if len(samples) == 0:
            raise ThresherError("there are no training samples to choose from")
        self.report_, self.warnings_, self.seconds_ = {}, [], {}
        begun = time.perf_counter()
        self._fit(samples)
        self.seconds_["total"] = time.perf_counter() - begun
        self.score_ = np.asarray(self.score_, np.float32)
        self.keep_ = np.asarray(self.keep_, bool)
        assert len(self.score_) == len(self.keep_) == len(self.reason_) == len(samples)
        return self

    @abc.abstractmethod
    def _fit(self, samples: Samples) -> None:
        """Set score_, keep_ and reason_, and whatever else applies."""

    def method(self) -> str:
        """What the sidecar calls this choice."""
        return self.name

    def settings(self) -> dict[str, Any]:
        """The settings as plain values, for the sidecar."""
        assert is_dataclass(self)
        plain = (int, float, str, bool, list, tuple, type(None))
        return {k: v for k, v in asdict(self).items() if isinstance(v, plain)}


@dataclass
class ShareFilter(Filter):
    """A filter that ranks samples and drops the most suspicious share of them."""

    drop: float = 0.05
    """Share of the training samples to drop."""
    per_class: bool = False
    """Drop the same share of every class, instead of the share of all."""

    def _drop_highest(self, samples: Samples, score: np.ndarray, why: str) -> None:
        """Drop the share with the highest score; of equal ones the later in the pack.

        `why` is a format of the score, such as `EL2N {:.3f}`. Samples whose score is NaN are not
        known to the filter: they are kept, and said to be.
        """
        share = checked_share(self.drop)
        unknown = np.isnan(score)
        score = np.where(unknown, np.nanmin(score) if not unknown.all() else 0.0, score)
        drop = np.zeros(len(samples), bool)
        groups = [np.arange(len(samples))]
        if self.per_class:
            groups = [np.flatnonzero(samples.labels == c) for c in np.unique(samples.labels)]
        for rows in groups:
            count = round(share * len(rows))
            rows = rows[~unknown[rows]]
            order = rows[np.argsort(score[rows], kind="stable")]
            drop[order[max(0, len(order) - count) :]] = True
        self.score_, self.keep_ = score, ~drop
        self.reason_ = [
            why.format(score[n]) if drop[n] else ("kept: not seen in training" if u else "")
            for n, u in enumerate(unknown.tolist())
        ]
        if unknown.any():
            self.warnings_.append(
                f"{int(unknown.sum())} samples were not seen in that run's training and are kept"
            )


def checked_share(share: float) -> float:
    if not 0 <= share < 1:
        raise ThresherError(f"a share of {share} cannot be dropped", "choose one in [0, 1)")
    return share


def per_class_counts(samples: Samples, keep: np.ndarray) -> dict[str, dict[str, Any]]:
    """By class name: kept, dropped and the share dropped."""
    found: dict[str, dict[str, Any]] = {}
    for label in np.unique(samples.labels):
        here = keep[samples.labels == label]
        found[samples.class_name(int(label))] = {
            "kept": int(here.sum()),
            "dropped": int((~here).sum()),
            "dropped_share": float((~here).mean()),
        }
    return found
