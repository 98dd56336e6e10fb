"""Small raw packs as one shard with one record batch: the fastest to gather from."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from thresher.data.digest import file_sha256
from thresher.data.pack import map_shard
from thresher.data.shard import schema_of
from thresher.paths import atomic_file

MERGED = "images.arrow"
"""Not the name of a shard: should merging be cut off, the shards must be what they were."""
MERGE_BYTES = 1 << 30
"""Raw packs up to this size become a single shard with a single record batch, which is gathered
from two to three times as fast."""


def mapped_batches(meta: dict[str, Any], staging: Path) -> list[pa.RecordBatch]:
    shape = tuple(meta["image_shape"]) if meta["image_shape"] else None
    return [
        batch
        for shard in meta["shards"]
        for batch in map_shard(staging / shard["file"], shard, shape)
    ]


def is_small(meta: dict[str, Any]) -> bool:
    return (
        meta["image_shape"] is not None
        and sum(shard["bytes"] for shard in meta["shards"]) <= MERGE_BYTES
    )


def merge(meta: dict[str, Any], staging: Path) -> dict[str, Any]:
    """All shards of a small raw pack as one with one record batch; its record for pack.json.

    The pixels go through a file that is mapped, not through memory.
    """
    batches = mapped_batches(meta, staging)
    if len(batches) == 1 == len(meta["shards"]):
        return dict(meta["shards"][0])
    width = int(np.prod(meta["image_shape"]))
    with atomic_file(staging / "pixels") as temporary:
        with open(temporary, "wb") as file:
            for batch in batches:
                column = batch.column("image")
                pixels = column.buffers()[1]
                file.write(pixels.slice(column.offset * width, len(column) * width))
        n = sum(batch.num_rows for batch in batches)
        with pa.memory_map(str(temporary)) as mapped:
            images = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(width), n, [None, mapped.read_buffer()]
            )
        columns = [
            pa.chunked_array([batch.column(name) for batch in batches]).combine_chunks()
            for name in ("id", "label", "split")
        ]
        schema = schema_of(tuple(meta["image_shape"]))
        whole = pa.RecordBatch.from_arrays([*columns, images], schema=schema)
        merged = staging / MERGED
        with atomic_file(merged) as out:
            with pa.ipc.new_file(out, schema) as writer:
                writer.write_batch(whole)
            sha256 = file_sha256(out)
    return {"file": merged.name, "samples": n, "bytes": merged.stat().st_size, "sha256": sha256}
