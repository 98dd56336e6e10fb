"""Write one chunk of a source as one shard, checking, counting and hashing its samples.

Samples are written in record batches of a few megabytes, so that memory does not grow with the
shard. A shard is finished when its record (`N.json`, renamed into place last) exists.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from thresher.data import images as image_files
from thresher.data.digest import file_digest, file_sha256, sample_digest
from thresher.data.holdout import HoldOutOptions, hold_out
from thresher.data.labels import as_labels, check_samples
from thresher.data.meta import PackMeta, Shape, ShardMeta
from thresher.data.normalisation import count_files, subsample, value_counts
from thresher.data.shard import COLUMNS, map_shard, shard_schema
from thresher.data.sources.base import Block, Source
from thresher.data.sources.encoded import ColourFoundError, UnevenShapesError, usual_split
from thresher.errors import InvalidValueError
from thresher.options import from_mapping, option
from thresher.paths import atomic_file, read_json, write_json

BATCH_BYTES = 16 << 20
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class WriteOptions(HoldOutOptions):
    """How images are converted and written to a pack."""

    resize: int | None = option(None, ge=1, le=4096)
    """Scale the short side of each image to this many pixels and cut out the centre square."""
    strict: bool = False
    """Stop at the first broken image, instead of listing it."""
    processes: int | None = option(None, ge=1, le=4096, changes_result=False)
    """Number of worker processes; default: one per core."""

    def image_shape(self, source: Source | PackMeta) -> Shape | None:
        """Return the shape of the pack's raw images; None if they stay encoded files."""
        if self.resize is None:
            return source.image_shape
        return (self.resize, self.resize, source.image_shape[2] if source.image_shape else 3)


class _Sample(NamedTuple):
    id: str
    label: int
    split: str


class Job(NamedTuple):
    """What all workers of a packing share."""

    source: Source
    chunks: list[str]
    staging: Path
    options: WriteOptions


@dataclass(frozen=True)
class ShardRecord:
    """The record of a finished shard, stored as `N.json` until the pack is complete."""

    meta: ShardMeta
    splits: dict[str, int]
    broken: list[str]
    histograms: dict[str, list[list[int]]]

    @classmethod
    def read(cls, staging: Path, number: int) -> "ShardRecord":
        return from_mapping(cls, read_json(record_file(staging, number), "shard record"))


def write_shard(job: Job, number: int) -> None:
    """Write shard `number` and its record, using memory for a few record batches."""
    source, chunks, staging, options = job
    shard = ShardContent(source, options)
    file = f"{number:05d}.arrow"
    with atomic_file(staging / file) as temporary:
        with pa.ipc.new_file(temporary, shard_schema(shard.shape)) as writer:
            pending: list[pa.RecordBatch] = []
            for block in source.read(chunks[number]):
                usual = [usual_split(split) for split in block.splits]
                block = hold_out(dataclasses.replace(block, splits=usual), options)
                for piece in _pieces(block, shard.shape):
                    pending.append(shard.convert(piece))
                    if sum(batch.nbytes for batch in pending) >= BATCH_BYTES:
                        _flush(pending, writer)
                if options.strict:
                    check_no_broken(shard.broken)
            _flush(pending, writer)
        sha256 = file_sha256(temporary)
    with atomic_file(digests_file(staging, number)) as temporary, open(temporary, "wb") as out:
        np.save(out, np.frombuffer(b"".join(shard.digests), np.uint8).reshape(-1, 16))
    record = ShardRecord(
        ShardMeta(file, len(shard.digests), (staging / file).stat().st_size, sha256),
        dict(shard.splits),
        shard.broken,
        {split: counts.tolist() for split, counts in shard.histograms.items()},
    )
    write_json(record_file(staging, number), dataclasses.asdict(record))


def count_sampled(job: Job, part: tuple[ShardMeta, np.ndarray]) -> np.ndarray:
    """Count the values of some encoded images, given their shard and their rows in it."""
    shard, rows = part
    return count_files(map_shard(job.staging, shard, None), rows)


def check_no_broken(broken: Sequence[str]) -> None:
    """Raise if there is a broken image, as `strict` demands."""
    if broken:
        raise InvalidValueError(
            f"{broken[0]} cannot be read as an image",
            "repair it, or turn `strict` off to leave such files out",
        )


def record_file(staging: Path, number: int) -> Path:
    return staging / f"{number}.json"


def digests_file(staging: Path, number: int) -> Path:
    return staging / f"{number}.digests.npy"


