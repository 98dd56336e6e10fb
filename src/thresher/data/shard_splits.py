"""Give test images their split once all samples of a pack are known.

A block of photographs holds one or two of them, so that no share of each class can be drawn from
it. The shards are written with training samples only, and those that hold test images once more.
"""

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa

from thresher.data.digest import file_sha256
from thresher.data.holdout import HoldOutOptions, choose_test
from thresher.data.meta import Shape, ShardMeta
from thresher.data.normalisation import value_counts
from thresher.data.shard import map_shard, raw_pixels, shard_schema
from thresher.data.shard_writer import ShardRecord, record_file
from thresher.paths import atomic_file, write_json


def shards_with_test(
    staging: Path, records: list[ShardRecord], shape: Shape | None, options: HoldOutOptions
) -> list[tuple[int, np.ndarray]]:
    """Return the numbers of the shards that hold test images, and which they are, (n,) bool."""
    ids: list[str] = []
    labels = [np.empty(0, np.int64)]
    for record in records:
        for batch in map_shard(staging, record.meta, shape):
            ids += batch.column("id").to_pylist()
            labels.append(batch.column("label").to_numpy())
    chosen = choose_test(ids, np.concatenate(labels), options)
    ends = np.cumsum([record.meta.samples for record in records])
    parts = np.split(chosen, ends[:-1])
    return [(number, part) for number, part in enumerate(parts) if part.any()]


def set_test(staging: Path, number: int, shape: Shape | None, test: np.ndarray) -> None:
    """Write a finished shard again with these samples (n,) bool as test images."""
    record = ShardRecord.read(staging, number)
    batches = map_shard(staging, record.meta, shape)
    histograms: dict[str, np.ndarray] = {}
    record_file(staging, number).unlink()  # if this is interrupted, the shard is not finished
    file = staging / record.meta.file
    with atomic_file(file) as temporary:
        with pa.ipc.new_file(temporary, shard_schema(shape)) as writer:
            begin = 0
            for batch in batches:
                own = test[begin : begin + batch.num_rows]
                begin += batch.num_rows
                names = pa.array(np.where(own, "test", "train").tolist(), pa.string())
                column = batch.schema.get_field_index("split")
                writer.write_batch(batch.set_column(column, "split", names))
                if shape is not None:
                    _count(histograms, batch, shape, own)
        sha256 = file_sha256(temporary)
    splits = {"train": len(test) - int(test.sum()), "test": int(test.sum())}
    changed = dataclasses.replace(
        record,
        meta=ShardMeta(file.name, record.meta.samples, file.stat().st_size, sha256),
        splits={split: count for split, count in splits.items() if count},
        histograms={split: counts.tolist() for split, counts in histograms.items()},
    )
    write_json(record_file(staging, number), dataclasses.asdict(changed))


def _count(
    histograms: dict[str, np.ndarray], batch: pa.RecordBatch, shape: Shape, test: np.ndarray
) -> None:
    """Add the values of the raw images of a batch to the counts of their splits."""
    pixels = np.frombuffer(raw_pixels(batch, int(np.prod(shape))), np.uint8)
    images = pixels.reshape(-1, *shape)
    for split, rows in (("train", ~test), ("test", test)):
        if rows.any():
            histograms[split] = histograms.get(split, 0) + value_counts(images[rows])
