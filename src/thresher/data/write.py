"""Writing a pack: in parallel, shard by shard, resumable after a kill, in bounded memory.

The pack grows in a hidden staging folder beside its target, which one packer holds locked. A
second call with the same source skips the shards that are finished there. At the end `pack.json`
is written and the folder renamed: what does not open is not a pack.
"""

import contextlib
import errno
import fcntl
import json
import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from thresher.data import pack as pack_file
from thresher.data.digest import fingerprint
from thresher.data.merge import is_small, mapped_batches, merge
from thresher.data.meta import FORMAT
from thresher.data.shard import (
    WriteOptions,
    digests_file,
    record_file,
    write_shard,
)
from thresher.data.sources.base import Source
from thresher.data.sources.encoded import EncodedSource, Uneven
from thresher.environment import core_count
from thresher.errors import ThresherError
from thresher.paths import PackPaths, disk_errors, read_json, write_json
from thresher.progress import bar, say

__all__ = ["WriteOptions", "write_pack"]


def write_pack(
    source: Source, out: Path, options: WriteOptions | None = None, expect: str | None = None
) -> pack_file.Pack:
    """Pack `source` into the folder `out`, resuming what an earlier, killed call had finished.

    With `expect`, a pack of any other fingerprint is refused and leaves nothing behind.
    """
    options = options or WriteOptions()
    paths = PackPaths(Path(out))
    if options.resize is not None and options.resize < 1:
        raise ThresherError(f"--resize {options.resize} is not a size", "give at least 1")
    if paths.root.exists():
        raise ThresherError(f"{paths.root} exists already", "choose another name or remove it")
    with disk_errors(paths.root), _staged(paths) as staging:
        try:
            parts = _write_all(source, staging, options)
        except Uneven:
            if not (isinstance(source, EncodedSource) and source.shape_is_guess):
                raise
            say(f"the images of {source.name} differ in size: they are kept as encoded files")
            source = source.as_encoded()
            parts = _write_all(source, staging, options)
        meta = _describe(source, parts, staging, options)
        if expect is not None and meta["fingerprint"] != expect:
            shutil.rmtree(staging)
            raise ThresherError(
                f"{source.key()}: these are not the published images of {source.name} "
                f"(their fingerprint is {meta['fingerprint'][:8]}…, not {expect[:8]}…)",
                "get them again",
            )
        _refuse_twins(meta, staging)
        if is_small(meta):
            meta["shards"] = [merge(meta, staging)]
        _sweep(staging, {shard["file"] for shard in meta["shards"]})
        write_json(staging / "pack.json", meta)
        os.rename(staging, paths.root)
    return pack_file.Pack.open(paths.root)


