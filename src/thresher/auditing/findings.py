"""What an audit finds: kinds of findings, and examples of each."""

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from thresher.auditing.config import AuditConfig
from thresher.data.sources.encoded import spread
from thresher.options import from_mapping

if TYPE_CHECKING:
    from thresher.data.pack import Pack

FORMAT = 1
PHOTO_SIDE = 224
"""Usual side of photographs in training."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of finding, as shown to people."""

    title: str
    explanation: str
    of: str = "training images"
    """What `share` is a share of."""


KINDS: Mapping[str, Kind] = {
    "leakage": Kind(
        title="Test images with a near-copy in training",
        explanation="Accuracy on them measures memory. Their copies in training are dropped.",
        of="test images",
    ),
    "label-errors": Kind(
        title="Likely label errors",
        explanation="Another class claims these images with high confidence, by confident learning "
        "on probabilities of a classifier that was not fitted to them.",
    ),
    "conflicts": Kind(
        title="Near-copies with different labels",
        explanation="At most one of the labels is right. The less likely one is dropped.",
    ),
    "near-duplicates": Kind(
        title="Near-copies within a class",
        explanation="They add little and count twice. All but the first are dropped.",
    ),
    "unreadable": Kind(
        title="Unreadable files",
        explanation="They cannot be decoded and are not in the pack.",
        of="files",
    ),
    "blank": Kind(title="Blank images", explanation="Images without contrast."),
    "noise": Kind(
        title="Noise images",
        explanation="Neighbouring pixels are unrelated, as they never are in pictures.",
    ),
    "outliers": Kind(
        title="Outliers",
        explanation="Far from all but a few images of their class, as the network sees them.",
    ),
    "blurred": Kind(
        title="Blurred images",
        explanation="Far less detail than usual here. They may be right, and are kept.",
    ),
    "odd-shape": Kind(
        title="Odd sizes and aspects",
        explanation="Four times the usual aspect ratio or size, or a quarter. They are kept.",
    ),
    "small-classes": Kind(
        title="Small classes",
        explanation="Classes with less than a third of the median number of training images.",
        of="classes",
    ),
}
"""Kinds by name, most serious first."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """An image, or a class, of a finding."""

    id: str
    label: str = ""
    """Name of its class."""
    reason: str = ""
    score: float = 0.0
    """Higher is more suspicious, within the finding."""
    other: str | None = None
    """Id of the image that it is a copy of."""
    other_label: str | None = None


@dataclass(frozen=True, kw_only=True)
class Finding:
    """All that an audit found of one kind."""

    kind: str
    count: int
    share: float
    """Of the training images, unless `KINDS` says otherwise."""
    dropped: int = 0
    """Training images that the selection drops for it, and for no finding that was checked before:
    each dropped image is counted once."""
    note: str = ""
    """What a reader should know, such as why nothing was dropped."""
    examples: tuple[Example, ...] = ()
    """The most suspicious ones, ranked."""


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The result of an audit, as in `audit.json`.

    Example:
        >>> from thresher import Audit
        >>> from thresher.auditing.findings import Finding
        >>> found = Audit(
        ...     data="photos", fingerprint="0a1b", classes=2, train=100, test=20, kept=93,
        ...     network="tiny", selection="AUDIT/selection.parquet", page="AUDIT/index.html",
        ...     findings=(Finding(kind="blank", count=7, share=0.07, dropped=7),),
        ... )
        >>> {finding.kind: finding.dropped for finding in found.findings}
        {'blank': 7}
    """

    format: int = FORMAT
    """Version of the file."""
    data: str
    """Name of the pack."""
    fingerprint: str
    """Fingerprint of the pack."""
    classes: int
    """Number of classes."""
    train: int
    """Number of training images."""
    test: int
    """Number of test and validation images."""
    kept: int
    """Number of training images that the selection keeps."""
    network: str
    """What the images were looked at with."""
    findings: tuple[Finding, ...]
    """Most serious first; those without any image last."""
    selection: str
    """The selection that drops what was found."""
    page: str
    """Where `write_report` writes the page."""
    notes: tuple[str, ...] = ()
    """What was not looked for, and why."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The options."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of the packages that were used."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Audit":
        """Build an audit from the content of `audit.json`."""
        return from_mapping(cls, values)


def next_commands(audit: Audit, pack: "Pack") -> dict[str, tuple[str, ...]]:
    """Return the commands that review, train and export what is kept, as words."""
    data, selection = str(pack.root), ("--selection", audit.selection)
    size = ("--image-size", str(_side(audit, pack))) if pack.image_shape is None else ()
    return {
        "review": ("thresher", "view", audit.selection),
        "train": ("thresher", "train", "--data", data, *selection, *size, "--out", "RUN"),
        "export": ("thresher", "data", "export", data, "CLEANED", *selection),
    }


def _side(audit: Audit, pack: "Pack") -> int:
    """Return the size to train on: that of the audit if it was chosen, or one for these images.

    The default of an audit is for a quick look; photographs lose their details at that size.
    """
    from PIL import Image

    chosen = int(audit.settings.get("image_size", AuditConfig.image_size))
    if chosen != AuditConfig.image_size:
        return chosen
    some = spread(range(len(pack)))
    sides = [min(Image.open(io.BytesIO(pack.encoded(position))).size) for position in some]
    return min(PHOTO_SIDE, max(chosen, int(median(sides)) // 32 * 32))
