"""One chunk of a source becomes one shard: converted, checked, counted and digested on the way.

Samples are written in record batches of some megabytes, so that memory does not grow with the
shard. A shard is finished when its record (`N.json`, renamed into place last) exists.
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from thresher.data import images as pixels_of
from thresher.data.digest import file_sha256, sample_digest
from thresher.data.sources.base import Block, Source
from thresher.data.sources.encoded import Uneven
from thresher.errors import ThresherError
from thresher.paths import atomic_file, write_json

BATCH_BYTES = 16 << 20
SCHEMA_FIELDS = (("id", pa.string()), ("label", pa.int32()), ("split", pa.string()))


@dataclass(frozen=True)
class WriteOptions:
    """How images become a pack."""

    resize: int | None = None
    """Decode and resize images to this many pixels a side, once, at packing."""
    strict: bool = False
    """Stop at the first image that cannot be read, instead of listing it."""
    processes: int = 0
    """Processes that read and write shards at once; 0: one per core."""

    def shape(self, source: Source) -> tuple[int, int, int] | None:
        """(height, width, channels) of the raw images in the pack; None: kept encoded."""
        if self.resize is None:
            return source.image_shape
        return (self.resize, self.resize, source.image_shape[2] if source.image_shape else 3)


Row = tuple[str, int, str]
"""id, label, split."""


@dataclass
class Tally:
    """What is counted while a shard is written."""

    samples: int = 0
    digests: list[bytes] = field(default_factory=list)
    splits: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    counts: dict[str, np.ndarray] = field(default_factory=dict)
    """Per split, how often each byte value occurs in each channel: (channels, 256) int64."""

    def add(self, row: Row, image: np.ndarray) -> None:
        id, label, split = row
        self.samples += 1
        self.digests.append(sample_digest(id, label, image))
        self.splits[split] += 1

    def count(self, split: str, counts: np.ndarray) -> None:
        self.counts[split] = self.counts.get(split, 0) + counts


def write_shard(
    source: Source, chunk: str, number: int, staging: Path, options: WriteOptions
) -> None:
    """Write shard `number` and its record to `staging`; memory: a few record batches."""
    shape = options.shape(source)
    schema = schema_of(shape)
    tally = Tally()
    file = shard_name(number)
    with atomic_file(staging / file) as temporary:
        with pa.ipc.new_file(temporary, schema) as writer:
            waiting: list[pa.RecordBatch] = []
            for block in source.read(chunk):
                for piece in _pieces(block, shape):
                    waiting.append(_convert(piece, source, shape, options, tally))
                    if sum(batch.nbytes for batch in waiting) >= BATCH_BYTES:
                        _flush(waiting, writer)
                if tally.broken and options.strict:
                    raise ThresherError(
                        f"{tally.broken[0]} cannot be read as an image",
                        "mend it, or leave --strict out to have such files listed",
                    )
            _flush(waiting, writer)
        sha256 = file_sha256(temporary)
    with atomic_file(digests_file(staging, number)) as temporary, open(temporary, "wb") as out:
        np.save(out, np.frombuffer(b"".join(tally.digests), np.uint8).reshape(-1, 16))
    record = {
        "file": file,
        "samples": tally.samples,
        "bytes": (staging / file).stat().st_size,
        "sha256": sha256,
        "splits": dict(tally.splits),
        "broken": tally.broken,
        "counts": {split: counts.tolist() for split, counts in tally.counts.items()},
    }
    write_json(record_file(staging, number), record)


def shard_name(number: int) -> str:
    return f"{number:05d}.arrow"


def record_file(staging: Path, number: int) -> Path:
    """Its existence says that the shard is finished."""
    return staging / f"{number}.json"


def digests_file(staging: Path, number: int) -> Path:
    return staging / f"{number}.digests.npy"


def schema_of(shape: tuple[int, int, int] | None) -> pa.Schema:
    image = pa.large_binary() if shape is None else pa.binary(int(np.prod(shape)))
    return pa.schema([*SCHEMA_FIELDS, ("image", image)])


def _pieces(block: Block, shape: tuple[int, int, int] | None) -> list[Block]:
    """The block in parts whose raw pixels take no more than a record batch."""
    if isinstance(block.images, np.ndarray):
        each = int(np.prod(shape or block.images.shape[1:]))
    else:
        each = 0 if shape is None else int(np.prod(shape))
    step = max(1, BATCH_BYTES // each) if each else max(1, len(block.ids))
    return [
        Block(
            block.ids[at : at + step],
            block.labels[at : at + step],
            block.splits[at : at + step],
            block.images[at : at + step],
            block.broken if at == 0 else [],
        )
        for at in range(0, max(len(block.ids), 1), step)
    ]


def _flush(waiting: list[pa.RecordBatch], writer: pa.RecordBatchFileWriter) -> None:
    if waiting:
        whole = pa.Table.from_batches(waiting).combine_chunks()
        for batch in whole.to_batches():
            writer.write_batch(batch)
        waiting.clear()


def _convert(
    block: Block,
    source: Source,
    shape: tuple[int, int, int] | None,
    options: WriteOptions,
    tally: Tally,
) -> pa.RecordBatch:
    """A block as a record batch of the pack's schema; what cannot be read goes to the tally."""
    tally.broken += block.broken
    labels = [int(label) for label in block.labels]
    rows = list(zip(block.ids, labels, block.splits, strict=True))
    _check(rows, source)
    stored: pa.Array
    if shape is None:
        assert not isinstance(block.images, np.ndarray)
        rows, stored = _keep_encoded(rows, block.images, tally)
    else:
        if isinstance(block.images, np.ndarray):
            images = block.images
            if options.resize and images.shape[1:3] != shape[:2]:
                images = pixels_of.resized(images, options.resize)
        else:
            rows, images = _decode(rows, block.images, shape, options, tally)
        stored = _store_raw(rows, images, shape, source, tally)
    named = [pa.array([row[n] for row in rows], SCHEMA_FIELDS[n][1]) for n in range(3)]
    return pa.RecordBatch.from_arrays([*named, stored], schema=schema_of(shape))


