"""Writing a pack: in parallel, shard by shard, resumable after a kill, in bounded memory.

The pack grows in a hidden staging folder beside its target. A shard is finished when its sidecar
(`N.json`, renamed into place after the shard) exists; a second call with the same source skips it.
At the end `pack.json` is written and the folder renamed: what does not open is not a pack.
"""

import multiprocessing
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from thresher.data import pack as pack_file
from thresher.data.sources.base import Block, Source
from thresher.errors import ThresherError
from thresher.paths import PackPaths, atomic_file, disk_errors, read_json, write_json
from thresher.progress import bar


@dataclass(frozen=True)
class WriteOptions:
    resize: int | None = None
    """Decode and resize encoded images to this many pixels a side, once, at packing."""
    strict: bool = False
    """Stop at the first image that cannot be read, instead of listing it."""
    processes: int = 0
    """Processes that read and write shards at once; 0: one per core."""


def write_pack(
    source: Source, out: Path, options: WriteOptions | None = None, expect: str | None = None
) -> pack_file.Pack:
    """Pack `source` into the folder `out`, resuming what an earlier, killed call had finished.

    With `expect`, a pack of any other fingerprint is refused and leaves nothing behind.
    """
    options = options or WriteOptions()
    paths = PackPaths(Path(out))
    if paths.root.exists():
        raise ThresherError(f"{paths.root} exists already", "choose another name or remove it")
    with disk_errors(paths.root):
        chunks = source.chunks()
        if not chunks:
            raise ThresherError(f"{source.name} holds no images", "check the path")
        _stage(paths.staging, {"source": source.key(), "resize": options.resize, "chunks": chunks})
        _write_shards(source, chunks, paths.staging, options)
        parts = [read_json(paths.staging / f"{n}.json", "shard record") for n in range(len(chunks))]
        meta = _describe(source, parts, paths.staging, options)
        if expect is not None and meta["fingerprint"] != expect:
            shutil.rmtree(paths.staging)
            raise ThresherError(
                f"{source.key()}: these are not the published images of {source.name} "
                f"(their fingerprint is {meta['fingerprint'][:8]}…, not {expect[:8]}…)",
                "get them again",
            )
        write_json(paths.staging / "pack.json", meta)
        for leftover in [*paths.staging.glob("*.digests.npy"), *paths.staging.glob("[0-9]*.json")]:
            leftover.unlink()
        (paths.staging / "plan.json").unlink()
        os.rename(paths.staging, paths.root)
    return pack_file.Pack.open(paths.root)


def _stage(staging: Path, plan: dict[str, Any]) -> None:
    """Keep the finished shards of the same plan; anything else in the staging folder goes."""
    plan_file = staging / "plan.json"
    if plan_file.exists() and read_json(plan_file) == plan:
        return
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    write_json(plan_file, plan)


