"""The Arrow IPC files of a pack: their schema, and mapping them into memory."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from thresher.data.meta import PackMeta, Shape, ShardMeta
from thresher.errors import InvalidValueError

COLUMNS = (("id", pa.string()), ("label", pa.int32()), ("split", pa.string()))


def shard_schema(shape: Shape | None) -> pa.Schema:
    """Return the schema of a shard of raw images of `shape`, or of encoded files if it is None."""
    image = pa.large_binary() if shape is None else pa.binary(int(np.prod(shape)))
    return pa.schema([*COLUMNS, ("image", image)])


def map_shards(root: Path, meta: PackMeta) -> list[pa.RecordBatch]:
    """Map the shards of a pack into memory and return their record batches, in order.

    Raises:
        InvalidValueError: A file is missing, truncated or has other columns.
    """
    return [batch for shard in meta.shards for batch in _map(root, shard, meta.image_shape)]


def _map(root: Path, shard: ShardMeta, shape: Shape | None) -> list[pa.RecordBatch]:
    path = root / shard.file
    try:
        with pa.memory_map(str(path)) as file:  # the batches keep the map, not the descriptor
            if file.size() != shard.bytes:
                raise _damaged(path, f"it has {file.size():,} bytes, not {shard.bytes:,}")
            reader = pa.ipc.open_file(file)
            batches = [reader.get_batch(n) for n in range(reader.num_record_batches)]
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, type(error).__name__) from None
    if any(not _has_columns(batch.schema, shape) for batch in batches):
        raise _damaged(path, "its columns are not those of a pack")
    if sum(batch.num_rows for batch in batches) != shard.samples:
        raise _damaged(path, f"it does not hold {shard.samples:,} samples")
    return batches


def _has_columns(schema: pa.Schema, shape: Shape | None) -> bool:
    wanted = shard_schema(shape)
    if not set(wanted.names) <= set(schema.names):
        return False
    # The split may be dictionary-encoded.
    return all(schema.field(name).type == wanted.field(name).type for name in _STRICT)


_STRICT = ("id", "label", "image")


def _damaged(path: Path, why: str) -> InvalidValueError:
    return InvalidValueError(
        f"the shard {path} is missing or damaged ({why})",
        "make the pack again, or restore that file",
    )
