"""A pack: images in a folder of memory-mapped Arrow IPC shards, described by `pack.json`.

A shard has the columns `id` (string), `label` (int32), `split` (string) and `image`: fixed-size
binary of height × width × channels raw bytes if all images share a shape, otherwise the encoded
file. Raw images are read as zero-copy views of the map. Any Arrow reader (pandas, polars, DuckDB)
opens the shards.
"""

import hashlib
import reprlib
import shlex
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from thresher.data.gather import Gather, run_in_threads
from thresher.data.ids import Ids, rows_by_id
from thresher.data.images import Resample, decode, encode_png, shown_channels
from thresher.data.meta import PackMeta, Shape
from thresher.data.shard import map_shards, raw_images
from thresher.data.sources.known import NAMES
from thresher.data.verify import damaged_shards, wrong_fields
from thresher.environment import core_count
from thresher.errors import (
    InvalidTypeError,
    InvalidValueError,
    NotFoundError,
    check_type,
    nearest,
)
from thresher.foreign_data import instead_of
from thresher.paths import PackPaths, as_path, cached_pack, home

if TYPE_CHECKING:
    from PIL.Image import Image as PilImage

    from thresher.data.dataset import PackDataset


@dataclass(frozen=True)
class PackInfo:
    """A summary of a pack, as printed by `thresher data info`; see `PackMeta` for the fields."""

    name: str
    splits: dict[str, int]
    classes: list[str]
    image_shape: Shape | None
    mean: list[float]
    std: list[float]
    fingerprint: str
    bytes: int
    samples: int
    shards: int
    broken: int
    path: str
    source: str


class EncodedBuffers(NamedTuple):
    """The encoded files of a pack: sample i is `data[shard[i]][begin[i]:end[i]]`."""

    data: list[np.ndarray]
    """Bytes, read-only; one array for each record batch."""
    shard: np.ndarray
    begin: np.ndarray
    end: np.ndarray