def _write_shards(
    source: Source, chunks: Sequence[str], staging: Path, options: WriteOptions
) -> None:
    todo = [n for n in range(len(chunks)) if not (staging / f"{n}.json").exists()]
    processes = min(options.processes or os.cpu_count() or 1, len(todo))
    with bar(f"packing {source.name}", len(chunks), "shards") as shown:
        shown.advance(len(chunks) - len(todo))
        if processes <= 1:
            for n in todo:
                _write_shard(source, chunks[n], n, staging, options)
                shown.advance()
            return
        # Spawned, not forked: threads of the parent (torch, Arrow) do not survive a fork.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, mp_context=context) as pool:
            tasks = [
                pool.submit(_write_shard, source, chunks[n], n, staging, options) for n in todo
            ]
            try:
                for task in as_completed(tasks):
                    task.result()
                    shown.advance()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def _write_shard(
    source: Source, chunk: str, number: int, staging: Path, options: WriteOptions
) -> None:
    """One chunk to one shard: its file, its sample digests, then its record (which says: done)."""
    shape = _stored_shape(source, options)
    blocks: list[pa.RecordBatch] = []
    digests: list[bytes] = []
    sums: dict[str, _ChannelSums] = {}
    broken: list[str] = []
    splits: dict[str, int] = {}
    for block in source.read(chunk):
        broken += block.broken
        batch = _convert(block, source, shape, options, digests, sums, broken)
        for split in batch.column("split").to_pylist():
            splits[split] = splits.get(split, 0) + 1
        blocks.append(batch)
    if broken and options.strict:
        raise ThresherError(f"{broken[0]} cannot be read as an image", "mend it or drop --strict")
    file = f"{number:05d}.arrow"
    schema = _schema(shape)
    table = pa.Table.from_batches(blocks, schema=schema).combine_chunks()
    batches = table.to_batches() or [pa.RecordBatch.from_pylist([], schema=schema)]
    with atomic_file(staging / file) as temporary, pa.ipc.new_file(temporary, schema) as writer:
        writer.write_batch(batches[0])
    with atomic_file(staging / f"{number}.digests.npy") as temporary, open(temporary, "wb") as f:
        np.save(f, np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 16))
    record = {
        "file": file,
        "samples": table.num_rows,
        "bytes": (staging / file).stat().st_size,
        "sha256": pack_file.shard_sha256(staging / file),
        "splits": splits,
        "broken": broken,
        "sums": {split: total.as_json() for split, total in sums.items()},
    }
    write_json(staging / f"{number}.json", record)


def _stored_shape(source: Source, options: WriteOptions) -> tuple[int, int, int] | None:
    if options.resize is None:
        return source.image_shape
    channels = source.image_shape[2] if source.image_shape else 3
    return (options.resize, options.resize, channels)


def _schema(shape: tuple[int, int, int] | None) -> pa.Schema:
    image = pa.large_binary() if shape is None else pa.binary(int(np.prod(shape)))
    return pa.schema(
        [
            ("id", pa.string()),
            ("label", pa.int32()),
            ("split", pa.dictionary(pa.int8(), pa.string())),
            ("image", image),
        ]
    )


def _convert(
    block: Block,
    source: Source,
    shape: tuple[int, int, int] | None,
    options: WriteOptions,
    digests: list[bytes],
    sums: "dict[str, _ChannelSums]",
    broken: list[str],
) -> pa.RecordBatch:
    """A block as a record batch of the pack's schema; digests, sums and broken ids are added to."""
    ids, labels, splits = (
        list(block.ids),
        [int(label) for label in block.labels],
        list(block.splits),
    )
    _check_labels(ids, labels, source)
    stored: pa.Array
    if isinstance(block.images, np.ndarray):
        images = block.images if shape == source.image_shape else _resized(block.images, shape)
        images = np.ascontiguousarray(images)
        digests += [
            pack_file.sample_digest(i, c, x) for i, c, x in zip(ids, labels, images, strict=True)
        ]
        for split in set(splits):
            here = images[np.array(splits) == split]
            sums.setdefault(split, _ChannelSums()).add(here)
        width = int(np.prod(images.shape[1:]))
        stored = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(width), len(images), [None, pa.py_buffer(images)]
        )
    else:
        kept: list[int] = []
        payload: list[bytes] = []
        for n, data in enumerate(block.images):
            try:
                pixels = pack_file.decode(data, options.resize)
            except Exception:  # Pillow raises a dozen kinds on broken files; each means the same.
                broken.append(ids[n])
                continue
            kept.append(n)
            digests.append(pack_file.sample_digest(ids[n], labels[n], pixels))
            sums.setdefault(splits[n], _ChannelSums()).add(pixels[None])
            payload.append(pixels.tobytes() if options.resize else data)
        ids, labels = [ids[n] for n in kept], [labels[n] for n in kept]
        splits = [splits[n] for n in kept]
        stored = pa.array(payload, _schema(shape).field("image").type)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(ids, pa.string()),
            pa.array(labels, pa.int32()),
            pa.array(splits, pa.string())
            .dictionary_encode()
            .cast(_schema(shape).field("split").type),
            stored,
        ],
        schema=_schema(shape),
    )


