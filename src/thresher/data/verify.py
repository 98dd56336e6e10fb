"""Check a pack against itself: every byte of its shards, and every field of `pack.json`."""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa

from thresher.data.digest import file_sha256, fingerprint
from thresher.data.meta import PackMeta
from thresher.data.normalisation import count_files, from_counts, sampled_rows
from thresher.data.shard import raw_images
from thresher.data.shard_writer import ShardContent, WriteOptions
from thresher.data.sources.base import Block
from thresher.environment import core_count
from thresher.errors import InvalidValueError
from thresher.progress import bar


def damaged_shards(root: Path, meta: PackMeta) -> list[str]:
    """Return the names of the shards whose bytes differ from their checksum."""
    damaged = []
    with bar(f"verifying {meta.name}", meta.bytes, "bytes") as progress:
        for shard in meta.shards:
            if file_sha256(root / shard.file) != shard.sha256:
                damaged.append(shard.file)
            progress.advance(shard.bytes)
    return damaged


def wrong_fields(meta: PackMeta, batches: Sequence[pa.RecordBatch]) -> list[str]:
    """Return the fields of `pack.json` that are not those of the images in `batches`.

    Fingerprint, number of samples per split, labels, mean and standard deviation are computed
    again from the images. Class names and other texts are compared with the checksums that were
    taken when the pack was written; packs of older versions have none. Every image is read by its
    decoder.
    """
    now = meta.field_checksums()
    wrong = [name for name, value in meta.checksums.items() if now.get(name, value) != value]
    with ThreadPoolExecutor(core_count()) as pool:
        try:
            contents = list(pool.map(lambda batch: _content(meta, batch), batches))
        except InvalidValueError as error:  # labels outside the class list, ids that are empty
            return [*wrong, f"classes ({error.what})"]
    digests = np.frombuffer(b"".join(d for c in contents for d in c.digests), np.uint8)
    if fingerprint(digests.reshape(-1, 16)) != meta.fingerprint:
        wrong.append("fingerprint")
    splits = sum((content.splits for content in contents), Counter[str]())
    if dict(splits) != meta.splits:
        wrong.append("splits")
    if any(content.broken for content in contents):
        return wrong
    histograms = [content.histograms for content in contents]
    if meta.digests == "files":
        histograms = [{"sampled": count_files(batches, sampled_rows(batches))}]
    mean, std = from_counts(histograms)
    for name, computed in (("mean", mean), ("std", std)):
        if not np.allclose(computed, getattr(meta, name), rtol=1e-6, atol=1e-9):
            wrong.append(name)
    return wrong


def _content(meta: PackMeta, batch: pa.RecordBatch) -> ShardContent:
    """Count and hash the samples of a record batch, as when they were written."""
    content = ShardContent(meta, WriteOptions())
    ids, splits = batch.column("id").to_pylist(), batch.column("split").to_pylist()
    labels = batch.column("label").to_numpy()
    if meta.image_shape is None:
        step, images = 64, batch.column("image")
    else:
        images = raw_images(batch, meta.image_shape)
        step = max(1, (1 << 24) // int(np.prod(meta.image_shape)))
    for begin in range(0, len(ids), step):
        part = slice(begin, begin + step)
        some = images[part] if meta.image_shape else images[part].to_pylist()
        content.convert(Block(ids[part], labels[part], splits[part], some))
    return content