@contextlib.contextmanager
def _staged(paths: PackPaths) -> Iterator[Path]:
    """The staging folder, locked: a second packer of the same pack is refused.

    The lock is on the folder itself, so nothing is left behind; it ends with its holder, however
    that ends.
    """
    staging = paths.staging
    staging.mkdir(parents=True, exist_ok=True)
    held = os.open(staging, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # Some network file systems have no locks; a single user must not be stopped there.
            if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
                raise _taken(paths) from None
        if not staging.exists() or os.fstat(held).st_ino != staging.stat().st_ino:
            raise _taken(paths)
        yield staging
    finally:
        os.close(held)
        with contextlib.suppress(OSError):
            staging.rmdir()  # only if nothing came into it


def _taken(paths: PackPaths) -> ThresherError:
    return ThresherError(
        f"another process is packing into {paths.root}", "wait for it, or choose another name"
    )


def _write_all(source: Source, staging: Path, options: WriteOptions) -> list[dict[str, Any]]:
    """All shards of the source, those of an earlier call included; their records."""
    chunks = source.chunks()
    if not chunks:
        raise ThresherError(f"{source.name} holds no images", "check the path")
    shape = options.shape(source)
    _keep_finished(staging, {"source": source.key(), "shape": shape, "chunks": chunks})
    _write_shards(source, chunks, staging, options)
    return [read_json(record_file(staging, n), "shard record") for n in range(len(chunks))]


def _keep_finished(staging: Path, plan: dict[str, Any]) -> None:
    """Keep the finished shards of the same plan; anything else in the staging folder goes."""
    plan_file = staging / "plan.json"
    same = False
    with contextlib.suppress(ThresherError):
        same = read_json(plan_file) == json.loads(json.dumps(plan))
    if not same:
        _sweep(staging, set())
        write_json(plan_file, plan)
        return
    for leftover in staging.glob(".*.tmp"):
        leftover.unlink()


def _sweep(staging: Path, keep: set[str]) -> None:
    for path in staging.iterdir():
        if path.name not in keep:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _write_shards(source: Source, chunks: list[str], staging: Path, options: WriteOptions) -> None:
    todo = [n for n in range(len(chunks)) if not record_file(staging, n).exists()]
    processes = min(options.processes or core_count(), len(todo))
    with bar(f"packing {source.name}", len(chunks), "shards") as shown:
        shown.advance(len(chunks) - len(todo))
        if processes <= 1:
            for n in todo:
                write_shard(source, chunks[n], n, staging, options)
                shown.advance()
            return
        # Spawned, not forked: threads of the parent (torch, Arrow) do not survive a fork.
        context = multiprocessing.get_context("spawn")
        before = set(multiprocessing.active_children())
        work = (source, chunks, staging, options)
        with ProcessPoolExecutor(processes, context, _begin_worker, work) as pool:
            tasks = [pool.submit(_work, n) for n in todo]
            try:
                for task in as_completed(tasks):
                    task.result()
                    shown.advance()
            except BaseException as error:
                pool.shutdown(wait=False, cancel_futures=True)
                for child in set(multiprocessing.active_children()) - before:
                    child.terminate()
                    child.join()
                for leftover in staging.glob(".*.tmp"):
                    leftover.unlink(missing_ok=True)
                if isinstance(error, BrokenProcessPool):
                    raise ThresherError(
                        f"a process that packed {source.name} was killed",
                        "run the same command again to go on; where memory is short, with fewer "
                        "--processes",
                    ) from None
                raise


_given: tuple[Source, list[str], Path, WriteOptions] | None = None


def _begin_worker(source: Source, chunks: list[str], staging: Path, options: WriteOptions) -> None:
    """The source comes once per process, not once per task: it may list a million files."""
    global _given
    _given = (source, chunks, staging, options)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C and ends its workers
    pa.set_cpu_count(1)
    parent = multiprocessing.parent_process()
    if parent is not None:
        sentinel = parent.sentinel

        def end_with_parent() -> None:
            multiprocessing.connection.wait([sentinel])
            os._exit(1)

        threading.Thread(target=end_with_parent, daemon=True).start()


def _work(number: int) -> None:
    assert _given is not None
    source, chunks, staging, options = _given
    with disk_errors(staging):
        write_shard(source, chunks[number], number, staging, options)


def _describe(
    source: Source, parts: list[dict[str, Any]], staging: Path, options: WriteOptions
) -> dict[str, Any]:
    """The content of pack.json, from the shards' records."""
    digests = np.concatenate([np.load(digests_file(staging, n)) for n in range(len(parts))])
    splits: dict[str, int] = {}
    for part in parts:
        for split, count in part["splits"].items():
            splits[split] = splits.get(split, 0) + count
    broken = sorted(name for part in parts for name in part["broken"])
    if not splits:
        shutil.rmtree(staging)
        raise ThresherError(
            f"{source.name} holds no image that can be read"
            + (f" ({len(broken)} could not, such as {broken[0]})" if broken else "")
        )
    # What a network is normalised by is what it is trained on: the test images have no say.
    counted = ["train"] if "train" in splits else list(splits)
    filled = [
        part["counts"][split] for part in parts for split in counted if split in part["counts"]
    ]
    counts = np.sum(np.array(filled, np.int64), axis=0)
    values = np.arange(256, dtype=np.int64)
    total = counts.sum(axis=1)
    mean = counts @ values / total
    std = np.sqrt(np.maximum(counts @ values**2 / total - mean**2, 0))
    shape = options.shape(source)
    order = ["train", "validation", "test"]
    return {
        "format": FORMAT,
        "name": source.name,
        "classes": source.classes,
        "splits": {s: splits[s] for s in sorted(splits, key=lambda s: [*order, s].index(s))},
        "image_shape": list(shape) if shape else None,
        "mean": (mean / 255).tolist(),
        "std": (std / 255).tolist(),
        "fingerprint": fingerprint(digests),
        "source": source.key(),
        "broken": broken,
        "shards": [
            {k: part[k] for k in ("file", "samples", "bytes", "sha256")}
            for part in parts
            if part["samples"]
        ],
    }


def _refuse_twins(meta: dict[str, Any], staging: Path) -> None:
    """Ids must be unique: a selection names samples by them."""
    columns = [batch.column("id") for batch in mapped_batches(meta, staging)]
    counts = pa.chunked_array(columns, type=pa.string()).value_counts()
    twins = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(twins):
        twin, count = twins[0]["values"].as_py(), twins[0]["counts"].as_py()
        raise ThresherError(
            f'the id "{twin}" stands for {count} samples', "ids must be unique within a pack"
        )