class Pack:
    """An opened, read-only pack of images.

    Samples have positions 0 … len(pack) - 1 in shard order, and stable string ids. Copies and
    pickles of a pack map the files again; no pixels are copied.

    Attributes:
        root: The folder.
        meta: The content of `pack.json`.
        name: Name of the data set.
        classes: Class names; a label is an index into them.
        fingerprint: Identifies ids, labels and images, independent of their order: by the pixels of
            raw images, by the bytes of encoded files.
        image_shape: (height, width, channels) of raw images; None if the images are encoded files.
        mean: (channels,) float64, of the training images scaled to [0, 1]; of encoded files, of a
            sixteenth of them.
        std: (channels,) float64, likewise.

    Example:
        >>> from thresher.data.get import get
        >>> get("digits").name  # makes the pack if it is not in the cache
        'digits'
        >>> pack = Pack.open("digits")
        >>> len(pack), pack.image_shape, pack.meta.splits
        (1797, (8, 8, 1), {'train': 1437, 'test': 360})
        >>> train = pack.indices("train")
        >>> pack.images(train[:64]).shape
        (64, 8, 8, 1)
        >>> pack.labels[train[:3]].tolist()
        [1, 2, 3]
        >>> pack.ids[0].as_py(), pack.positions(["digits/0002", "unknown"]).tolist()
        ('digits/0000', [2, -1])
    """

    def __init__(self, root: Path, meta: PackMeta) -> None:
        self.root = root
        self.meta = meta
        self.name = meta.name
        self.classes = meta.classes
        self.fingerprint = meta.fingerprint
        self.image_shape = meta.image_shape
        self.mean = np.array(meta.mean, dtype=np.float64)
        self.std = np.array(meta.std, dtype=np.float64)
        self._batches = map_shards(root, meta)
        self._starts = np.cumsum([0, *(batch.num_rows for batch in self._batches)])

    @classmethod
    def open(cls, name_or_path: str | Path) -> "Pack":
        """Open a pack by its folder, or by its name in the cache.

        Raises:
            NotFoundError: There is no such pack. For a known data set, the message names the
                command that gets it.
            InvalidValueError: The pack is damaged.
        """
        root = find_pack(name_or_path)
        return cls(root, PackMeta.read(root))

    def __reduce__(self) -> tuple[Any, ...]:
        return Pack, (self.root, self.meta)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def identity(self) -> tuple[str, ...]:
        """The folder and the checksums of its shards: equal if positions mean the same samples."""
        return str(self.root.resolve()), *(shard.sha256 for shard in self.meta.shards)

    @property
    def checksum(self) -> str:
        """Of the shards: unlike the fingerprint, it depends on splits and order, too."""
        shards = " ".join(shard.sha256 for shard in self.meta.shards)
        return hashlib.sha256(shards.encode()).hexdigest()[:32]

    def __repr__(self) -> str:
        return f"Pack({str(self.root)!r}, {len(self):,} samples, {len(self.classes)} classes)"

    @cached_property
    def ids(self) -> pa.ChunkedArray:
        """Sample ids by position: an Arrow string array, without a Python string per sample."""
        return pa.chunked_array([batch.column("id") for batch in self._batches], type=pa.string())

    @cached_property
    def labels(self) -> np.ndarray:
        """Labels by position, (n,) int64."""
        columns = [batch.column("label").to_numpy() for batch in self._batches]
        return np.concatenate(columns).astype(np.int64) if columns else np.empty(0, np.int64)

    @cached_property
    def splits(self) -> pa.ChunkedArray:
        """Name of each sample's split by position: an Arrow string array."""
        columns = [batch.column("split").cast(pa.string()) for batch in self._batches]
        return pa.chunked_array(columns, type=pa.string())

    def indices(self, split: str) -> np.ndarray:
        """Return the positions of the samples of a split, ascending, (n,) int64."""
        check_type(split, str, "split", "a name")
        if split not in self.meta.splits:
            raise InvalidValueError(
                f'the pack {self.name} has no split "{split}"', nearest(split, self.meta.splits)
            )
        import pyarrow.compute as pc  # not at the top: it takes as long as all of pyarrow

        return np.flatnonzero(pc.equal(self.splits, split).to_numpy()).astype(np.int64)

    @property
    def test_split(self) -> str | None:
        """Name of the split that accuracy is reported on: test, else validation, if any."""
        splits = self.meta.splits
        return next((name for name in ("test", "validation") if splits.get(name)), None)

    def positions(self, ids: Ids) -> np.ndarray:
        """Return the positions of the given ids, (n,) int64; -1 for ids not in the pack."""
        return rows_by_id(ids, self.ids)

    def training_positions(
        self, ids: Ids, fingerprint: str, name: str, fix: str = "select on this pack"
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of the samples of a selection, and of all training samples.

        Refuse a selection, which messages call `name`, that was made on a pack with another
        fingerprint, or that names other samples than training samples.
        """
        if self.fingerprint != fingerprint:
            raise InvalidValueError(
                f"{name} was made on a pack with the fingerprint {fingerprint[:8]}…, but "
                f"{self.name} has {self.fingerprint[:8]}…",
                fix,
            )
        positions = self.positions(ids)
        if (positions < 0).any():
            raise InvalidValueError(f"{name} names samples that are not in {self.name}")
        train = self.indices("train")
        if not np.isin(positions, train).all():
            raise InvalidValueError(
                f"{name} names validation or test samples of {self.name}",
                "only training samples may be filtered",
            )
        return positions, train

    def images(
        self,
        positions: np.ndarray,
        out: np.ndarray | None = None,
        size: int | None = None,
        resample: Resample = "bilinear",
    ) -> np.ndarray:
        """Return the images at `positions`, (n, height, width, channels) uint8.

        Raw images are copied once, out of the memory map; encoded images are decoded in threads.

        Args:
            positions: (n,) integers.
            out: Array to fill; two to three times as fast as new memory if it was used before.
            size: Scale the short side of encoded images to this many pixels and cut out the
                centre square. Required if the images are encoded, since a batch has one shape.
            resample: How encoded images are scaled.
        """
        given = np.asarray(positions)
        if given.ndim != 1:
            what = f"positions must be (n,) integers, got {reprlib.repr(positions)}"
            raise InvalidTypeError(what, "give a list, also of one", "positions")
        if len(given) and given.dtype.kind not in "iu":  # a mask would be read as 0 and 1
            raise InvalidValueError(
                f"positions must be integers, got {given.dtype}",
                "give `np.flatnonzero` of a mask",
                "positions",
            )
        positions = given.astype(np.int64, copy=False)
        if len(positions) and not (positions.min() >= 0 and positions.max() < len(self)):
            raise IndexError(f"positions must be in [0, {len(self)})")
        if self.image_shape is None and size is None:
            raise InvalidValueError(
                f"the images of {self.name} differ in size", "give one `size` to read them at"
            )
        shape = (len(positions), *(self.image_shape or (size or 0, size or 0, 3)))
        if out is None:
            out = np.empty(shape, dtype=np.uint8)
        elif out.shape != shape or out.dtype != np.uint8:
            raise ValueError(f"out must be uint8 {shape}, got {out.dtype} {out.shape}")
        if self.image_shape is None:

            def decode_rows(begin: int, end: int) -> None:
                for row in range(begin, end):
                    out[row] = decode(self.encoded(int(positions[row])), size, resample=resample)

            run_in_threads(decode_rows, len(positions), least=4, threads=core_count())
        elif len(positions):
            contiguous = out if out.flags.c_contiguous else np.empty(shape, np.uint8)
            self._gather.into(positions, contiguous.reshape(len(positions), -1))
            if contiguous is not out:
                out[...] = contiguous
        return out

    def dataset(
        self, transform: "Callable[[PilImage], Any] | None" = None, split: str = "train"
    ) -> "PackDataset":
        """Return the samples of a split as a map-style torch data set of (image, label).

        It knows its `ids` and `targets`, and can be sent to the workers of a DataLoader.

        Args:
            transform: Called with each image as a PIL image, such as torchvision's transforms. By
                default images are tensors (channels, height, width), float32 in [0, 1].
            split: Name of the split.
        """
        from thresher.data.dataset import PackDataset

        return PackDataset(self, split, transform)

    def view(self, position: int) -> np.ndarray:
        """Return one raw image as a zero-copy, read-only view (height, width, channels).

        Raises:
            InvalidValueError: The images are encoded.
        """
        if self.image_shape is None:
            raise InvalidValueError(
                f"the images of {self.name} are encoded, so that there is no view of their pixels",
                "read them with `images` and a `size`, or with `dataset`",
            )
        number, row = self._locate(position)
        return self._raw[number][row]

    def encoded(self, position: int) -> bytes:
        """Return one image as an encoded file: as stored, or a PNG of the raw pixels."""
        if self.image_shape is None:
            number, row = self._locate(position)
            return bytes(self._batches[number].column("image")[row].as_buffer())
        return encode_png(self.view(position))

    def shown(self, position: int) -> bytes:
        """Return one image as a file to look at: as stored, or a PNG of up to three channels."""
        if self.image_shape is None:
            return self.encoded(position)
        return encode_png(shown_channels(self.view(position)))

    def encoded_buffers(self) -> "EncodedBuffers":
        """Return the memory of the encoded files as they lie in the map, without a copy."""
        assert self.image_shape is None
        data, shards, begins, ends = [], [], [], []
        for number, batch in enumerate(self._batches):
            column = batch.column("image")
            _, offsets, content = column.buffers()
            bounds = np.frombuffer(offsets, np.int64)[column.offset :][: len(column) + 1]
            data.append(np.frombuffer(content, np.uint8))
            shards.append(np.full(len(column), number))
            begins.append(bounds[:-1])
            ends.append(bounds[1:])
        return EncodedBuffers(data, *map(np.concatenate, (shards, begins, ends)))

    def info(self) -> PackInfo:
        """Return a summary of the pack."""
        meta = self.meta
        own: dict[str, Any] = {
            "samples": len(self),
            "shards": len(meta.shards),
            "broken": len(meta.broken),
            "path": str(self.root),
        }
        names = [field.name for field in fields(PackInfo) if field.name not in own]
        return PackInfo(**own, **{name: getattr(meta, name) for name in names})

    def verify(self) -> list[str]:
        """Check every byte of the pack and return what differs: nothing, if it is intact.

        Returns:
            The file names of damaged shards. If there are none, the fields of `pack.json` that
            are not those of the images: fingerprint, splits, classes, mean, std and others. For
            that, every image is read by its decoder.
        """
        return damaged_shards(self.root, self.meta) or wrong_fields(self.meta, self._batches)

    @cached_property
    def _raw(self) -> list[np.ndarray]:
        """Per record batch, the image column as a zero-copy array (n, height, width, channels)."""
        assert self.image_shape is not None
        return [raw_images(batch, self.image_shape) for batch in self._batches]

    @cached_property
    def _gather(self) -> Gather:
        assert self.image_shape is not None
        return Gather(self._raw, int(np.prod(self.image_shape)))

    def _locate(self, position: int) -> tuple[int, int]:
        check_type(position, (int, np.integer), "position", "an integer")
        if not 0 <= position < len(self):
            raise IndexError(f"position must be in [0, {len(self)}), got {position}")
        number = int(np.searchsorted(self._starts, position, side="right")) - 1
        return number, int(position - self._starts[number])


def find_pack(name_or_path: str | Path) -> Path:
    """Return the folder of a pack given by its path or by its name in the cache."""
    path = as_path(name_or_path, "name_or_path", instead_of(name_or_path))
    name = str(name_or_path)
    if PackPaths(path).meta.exists():
        return path
    cached = cached_pack(name)
    if "/" not in name and PackPaths(cached).meta.exists():
        return cached
    if name in NAMES:
        raise NotFoundError(
            f'data set "{name}" is not in the cache', f"get it with `thresher data get {name}`"
        )
    if path.exists():
        raise InvalidValueError(
            f"{name} is not a pack: it has no pack.json",
            f"pack it: `thresher data pack {shlex.quote(name)} OUT`",
        )
    packs = {p.name for p in (home() / "packs").glob("*") if PackPaths(p).meta.exists()}
    known = nearest(name, packs | set(NAMES))
    if "/" in name:
        known = "check the path"
    elif known.startswith("choose"):
        known = f"check the path, or {known}"
    raise NotFoundError(f'there is no pack "{name}"', known)
