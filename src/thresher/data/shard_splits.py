"""Give test images their split once all samples of a pack are known.

A block of photographs holds one or two of them, so that no share of each class can be drawn from
it. The shards are written with training samples only. Then the names of the splits are replaced in
the files: "test" is shorter than "train", so that nothing moves and no image is written again.
"""

import dataclasses
import os
from pathlib import Path

import numpy as np
import pyarrow as pa

from thresher.data.digest import file_sha256
from thresher.data.holdout import HoldOutOptions, choose_test
from thresher.data.meta import Shape
from thresher.data.normalisation import value_counts
from thresher.data.shard import map_shard, raw_images
from thresher.data.shard_writer import Job, ShardRecord, record_file
from thresher.paths import disk_errors, write_json


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


def set_test(job: Job, part: tuple[int, np.ndarray]) -> None:
    """Make some samples (n,) bool of a finished shard its test images, in the same file."""
    (number, test), staging = part, job.staging
    shape = job.options.image_shape(job.source)
    record = ShardRecord.read(staging, number)
    record_file(staging, number).unlink()  # if this is interrupted, the shard is not finished
    path = staging / record.meta.file
    batches = map_shard(staging, record.meta, shape)
    parts = np.split(test, np.cumsum([batch.num_rows for batch in batches])[:-1])
    with disk_errors(path), open(path, "r+b") as file:
        for place, names in _split_names(path, parts):
            file.seek(place)
            file.write(names)
        file.flush()
        os.fsync(file.fileno())
    histograms: dict[str, np.ndarray] = {}
    if shape is not None:
        for batch, own in zip(batches, parts, strict=True):
            images = raw_images(batch, shape)
            for split, rows in (("train", ~own), ("test", own)):
                if rows.any():
                    histograms[split] = histograms.get(split, 0) + value_counts(images[rows])
    splits = {"train": len(test) - int(test.sum()), "test": int(test.sum())}
    changed = dataclasses.replace(
        record,
        meta=dataclasses.replace(record.meta, sha256=file_sha256(path)),
        splits={split: count for split, count in splits.items() if count},
        histograms={split: counts.tolist() for split, counts in histograms.items()},
    )
    write_json(record_file(staging, number), dataclasses.asdict(changed))


def _split_names(path: Path, parts: list[np.ndarray]) -> list[tuple[int, bytes]]:
    """Return the bytes of the splits of each batch of a shard, and their places in the file."""
    written = []
    with pa.memory_map(str(path)) as file:
        start = file.read_buffer().address
        reader = pa.ipc.open_file(file)
        for number, test in enumerate(parts):
            _, ends, text = reader.get_batch(number).column("split").buffers()
            names = np.where(test, b"test", b"train").tolist()
            bounds = np.cumsum([0, *map(len, names)]).astype("<i4")
            written.append((ends.address - start, bounds.tobytes()))
            written.append((text.address - start, b"".join(names)))
    return written
