"""What the server tells the page about a selection, a sample and the decisions."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class ReviewState:
    """The decisions in force."""

    keep: np.ndarray
    """(n,) bool, overrides included."""
    overruled: np.ndarray
    """(n,) bool: decided by a person."""
    labels: np.ndarray | None
    """(n,) int16, -1 for the label of the pack; None if nobody changed a label."""
    version: int
    """Number of lines in the override log."""
    undo: int
    """How many decisions can be undone."""
    redo: int
    """How many decisions can be redone."""


@dataclass(frozen=True)
class SelectionInfo:
    """What the page needs to know before the points arrive."""

    name: str
    samples: int
    data: str
    """Name of the pack."""
    classes: list[str]
    per_class: list[int]
    """Samples of each class, by the labels that people gave."""
    image_shape: tuple[int, int, int] | None
    layout: str
    """Kind of `MapLayout`."""
    by_dbscan: bool
    """Whether DBSCAN on its map made it, or its sidecar names no method."""
    clusters: bool
    votes: bool
    scores: bool
    """Whether the scores differ."""
    method: str
    settings: dict[str, Any]
    """The sidecar without paths of this machine."""


@dataclass(frozen=True)
class FilterDecision:
    """What the filter itself decided about a sample."""

    keep: bool
    reason: str


@dataclass(frozen=True)
class OverrideDecision(FilterDecision):
    """What a person decided about a sample."""

    time: float
    label: int | None
    """The new label, if it was changed."""


@dataclass(frozen=True)
class SampleDetail:
    """One sample with the decisions about it."""

    id: str
    row: int
    label: int
    score: float
    cluster: int
    filter: FilterDecision
    keep: bool
    override: OverrideDecision | None


@dataclass(frozen=True)
class LogEntry:
    """A line of the override log."""

    time: float
    kind: str
    keep: bool
    label: int | None
    reason: str
    count: int
    ids: list[str]
    """The first ids; `count` is the number of all."""
    text: str
    """The decision in words."""
