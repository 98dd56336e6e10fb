"""The checks of an audit. Each adds its findings, and drops training images for them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice

import numpy as np

from thresher.auditing.config import AuditConfig
from thresher.auditing.findings import Example, Finding
from thresher.data.copy_links import CopyLinks
from thresher.data.image_statistics import BROKEN, FAULTS, Fault, image_statistics
from thresher.data.pack import Pack
from thresher.errors import counted
from thresher.select.aligned_copies import aligned_copies
from thresher.select.copies import Copies, fewest_links, join_copies, near_copies, pixel_vectors
from thresher.select.filters.base import Filter
from thresher.select.filters.label_errors import LabelErrorsFilter
from thresher.select.filters.outliers import OutliersFilter
from thresher.select.inputs import FilterInputs

LEAST_AGREEMENT = 0.8
"""Share of labels that a classifier must agree with before its doubts drop an image."""
OUTLIER_LIMIT = 4.0
"""Below the default of the filter, which also serves features that are not trusted."""
SMALL_CLASS = 1 / 3
"""Share of the median number of images below which a class is small."""
_ODD_SHAPE = ("odd-shape", "odd size or aspect")
"""Kind of finding and reason; other faults are their own."""

Reasons = Mapping[int, str]
"""Rows of training images, most suspicious first, and why each is listed."""


@dataclass
class Checks:
    """Findings so far, and what is dropped for them. An image is dropped by the first check."""

    pack: Pack
    inputs: FilterInputs
    """Training images with features."""
    config: AuditConfig
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was not looked for, and why."""

    def __post_init__(self) -> None:
        self.keep = np.ones(len(self.inputs), bool)
        self.reason = [""] * len(self.inputs)
        self.doubt = np.zeros(len(self.inputs), np.float32)
        """(n,) probability that the label is wrong, in [0, 1]."""
        self.suggested = np.full(len(self.inputs), -1, np.int32)
        """(n,) the class that an image probably belongs to; -1: none is likelier than its own."""
        self.links: CopyLinks | None = None
        """Near-copies in training, and of test images."""
        self.trusted = True
        """Whether the features tell the classes apart, so that images are dropped by them."""

    @cached_property
    def positions(self) -> np.ndarray:
        """Positions of the training images in the pack."""
        return self.pack.positions(self.inputs.ids)

    @cached_property
    def others(self) -> np.ndarray:
        """Positions of the test and validation images in the pack."""
        return np.setdiff1d(np.arange(len(self.pack)), self.pack.indices("train"))

    @cached_property
    def faults(self) -> Mapping[Fault, np.ndarray]:
        """Which training images are broken or odd, (n,) bool each."""
        return image_statistics(self.pack, self.positions).faults()

    def broken(self) -> None:
        """Find images that are blank, noise, blurred or of an odd shape, and unreadable files."""
        for fault in FAULTS:
            kind, reason = _ODD_SHAPE if fault == "shape" else (fault, f"{fault} image")
            reasons = {int(row): reason for row in np.flatnonzero(self.faults[fault])}
            files: list[str] = []
            total = len(self.inputs)
            if fault == "unreadable":
                files = self.pack.meta.broken
                total = len(self.pack) + len(files)  # of all splits
            shown = chain((Example(id=str(name)) for name in files), self._examples(reasons))
            dropped = self._drop(reasons) if fault in BROKEN else self._mark(reasons)
            self._add(kind, len(reasons) + len(files), shown, dropped, total)

    def label_errors(self) -> None:
        """Find labels that a cross-validated classifier on the features contradicts."""
        labels, counts = np.unique(self.inputs.labels, return_counts=True)
        if len(labels) < 2 or counts.min() < 2:
            few = self.inputs.class_name(int(labels[counts.argmin()]))
            what = "there is one class" if len(labels) < 2 else f"class {few} has one image"
            self.trusted = False
            self.notes.append(
                f"Label errors were not looked for: {what}. Outliers are hints, and nothing is "
                "dropped for them."
            )
            return
        fitted = LabelErrorsFilter(seed=self.config.seed).fit_inputs(self.inputs)
        self.doubt = fitted.score_
        if fitted.suggested_ is not None:
            self.suggested = np.where(self.keep, fitted.suggested_, -1)
        agreement = fitted.report_["agreement"]
        self.trusted = agreement >= LEAST_AGREEMENT
        if not self.trusted:
            self.notes.append(
                f"A classifier on the features agrees with only {100 * agreement:.0f} % of the "
                "labels: label errors and outliers are hints, and nothing is dropped for them. "
                f"{self._better_network()}"
            )
        self._add_doubts("label-errors", fitted)

    def _better_network(self) -> str:
        """Return what to try if the features do not tell the classes apart."""
        if self.config.model or self.config.run or self.config.features:
            return "A better network finds more."
        return "A better network finds more: try --model efficientnet-lite0."

    def copies(self) -> None:
        """Find near-copies among the training images, and of test images."""
        n, where = len(self.inputs), np.concatenate([self.positions, self.others])
        labels, doubt = self.pack.labels[where], self.doubt
        broken = np.zeros(len(where), bool)  # noise images may be alike by chance
        broken[:n] = self.faults["noise"] | self.faults["blank"]
        gone = ~self.keep
        pairs: dict[str, list[tuple[int, int, float]]] = {"conflicts": [], "near-duplicates": []}
        leaks: list[tuple[int, int, float]] = []
        vectors = pixel_vectors(self.pack, where)
        images = self.pack, self.positions, self.others
        aligned = aligned_copies(*images, vectors, self.config.leakage)
        found = join_copies(near_copies(vectors), aligned)
        valid = ~broken[found.later] & ~broken[found.earlier] & (found.earlier < n)
        found = Copies(*(values[valid] for values in found))
        self.links = self._links(fewest_links(found, len(where)), where)
        for a, b, similarity in zip(*(values.tolist() for values in found), strict=True):
            if a >= n:  # a test image, and b its copy in training
                leaks.append((b, a, similarity))
                continue
            if labels[a] != labels[b]:  # one goes, which may have gone already
                first = gone[a] or (not gone[b] and doubt[a] >= doubt[b])
                drop, stay = (a, b) if first else (b, a)
                gone[drop] = True
                if self.suggested[drop] < 0:
                    self.suggested[drop] = labels[stay]
                pairs["conflicts"].append((drop, stay, similarity))
            elif not gone[a] and not gone[b]:
                gone[a] = True
                pairs["near-duplicates"].append((a, b, similarity))
        if pairs["conflicts"] and not doubt.any():
            self.notes.append(
                "No classifier says which of two near-copies with different labels is right: the "
                "later one was dropped. Look at both."
            )
        tested = {test for _, test, _ in leaks}
        self._add_pairs("leakage", leaks, where, len(tested), len(self.others))
        for kind, listed in pairs.items():  # an image may be like several of other labels
            self._add_pairs(kind, listed, where, len({row for row, _, _ in listed}), n)

    def _links(self, copies: Copies, where: np.ndarray) -> CopyLinks:
        """Name the images of pairs of rows of `where`."""
        ids, others = (
            self.pack.ids.take(where[rows]).to_pylist() for rows in (copies.earlier, copies.later)
        )
        return CopyLinks(ids, others, copies.similarity, "correlation of the pixels")

    def outliers(self) -> None:
        """Find images far from their class that no other check explains."""
        fitted = OutliersFilter(limit=OUTLIER_LIMIT).fit_inputs(self.inputs)
        self._add_doubts("outliers", fitted)

    def balance(self) -> None:
        """Find classes with few training images."""
        counts = np.bincount(self.inputs.labels, minlength=len(self.pack.classes))
        median = float(np.median(counts))
        order = np.argsort(counts, kind="stable")
        small = [int(label) for label in order if counts[label] < SMALL_CLASS * median]
        names = [self.inputs.class_name(label) for label in small]
        shown = [
            Example(id=name, label=name, reason=counted(counts[label], "training image"))
            for label, name in zip(small, names, strict=True)
        ]
        note = f"Classes have {counts.min():,} to {counts.max():,} images, {median:,.0f} at median."
        total = len(self.pack.classes)
        self._add("small-classes", len(small), shown, total=total, note=note)

    def _add(
        self,
        kind: str,
        count: int,
        examples: Iterable[Example],
        dropped: int = 0,
        total: int | None = None,
        note: str = "",
    ) -> None:
        share = count / max(1, len(self.inputs) if total is None else total)
        shown = tuple(islice(examples, self.config.examples))
        self.findings.append(
            Finding(kind=kind, count=count, share=share, dropped=dropped, note=note, examples=shown)
        )

    def _add_pairs(
        self,
        kind: str,
        pairs: list[tuple[int, int, float]],
        where: np.ndarray,
        count: int,
        total: int,
    ) -> None:
        """Add pairs of a training row, another row of `where`, and their similarity."""
        pairs = sorted(pairs, key=lambda pair: -pair[2])
        others = where[[other for _, other, _ in pairs]] if pairs else np.empty(0, np.int64)
        ids = self.pack.ids.take(others).to_pylist()
        reasons: dict[int, str] = {}
        shown = []
        for (row, _, similarity), other, id in zip(pairs, others, ids, strict=True):
            reason = f"like {id} (correlation {similarity:.4f})"
            reasons.setdefault(row, reason)
            label = self.inputs.class_name(int(self.pack.labels[other]))
            example = self._example(row, reason, similarity)
            shown.append(replace(example, other=id, other_label=label))
        self._add(kind, count, shown, self._drop(reasons), total)

    def _add_doubts(self, kind: str, fitted: Filter) -> None:
        """Add what a filter on the features drops of the rest; drop it if they are trusted."""
        found = np.flatnonzero(~fitted.keep_ & self.keep)
        order = found[np.argsort(-fitted.score_[found], kind="stable")]
        reasons = {int(row): fitted.reason_[row] for row in order}
        shown = self._examples(reasons, fitted.score_)
        dropped = self._drop(reasons) if self.trusted else self._mark(reasons)
        self._add(kind, len(reasons), shown, dropped)

    def _examples(self, reasons: Reasons, score: np.ndarray | None = None) -> Iterator[Example]:
        for row, reason in reasons.items():
            yield self._example(row, reason, 0.0 if score is None else float(score[row]))

    def _example(self, row: int, reason: str, score: float) -> Example:
        label = self.inputs.class_name(int(self.inputs.labels[row]))
        return Example(id=self.inputs.ids[row], label=label, reason=reason, score=score)

    def _drop(self, reasons: Reasons) -> int:
        """Drop images that are still kept; return how many."""
        rows = [row for row in reasons if self.keep[row]]
        for row in rows:
            self.keep[row] = False
            self.reason[row] = reasons[row]
        return len(rows)

    def _mark(self, reasons: Reasons) -> int:
        """Note why images are listed, without dropping them."""
        for row, reason in reasons.items():
            self.reason[row] = self.reason[row] or f"kept: {reason}"
        return 0