def _pieces(block: Block, shape: Shape | None) -> list[Block]:
    """Split a block into parts whose raw pixels fit into one record batch."""
    if shape is None:
        return [block]
    step = max(1, BATCH_BYTES // int(np.prod(shape)))
    parts = [slice(begin, begin + step) for begin in range(0, max(len(block.ids), 1), step)]
    blocks = [Block(block.ids[p], block.labels[p], block.splits[p], block.images[p]) for p in parts]
    blocks[0].broken = block.broken
    return blocks


def _flush(pending: list[pa.RecordBatch], writer: pa.RecordBatchFileWriter) -> None:
    if pending:
        whole = pa.Table.from_batches(pending).combine_chunks()
        for batch in whole.to_batches():
            writer.write_batch(batch)
        pending.clear()


class ShardContent:
    """Converts the blocks of one shard, and counts and hashes their samples."""

    def __init__(self, source: Source | PackMeta, options: WriteOptions) -> None:
        self.source, self.resize = source, options.resize
        self.shape = options.image_shape(source)
        old = isinstance(source, PackMeta) and source.digests == "pixels"
        self.of_files = self.shape is None and not old
        self.digests: list[bytes] = []
        self.splits: Counter[str] = Counter()
        self.broken: list[str] = []
        self.histograms: dict[str, np.ndarray] = {}

    def convert(self, block: Block) -> pa.RecordBatch:
        self.broken += block.broken
        labels = as_labels(block.labels, self.source.name)
        check_samples(block.ids, labels, len(self.source.classes), self.source.name)
        rows = zip(block.ids, labels.tolist(), block.splits, strict=True)
        samples = [_Sample(*row) for row in rows]
        images: pa.Array
        if self.shape is None:
            assert not isinstance(block.images, np.ndarray)
            samples, images = self._keep_files(samples, block.images)
        elif isinstance(block.images, np.ndarray):
            raw = block.images
            if self.resize and raw.shape[1:3] != self.shape[:2]:
                raw = image_files.resized(raw, self.resize)
            images = self._store_raw(samples, raw, self.shape)
        else:
            samples, raw = self._decode(samples, block.images, self.shape)
            images = self._store_raw(samples, raw, self.shape)
        columns = [
            pa.array([sample[n] for sample in samples], kind) for n, (_, kind) in enumerate(COLUMNS)
        ]
        return pa.RecordBatch.from_arrays([*columns, images], schema=shard_schema(self.shape))

    def _readable(
        self, samples: list[_Sample], files: list[bytes], read: Callable[[bytes], T]
    ) -> Iterator[tuple[_Sample, bytes, T]]:
        """Yield what `read` returns of each file; those for which it raises are broken."""
        for sample, data in zip(samples, files, strict=True):
            try:
                image = read(data)
            except Exception:  # Pillow raises a dozen types for damaged files
                self.broken.append(sample.id)
            else:
                yield sample, data, image

    def _keep_files(
        self, samples: list[_Sample], files: list[bytes]
    ) -> tuple[list[_Sample], pa.Array]:
        """Keep encoded images unchanged.

        Each is checked and its file hashed. For packs of older versions each is decoded once, to
        check, count and hash its pixels.
        """
        kept, payload = [], []
        pixels: dict[str, list[np.ndarray]] = {}
        read = image_files.check if self.of_files else image_files.decode
        for sample, data, image in self._readable(samples, files, read):
            if image is None:
                self._add(sample, file_digest(sample.id, sample.label, data))
            else:
                self._add(sample, sample_digest(sample.id, sample.label, image))
                pixels.setdefault(sample.split, []).append(subsample(image))
            kept.append(sample)
            payload.append(data)
        for split, some in pixels.items():
            self._count(split, np.concatenate(some)[None, None])
        return kept, pa.array(payload, pa.large_binary())

    def _decode(
        self, samples: list[_Sample], files: list[bytes], shape: Shape
    ) -> tuple[list[_Sample], np.ndarray]:
        kept: list[_Sample] = []
        images = np.empty((len(files), *shape), np.uint8)
        decode = partial(image_files.decode, size=self.resize, channels=shape[2])
        for sample, data, image in self._readable(samples, files, decode):
            if shape[2] == 1 and not image_files.is_grey(data):
                raise ColourFoundError(
                    f"{sample.id} is a colour image, but the others are grey", "make it grey"
                )
            if image.shape != shape:
                raise UnevenShapesError(
                    f"{sample.id} is {_format(image.shape)}, but the others are {_format(shape)}",
                    "set `resize` to give all images one size",
                )
            images[len(kept)] = image
            kept.append(sample)
        return kept, images[: len(kept)]

    def _store_raw(self, samples: list[_Sample], images: np.ndarray, shape: Shape) -> pa.Array:
        if images.dtype != np.uint8 or images.shape != (len(samples), *shape):
            raise InvalidValueError(
                f"{self.source.name} gave {images.dtype} images of {_format(images.shape[1:])} at "
                f"{samples[0].id}, not uint8 of {_format(shape)}"
            )
        images = np.ascontiguousarray(images)
        for sample, image in zip(samples, images, strict=True):
            self._add(sample, sample_digest(sample.id, sample.label, image))
        splits = np.array([sample.split for sample in samples])
        for split in set(splits.tolist()):
            rows = splits == split
            self._count(split, images if rows.all() else images[rows])
        return pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(int(np.prod(shape))), len(images), [None, pa.py_buffer(images)]
        )

    def _add(self, sample: _Sample, digest: bytes) -> None:
        self.digests.append(digest)
        self.splits[sample.split] += 1

    def _count(self, split: str, images: np.ndarray) -> None:
        self.histograms[split] = self.histograms.get(split, 0) + value_counts(images)


def _format(shape: tuple[int, ...]) -> str:
    return "×".join(str(side) for side in shape)