def _check(rows: list[Row], source: Source) -> None:
    for id, label, _ in rows:
        if not 0 <= label < len(source.classes):
            raise ThresherError(
                f"the sample {id} of {source.name} has the label {label}, "
                f"but there are {len(source.classes)} classes"
            )


def _keep_encoded(rows: list[Row], files: list[bytes], tally: Tally) -> tuple[list[Row], pa.Array]:
    """Encoded images as they are; each is decoded once, to be checked, counted and digested."""
    kept, payload = [], []
    seen: dict[str, list[np.ndarray]] = {}
    for row, data in zip(rows, files, strict=True):
        try:
            array = pixels_of.decode(data)
        except Exception:  # Pillow raises a dozen kinds on broken files; each means the same.
            tally.broken.append(row[0])
            continue
        tally.add(row, array)
        seen.setdefault(row[2], []).append(_some_pixels(array))
        kept.append(row)
        payload.append(data)
    for split, some in seen.items():
        tally.count(split, value_counts(np.concatenate(some)[None, None]))
    return kept, pa.array(payload, pa.large_binary())


def _decode(
    rows: list[Row],
    files: list[bytes],
    shape: tuple[int, int, int],
    options: WriteOptions,
    tally: Tally,
) -> tuple[list[Row], np.ndarray]:
    kept: list[Row] = []
    images = np.empty((len(files), *shape), np.uint8)
    for row, data in zip(rows, files, strict=True):
        try:
            image = pixels_of.decode(data, options.resize, shape[2])
        except Exception:
            tally.broken.append(row[0])
            continue
        if image.shape != shape:
            raise Uneven(
                f"{row[0]} is {_say(image.shape)}, but the others are {_say(shape)}",
                "give one size with --resize",
            )
        images[len(kept)] = image
        kept.append(row)
    return kept, images[: len(kept)]


def _store_raw(
    rows: list[Row],
    images: np.ndarray,
    shape: tuple[int, int, int],
    source: Source,
    tally: Tally,
) -> pa.Array:
    if images.dtype != np.uint8 or images.shape != (len(rows), *shape):
        raise ThresherError(
            f"{source.name} gave {images.dtype} images of {_say(images.shape[1:])} at {rows[0][0]}"
            f", not uint8 of {_say(shape)}"
        )
    images = np.ascontiguousarray(images)
    for row, image in zip(rows, images, strict=True):
        tally.add(row, image)
    splits = np.array([row[2] for row in rows])
    for split in set(splits.tolist()):
        here = splits == split
        tally.count(split, value_counts(images if here.all() else images[here]))
    width = int(np.prod(shape))
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(width), len(images), [None, pa.py_buffer(images)]
    )


def _some_pixels(image: np.ndarray) -> np.ndarray:
    """Every eighth pixel each way of an image that is not tiny, (n, 3): counting all of a
    photograph would cost a quarter of its decoding, and it is resized before use anyway."""
    step = 8 if image.size > 3 * 64 * 64 else 1
    return image[::step, ::step].reshape(-1, 3)


def value_counts(images: np.ndarray) -> np.ndarray:
    """How often each byte value occurs per channel, (channels, 256) int64, of uint8 images."""
    channels = images.shape[3]
    if channels in (1, 3) and len(images):
        from PIL import Image

        # Pillow counts bytes as they are; numpy would make each of them eight bytes long.
        tall = images.reshape(-1, images.shape[2], channels)
        flat = Image.fromarray(tall[:, :, 0] if channels == 1 else tall)
        return np.array(flat.histogram(), np.int64).reshape(channels, 256)
    flat_bytes = images.reshape(-1, channels)
    return np.stack([np.bincount(flat_bytes[:, c], minlength=256) for c in range(channels)])


def _say(shape: tuple[int, ...]) -> str:
    return "×".join(str(side) for side in shape)
