"""A selection: which training samples of a pack to keep, with scores, reasons and new labels."""

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from thresher.data import matching
from thresher.data import selection_file as stored
from thresher.data.applied import check_not_applied
from thresher.data.class_order import check_class_order, check_dataset_classes, check_new_labels
from thresher.data.copy_links import CopyLinks
from thresher.data.digest import order_digest
from thresher.data.ids import check_lengths, rows_by_id
from thresher.data.overrides import Override, OverrideLog, effective_overrides, empty_log
from thresher.data.pack import Pack
from thresher.errors import InvalidValueError, MissingDependencyError, check_type, counted
from thresher.foreign_data import instead_of
from thresher.paths import SelectionPaths, as_path

if TYPE_CHECKING:
    from torch.utils.data import Dataset, Subset

    from thresher.data.sampler import EpochSampler

logger = logging.getLogger(__name__)


@dataclass
class Selection:
    """Which training samples of a pack to keep, with scores and reasons.

    All arrays have one entry per training sample, in pack order.

    Example:
        >>> import tempfile
        >>> from thresher.data.get import get
        >>> pack = get("digits")
        >>> train = pack.indices("train")
        >>> selection = Selection(
        ...     ids=pack.ids.take(train).to_pylist(),
        ...     labels=pack.labels[train],
        ...     keep=np.arange(len(train)) % 10 > 0,
        ...     score=np.zeros(len(train)),
        ...     reason=[""] * len(train),
        ...     fingerprint=pack.fingerprint,
        ... )
        >>> selection.kept, selection.dropped
        (1293, 144)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     loaded = Selection.load(selection.save(f"{folder}/keep.parquet").path)
        >>> loaded.indices(pack)[:3].tolist()  # positions of kept samples; 1 was dropped
        [2, 3, 4]
        >>> len(loaded.apply(range(1437), order="pack"))  # any data set; see `apply`
        1293
    """

    ids: list[str]
    """Sample ids."""
    labels: np.ndarray
    """(n,) int64."""
    keep: np.ndarray
    """(n,) bool, with overrides applied."""
    score: np.ndarray
    """(n,) float32; higher is more suspicious, for every filter."""
    reason: list[str]
    """Why a sample is dropped, or kept against the filter; empty for ordinary kept samples."""
    fingerprint: str
    """Fingerprint of the pack; the selection cannot be used with another."""
    x: np.ndarray | None = None
    """(n,) float32, coordinate on the map; NaN for samples that are not on it."""
    y: np.ndarray | None = None
    """(n,) float32, the other coordinate."""
    cluster: np.ndarray | None = None
    """(n,) int32, cluster within the class; -1 is noise, -2 not clustered."""
    votes: np.ndarray | None = None
    """(n,) float32, share of votes to drop."""
    new_labels: np.ndarray | None = None
    """(n,) int32, labels that people gave; -1 where a sample has that of the pack."""
    suggested: np.ndarray | None = None
    """(n,) int32, the class that a sample probably belongs to; -1 where the filter names none."""
    meta: dict[str, Any] = field(default_factory=dict)
    """The sidecar: `method`, `data`, `settings` and what the filter reports; free-form JSON."""
    path: Path | None = None
    """The file, once saved or loaded."""
    copies: CopyLinks | None = None
    """Near-copies, if the filter looked for them."""
    decided: np.ndarray | None = None
    """(n,) bool, samples that people decided on in the override log; None if there are none."""
    class_names: tuple[str, ...] = ()
    """Class names of the pack, in the order of their numbers; empty if they are not known."""
    row_order: str | None = None
    """Digest of the ids in pack order, from the sidecar; None if nothing was read."""
    log: OverrideLog = field(default_factory=empty_log, repr=False, compare=False)
    """The decisions that were applied; newer ones are mentioned."""

    def __post_init__(self) -> None:
        self.keep = np.asarray(self.keep, bool)  # zeros and ones would be taken for positions
        self.labels = np.asarray(self.labels)
        self.class_names = tuple(self.class_names)
        check_lengths(vars(self), self.ids)

    @property
    def kept(self) -> int:
        """Number of kept samples."""
        return int(self.keep.sum())

    @property
    def dropped(self) -> int:
        """Number of dropped samples."""
        return len(self.keep) - self.kept

    @property
    def title(self) -> str:
        """What messages call the selection."""
        return "the selection" if self.path is None else f"the selection {self.path}"

    @property
    def relabelled(self) -> np.ndarray:
        """The kept samples that have a new label, (n,) bool."""
        if self.new_labels is None:
            return np.zeros(len(self.ids), bool)
        return self.keep & (self.new_labels >= 0)

    @property
    def final_labels(self) -> np.ndarray:
        """The labels to train with, (n,) int64: those of the pack, or those that people gave."""
        if self.new_labels is None:
            return self.labels
        return np.where(self.relabelled, self.new_labels, self.labels).astype(np.int64)

    @property
    def digest(self) -> str:
        """Digest of the kept samples and their labels: equal if nothing changes for training."""
        kept = zip(self.ids, self.final_labels.tolist(), self.keep.tolist(), strict=True)
        text = "\n".join(f"{id}\t{label}" for id, label, keep in kept if keep)
        return hashlib.sha256(f"{self.fingerprint}\n{text}".encode()).hexdigest()[:32]

    def labels_of(self, pack: Pack) -> np.ndarray:
        """Return the labels to train with, of all samples of `pack`, (n,) int64.

        Raises:
            InvalidValueError: The selection was made on another pack, or gives a sample a class
                that the pack does not have.
        """
        self.indices(pack)
        labels, changed = pack.labels.copy(), self.relabelled
        check_new_labels(self.final_labels[changed], pack, self.title)
        labels[pack.positions(self.ids)[changed]] = self.final_labels[changed]
        return labels

    def save(self, path: Path | str) -> "Selection":
        """Write the table to `path`, which must end in .parquet, and its sidecar; return `self`.

        Raises:
            AlreadyExistsError: The selection exists.
        """
        paths = SelectionPaths(as_path(path, "path"))
        columns = {column: getattr(self, field) for column, field in stored.FIELDS.items()}
        header: dict[str, Any] = {"fingerprint": self.fingerprint}
        header["row_order"] = self.row_order or order_digest(self.ids)
        header |= {stored.CLASS_NAMES: self.class_names} if self.class_names else {}
        stored.write_files(paths, columns, {**header, **self.meta, **header}, self.copies)
        self.path, self.log = paths.table, OverrideLog(paths.overrides)
        return self

    @classmethod
    def load(cls, path: Path | str, overrides: bool = True) -> "Selection":
        """Read a selection from its .parquet file.

        Args:
            path: The .parquet file.
            overrides: Apply the decisions in the override log.

        Raises:
            NotFoundError: There is no such file.
            InvalidValueError: The table, the sidecar or the log is damaged.
        """
        paths = SelectionPaths(as_path(path, "path"))
        columns, meta, copies = stored.read_files(paths)
        ids, labels, reason = (columns.pop(name) for name in ("id", "label", "reason"))
        arrays = {name: column.to_numpy().copy() for name, column in columns.items()}
        selection = cls(
            ids=ids.to_pylist(),
            labels=labels.to_numpy().astype(np.int64),
            reason=[text or "" for text in reason.to_pylist()],
            fingerprint=meta.pop("fingerprint"),
            class_names=meta.pop(stored.CLASS_NAMES, ()),
            row_order=meta.pop("row_order", None),
            meta=meta,
            path=paths.table,
            new_labels=arrays.pop("new_label", None),
            copies=copies,
            **arrays,
        )
        if overrides:
            selection.log = OverrideLog(paths.overrides)
            selection.apply_overrides(selection.log.read())
        return selection

    def apply_overrides(self, entries: Iterable[Override]) -> None:
        """Apply people's decisions to `keep`, `reason` and `new_labels`; of several on a sample
        the last one that was not undone counts.

        Raises:
            InvalidValueError: A decision names an id that the selection does not have.
        """
        decisions = effective_overrides(entries)
        for id, row in zip(decisions, rows_by_id(list(decisions), self.ids).tolist(), strict=True):
            if row < 0:
                raise InvalidValueError(f'a decision on {self.path} names unknown sample "{id}"')
            entry = decisions[id]
            if self.decided is None:
                self.decided = np.zeros(len(self.ids), bool)
            self.keep[row], self.decided[row] = entry.keep, True
            self.reason[row] = f"override: {entry.reason}" if entry.reason else "override"
            if self.new_labels is None and entry.label is not None:
                self.new_labels = np.full(len(self.ids), -1, np.int32)
            if self.new_labels is not None:
                self.new_labels[row] = -1 if entry.label is None else entry.label

    def positions(
        self, pack: Pack, fix: str = "select on this pack"
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions in `pack` of all rows, and of all training samples.

        Raises:
            InvalidValueError: The pack is another one, or numbers its classes in another way.
        """
        check_not_applied(self, pack)
        check_class_order(self.class_names, pack.classes, self.title, pack.name, fix)
        return pack.training_positions(self.ids, self.fingerprint, self.title, fix)

    def indices(self, pack: Pack, within: Literal["pack", "train"] = "pack") -> np.ndarray:
        """Return the positions of the kept samples, ascending, (n,) int64.

        Args:
            pack: The pack that the selection was made on.
            within: "pack" counts all samples of the pack, for `Pack.images`. "train" counts only
                training samples, for a file of those in pack order, such as FFCV's `indices`.

        Raises:
            InvalidValueError: The selection was made on another pack.
        """
        check_type(pack, Pack, "pack", "a Pack", instead_of(pack))
        if within not in ("pack", "train"):
            raise InvalidValueError(
                f'within must be "pack" or "train", got {within!r}', "", "within"
            )
        self.log.mention_newer()
        positions, train = self.positions(pack)
        kept = np.sort(positions[self.keep])
        return kept if within == "pack" else np.searchsorted(train, kept)

    def apply(
        self, dataset: "Dataset[Any] | Sized", order: Literal["pack"] | None = None
    ) -> "Subset[Any]":
        """Return a torch `Subset` of the kept samples, in the order of the data set.

        Samples are matched by the data set's `ids` (of `Pack.dataset`, or your own), or by the
        paths in `samples` or `imgs` (torchvision's ImageFolder). A data set that only has labels
        (`targets`, `labels`) must be in pack order, and its labels must show it. Items (image,
        label, …) get the new labels that people gave.

        Args:
            dataset: The training samples, or some of them if they have ids or paths.
            order: "pack" if the data set holds the training samples in pack order; this is then
                not verified.

        Raises:
            InvalidValueError: The data set holds other samples, or its order cannot be verified.
        """
        from torch.utils.data import Subset

        rows, changes = self._kept_rows(dataset, order)
        if not changes:
            return Subset(dataset, rows)  # type: ignore[arg-type]
        from thresher.data.relabelled import RelabelledSubset

        return RelabelledSubset(dataset, rows, changes)

    def select(self, dataset: Any, order: Literal["pack"] | None = None) -> Any:
        """Return a Hugging Face `Dataset` of the kept ones of its samples.

        Samples are matched by the column `id`; without it, as in `apply`, by the labels.
        """
        rows, changes = self._kept_rows(dataset, order)
        if not changes:
            return matching.select_rows(dataset, rows)
        from thresher.data.relabelled import relabel_columns

        return relabel_columns(matching.select_rows(dataset, rows), changes)

    def sampler(
        self,
        dataset: Any,
        seed: int = 0,
        rank: int | None = None,
        world: int | None = None,
        order: Literal["pack"] | None = None,
    ) -> "EpochSampler":
        """Return a sampler of the kept samples for a DataLoader of `dataset`, with `set_epoch`.

        Epochs have the order of `thresher train`, on any number of workers and of any data set.

        Args:
            dataset: As in `apply`, or its result, which has the new labels that people gave.
            seed: Seed of the order.
            rank: Number of this worker; by default that of the torch.distributed group.
            world: Number of workers, likewise. Give 0 and 1 if something else divides the batches.
            order: As in `apply`.
        """
        from thresher.data.sampler import DistributedEpochSampler, EpochSampler

        matching.check_row_order(self._in_pack_order, "make the selection again")
        self.log.mention_newer()
        rows = matching.match_samples(dataset, self.ids, self.labels, order)
        positions = np.where(self.keep, matching.positions_of_rows(rows, len(self.ids)), -1)
        if not hasattr(dataset, "changes"):  # what `apply` returned has the new labels
            self._mention_labels("a sampler")
        kind = EpochSampler if world == 1 else DistributedEpochSampler
        return kind(positions, seed, rank, world)

    def keeps(self, sample: str | Mapping[str, Any]) -> bool:
        """Return whether a sample is kept; a predicate for `select` of a WebDataset.

        Args:
            sample: An id, or a sample of a WebDataset (a mapping with `__key__` and `__url__`).

        Raises:
            InvalidValueError: The selection does not name the sample.
        """
        check_type(sample, (str, Mapping), "sample", "an id or a sample of a WebDataset")
        ids = [sample] if isinstance(sample, str) else matching.webdataset_ids(sample)
        row = next((self._row_by_id[id] for id in ids if id in self._row_by_id), None)
        if row is None:
            what = f'sample "{ids[-1]}" is not in the selection'
            raise InvalidValueError(what, "pass only training samples of the pack it was made on")
        return bool(self.keep[row])

    def export(
        self, path: Path | str, pack: Pack, within: Literal["pack", "train"] = "train"
    ) -> Path:
        """Write the kept samples for other tools, and return the path.

        Args:
            path: File to write; .txt gets an id per line, .npy int64 positions, ascending.
            pack: The pack that the selection was made on.
            within: What positions count; see `indices`.
        """
        path = as_path(path, "path")
        positions = self.indices(pack, within)
        self._mention_labels(path.name)
        stored.write_kept(path, pack.ids.take(self.indices(pack)).to_pylist(), positions)
        return path

    def show(self, height: int = 720) -> Any:
        """Show the map in a notebook, in a frame of `height` pixels."""
        # The viewer is in a later layer, so it is found as a plugin and not imported.
        from importlib.metadata import entry_points

        for viewer in entry_points(group="thresher.viewer"):
            return viewer.load()(self, height)
        raise MissingDependencyError("no viewer is installed", "install Thresher with pip")

    def _mention_labels(self, what: str) -> None:
        """Warn that something cannot carry new labels."""
        if count := int((self.final_labels != self.labels).sum()):
            logger.warning(
                f"{counted(count, 'sample has a new label', 'samples have new labels')}, which "
                f"{what} does not contain: use `apply`, `labels_of` or `thresher data export`"
            )

    @cached_property
    def _row_by_id(self) -> dict[str, int]:
        self.log.mention_newer()
        self._mention_labels("a predicate")
        return {id: row for row, id in enumerate(self.ids)}

    @property
    def _in_pack_order(self) -> bool:
        """False if another program sorted the rows of the file."""
        return self.row_order in (None, order_digest(self.ids))

    def _kept_rows(
        self, dataset: Any, order: str | None
    ) -> tuple[list[int], dict[int, tuple[int, int]]]:
        """Return the kept rows of a data set, and old and new labels by number of kept row."""
        self.log.mention_newer()
        rows = matching.match_samples(dataset, self.ids, self.labels, order, self._in_pack_order)
        kept, final = np.flatnonzero(self.keep[rows]), self.final_labels
        changed = np.flatnonzero((final != self.labels)[rows[kept]]).tolist()
        check_dataset_classes(self.class_names if changed else (), dataset, self.title)
        at = {number: rows[kept[number]] for number in changed}
        return kept.tolist(), {n: (int(self.labels[row]), int(final[row])) for n, row in at.items()}
