"""The Arrow IPC files of a pack: their schema, mapping them into memory, and merging small ones."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from thresher.data.digest import file_sha256
from thresher.data.meta import PackMeta, Shape, ShardMeta
from thresher.errors import InvalidValueError
from thresher.paths import atomic_file
from thresher.read_errors import unreadable

COLUMNS = (("id", pa.string()), ("label", pa.int32()), ("split", pa.string()))
MERGED = "images.arrow"
"""Not a shard's name: an interrupted merge must leave the shards as they were."""
MERGE_BYTES = 1 << 30
"""Raw packs up to this size are merged: random reads are then two to three times as fast."""


def shard_schema(shape: Shape | None) -> pa.Schema:
    """Return the schema of a shard of raw images of `shape`, or of encoded files if it is None."""
    image = pa.large_binary() if shape is None else pa.binary(int(np.prod(shape)))
    return pa.schema([*COLUMNS, ("image", image)])


def map_shards(root: Path, meta: PackMeta) -> list[pa.RecordBatch]:
    """Map the shards of a pack into memory and return their record batches, in order."""
    return [batch for shard in meta.shards for batch in map_shard(root, shard, meta.image_shape)]


def map_shard(root: Path, shard: ShardMeta, shape: Shape | None) -> list[pa.RecordBatch]:
    """Map one shard into memory and return its record batches."""
    path = root / shard.file
    try:
        with pa.memory_map(str(path)) as file:  # the batches keep the map, not the descriptor
            if file.size() != shard.bytes:
                raise _damaged(path, f"it has {file.size():,} bytes, not {shard.bytes:,}")
            reader = pa.ipc.open_file(file)
            batches = [reader.get_batch(n) for n in range(reader.num_record_batches)]
    except (pa.ArrowException, OSError) as error:
        raise unreadable(path, error) or _damaged(path, type(error).__name__) from None
    if any(not _has_columns(batch.schema, shape) for batch in batches):
        raise _damaged(path, "its columns are not those of a pack")
    if sum(batch.num_rows for batch in batches) != shard.samples:
        raise _damaged(path, f"it does not hold {shard.samples:,} samples")
    return batches


def _has_columns(schema: pa.Schema, shape: Shape | None) -> bool:
    columns = set(zip(schema.names, schema.types, strict=True))
    # The split may be dictionary-encoded.
    wanted = [field for field in shard_schema(shape) if field.name != "split"]
    return "split" in schema.names and {(f.name, f.type) for f in wanted} <= columns


def raw_images(batch: pa.RecordBatch, shape: Shape) -> np.ndarray:
    """Return the raw images of a batch, (n, height, width, channels) uint8, without a copy."""
    column, width = batch.column("image"), int(np.prod(shape))
    pixels = column.buffers()[1].slice(column.offset * width, len(column) * width)
    return np.frombuffer(pixels, np.uint8).reshape(-1, *shape)


def _damaged(path: Path, why: str) -> InvalidValueError:
    return InvalidValueError(
        f"the shard {path} is missing or damaged ({why})",
        "make the pack again, or restore that file",
    )


def merge(meta: PackMeta, root: Path) -> PackMeta:
    """Write all samples of a small raw pack to one shard in `root`; others stay as they are.

    The pixels go through a mapped file, so memory does not grow with the pack.
    """
    if meta.image_shape is None or meta.bytes > MERGE_BYTES:
        return meta
    batches = map_shards(root, meta)
    if len(batches) == 1 == len(meta.shards):
        return meta
    width = int(np.prod(meta.image_shape))
    with atomic_file(root / "pixels") as temporary:
        with open(temporary, "wb") as file:
            for batch in batches:
                file.write(raw_images(batch, meta.image_shape).data)
        n = sum(batch.num_rows for batch in batches)
        with pa.memory_map(str(temporary)) as mapped:
            images = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(width), n, [None, mapped.read_buffer()]
            )
        columns = [
            pa.chunked_array([batch.column(name) for batch in batches]).combine_chunks()
            for name in ("id", "label", "split")
        ]
        schema = shard_schema(meta.image_shape)
        whole = pa.RecordBatch.from_arrays([*columns, images], schema=schema)
        merged = root / MERGED
        with atomic_file(merged) as out:
            with pa.ipc.new_file(out, schema) as writer:
                writer.write_batch(whole)
            sha256 = file_sha256(out)
    return replace(meta, shards=(ShardMeta(MERGED, n, merged.stat().st_size, sha256),))