def _check_labels(ids: list[str], labels: list[int], source: Source) -> None:
    for id, label in zip(ids, labels, strict=True):
        if not 0 <= label < len(source.classes):
            raise ThresherError(
                f"the sample {id} of {source.name} has the label {label}, "
                f"but there are {len(source.classes)} classes"
            )


def _resized(images: np.ndarray, shape: tuple[int, int, int] | None) -> np.ndarray:
    from PIL import Image

    assert shape is not None
    out = np.empty((len(images), *shape), np.uint8)
    for n, image in enumerate(images):
        flat = image[:, :, 0] if shape[2] == 1 else image
        out[n] = pack_file.square(Image.fromarray(flat), shape[0]).reshape(shape)
    return out


class _ChannelSums:
    """Sum, sum of squares and count of pixels per channel, as exact integers."""

    def __init__(self) -> None:
        self.count = 0
        self.sum: np.ndarray | int = 0
        self.squares: np.ndarray | int = 0

    def add(self, images: np.ndarray) -> None:
        """`images` is (n, height, width, channels) uint8; counted by value, which costs 1 byte
        per pixel where a float copy would cost 8."""
        channels = images.shape[-1]
        flat = images.reshape(-1, channels)
        values = np.arange(256, dtype=np.int64)
        counts = np.stack([np.bincount(flat[:, c], minlength=256) for c in range(channels)])
        self.count += len(flat)
        self.sum = self.sum + counts @ values
        self.squares = self.squares + counts @ values**2

    def as_json(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "sum": np.asarray(self.sum).tolist(),
            "squares": np.asarray(self.squares).tolist(),
        }


def _describe(
    source: Source, parts: list[dict[str, Any]], staging: Path, options: WriteOptions
) -> dict[str, Any]:
    """The content of pack.json, from the shards' records."""
    digests = np.concatenate([np.load(staging / f"{n}.digests.npy") for n in range(len(parts))])
    splits: dict[str, int] = {}
    for part in parts:
        for split, count in part["splits"].items():
            splits[split] = splits.get(split, 0) + count
    if not splits:
        raise ThresherError(f"{source.name} holds no image that can be read")
    _refuse_twins(parts, staging)
    # What a network is normalised by is what it is trained on: the test images have no say.
    counted = ["train"] if "train" in splits else list(splits)
    filled = [part["sums"][split] for part in parts for split in counted if split in part["sums"]]
    count = sum(sums["count"] for sums in filled)
    total = np.sum([sums["sum"] for sums in filled], axis=0)
    squares = np.sum([sums["squares"] for sums in filled], axis=0)
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0))
    shape = _stored_shape(source, options)
    order = ["train", "validation", "test"]
    return {
        "format": pack_file.FORMAT,
        "name": source.name,
        "classes": source.classes,
        "splits": {s: splits[s] for s in sorted(splits, key=lambda s: [*order, s].index(s))},
        "image_shape": list(shape) if shape else None,
        "mean": (mean / 255).tolist(),
        "std": (std / 255).tolist(),
        "fingerprint": pack_file.fingerprint(digests),
        "source": source.key(),
        "broken": sorted(name for part in parts for name in part["broken"]),
        "shards": [{k: part[k] for k in ("file", "samples", "bytes", "sha256")} for part in parts],
    }


def _refuse_twins(parts: list[dict[str, Any]], staging: Path) -> None:
    """Ids must be unique: a selection names samples by them."""
    batches = [pack_file._map_shard(staging / part["file"]) for part in parts]
    ids = pa.chunked_array([batch.column("id") for batch in batches], type=pa.string())
    counts = ids.value_counts()
    twins = counts.filter(pa.compute.greater(counts.field("counts"), 1))
    if len(twins):
        twin, count = twins[0]["values"].as_py(), twins[0]["counts"].as_py()
        raise ThresherError(
            f'the id "{twin}" stands for {count} samples',
            "ids must be unique within a pack",
        )
