"""A copy of a pack with some training labels changed at random, to test filters on known errors."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.data.sources.base import Block
from thresher.data.write import write_pack
from thresher.errors import InvalidValueError
from thresher.options import option, validate
from thresher.paths import PackPaths, as_path

CHUNK = 10_000
ORACLE = "flipped.parquet"
"""The selection inside the new pack that drops exactly the samples with a changed label."""


@dataclass(frozen=True, kw_only=True)
class FlipOptions:
    """Options of `flip_labels`."""

    share: float = option(0.1, gt=0, lt=1)
    """Share of the training labels to change, each to another class chosen at random."""
    seed: int = option(0, ge=0, lt=2**63)
    """Seed of the choice."""


class FlippedSource:
    """A pack with changed labels, as a source for the pack writer."""

    def __init__(self, pack: Pack, options: FlipOptions) -> None:
        if len(pack.classes) < 2:
            raise InvalidValueError(f"{pack.name} has one class: no label can be changed")
        self.pack, self.options = pack, options
        self.name = f"{pack.name}-flipped-{100 * options.share:g}"
        self.classes = pack.classes
        self.image_shape = pack.image_shape

    def key(self) -> str:
        return (
            f"{self.pack.fingerprint} with {self.options.share:g} of the training labels "
            f"changed, seed {self.options.seed}"
        )

    def chunks(self) -> list[str]:
        return [str(begin) for begin in range(0, len(self.pack), CHUNK)]

    def read(self, chunk: str) -> Iterator[Block]:
        pack = self.pack
        at = np.arange(int(chunk), min(int(chunk) + CHUNK, len(pack)))
        ids, splits = (column.take(at).to_pylist() for column in (pack.ids, pack.splits))
        images = [pack.encoded(int(i)) for i in at] if pack.image_shape is None else pack.images(at)
        yield Block(ids, self.labels()[at], splits, images)

    def labels(self) -> np.ndarray:
        """Return the labels of all samples by position, (n,) int64, with the changed ones."""
        labels, train = self.pack.labels.copy(), self.pack.indices("train")
        random = np.random.Generator(np.random.Philox(self.options.seed))
        rows = random.permutation(train)[: round(self.options.share * len(train))]
        other = random.integers(1, len(self.classes), len(rows))
        labels[rows] = (labels[rows] + other) % len(self.classes)
        return labels


def flip_labels(pack: Pack, out: Path | str, options: FlipOptions | None = None) -> Pack:
    """Write a copy of a pack in which a share of the training labels is wrong.

    The new pack contains a selection, `flipped.parquet`, that drops exactly the samples whose label
    was changed: the oracle that a filter is compared with.

    Args:
        pack: The pack to copy.
        out: Folder to create; if it holds the same copy already, nothing is written.
        options: The share of labels to change, and a seed.

    Example:
        >>> import tempfile
        >>> from thresher.data.get import get
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     flipped = flip_labels(get("digits"), f"{folder}/flipped", FlipOptions(share=0.15))
        ...     Selection.load(f"{folder}/flipped/flipped.parquet").dropped
        216
    """
    options = options or FlipOptions()
    validate(options)
    source = FlippedSource(pack, options)
    paths = PackPaths(as_path(out, "out"))
    existing = Pack.open(out) if paths.meta.exists() else None
    if existing is not None and _is_copy(existing, source):
        copy = existing  # made before, perhaps by a process that was killed before the next lines
    else:
        copy = write_pack(source, out)
    if not (paths.root / ORACLE).exists():
        _oracle(pack, copy).save(paths.root / ORACLE)
    return copy


def _is_copy(existing: Pack, source: FlippedSource) -> bool:
    """Return whether a pack is that copy; the fingerprint does not tell splits apart."""
    if existing.meta.source != source.key():
        return False
    at = source.pack.positions(existing.ids)
    return existing.splits.to_pylist() == source.pack.splits.take(at).to_pylist()


def _oracle(pack: Pack, copy: Pack) -> Selection:
    train = copy.indices("train")
    ids = copy.ids.take(train)
    old, new = pack.labels[pack.positions(ids)], copy.labels[train]
    wrong = old != new
    return Selection(
        ids=ids.to_pylist(),
        labels=new,
        keep=~wrong,
        score=wrong.astype(np.float32),
        reason=[
            f"label changed from {pack.classes[o]} to {pack.classes[n]}" if o != n else ""
            for o, n in zip(old, new, strict=True)
        ],
        fingerprint=copy.fingerprint,
        class_names=tuple(copy.classes),
        meta={"method": "oracle", "data": str(copy.root)},
    )
