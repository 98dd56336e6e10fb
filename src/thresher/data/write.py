"""Write a pack: in parallel, shard by shard, resumable after a kill, in bounded memory.

The pack grows in a hidden staging folder beside its target, which one process holds locked. A
second call with the same source skips the shards that are finished there. At the end `pack.json`
is written and the folder renamed, so that an unfinished pack cannot be opened.
"""

import contextlib
import dataclasses
import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from thresher.data.digest import fingerprint
from thresher.data.holdout import check_held_out
from thresher.data.labels import (
    check_classes,
    mention_alike,
    mention_empty,
    mention_no_training,
    mention_untrained,
)
from thresher.data.meta import PackMeta
from thresher.data.normalisation import from_counts, sampled_rows
from thresher.data.pack import Pack
from thresher.data.shard import map_shard, map_shards, merge
from thresher.data.shard_splits import set_test, shards_with_test
from thresher.data.shard_writer import (
    Job,
    ShardRecord,
    WriteOptions,
    check_no_broken,
    count_sampled,
    digests_file,
    record_file,
    write_shard,
)
from thresher.data.sources.base import Source
from thresher.data.sources.encoded import ColourFoundError, EncodedSource, UnevenShapesError
from thresher.data.write_pool import Run, WorkerKilledError, remove_temporary, workers
from thresher.effect import mention
from thresher.environment import core_count
from thresher.errors import AlreadyExistsError, InvalidTypeError, InvalidValueError, ThresherError
from thresher.foreign_data import instead_of
from thresher.locks import exclusive_lock
from thresher.options import validate
from thresher.paths import PackPaths, as_path, disk_errors, new_parents, read_json, write_json
from thresher.progress import bar

__all__ = ["WriteOptions", "write_pack"]

STAGING_FORMAT = 4
_logger = logging.getLogger(__name__)


def write_pack(
    source: Source, out: Path | str, options: WriteOptions | None = None, expect: str | None = None
) -> Pack:
    """Write the images of a source to a new pack, and open it.

    An interrupted call is resumed: finished shards of the same source and options are kept.

    Args:
        source: Where the images come from; `thresher.data.sources.registry.open_source` makes
            one for a path, and any object with the attributes of `Source` will do.
        out: Folder to create.
        options: Resizing, strictness and number of processes.
        expect: The fingerprint that the pack must have.

    Raises:
        AlreadyExistsError: `out` exists.
        BusyError: Another process is writing to `out`.
        InvalidValueError: An option, a class name, an id, a label or an image is not valid, or
            the fingerprint is not `expect`. Nothing is left behind.

    Example:
        >>> import tempfile
        >>> from thresher.data.sources.digits import Digits
        >>> folder = tempfile.TemporaryDirectory()
        >>> pack = write_pack(Digits(), f"{folder.name}/small", WriteOptions(resize=4))
        >>> len(pack), pack.image_shape
        (1797, (4, 4, 1))
        >>> folder.cleanup()
    """
    options = options or WriteOptions()
    validate(options)
    options.check()
    mention(options)
    # Options of a subclass, such as those of a command, would make workers import its module.
    own = {field.name: getattr(options, field.name) for field in dataclasses.fields(WriteOptions)}
    options = WriteOptions(**own)
    missing = [name for name in ("name", "classes", "chunks", "read") if not hasattr(source, name)]
    if missing:
        what = (
            f"source must be a source of images, got {type(source).__name__} without {missing[0]}"
        )
        fix = "`thresher.data.sources.registry.open_source` opens a folder or file"
        fix = instead_of(source) or fix
        raise InvalidTypeError(what, fix, "source")
    check_classes(source.classes, source.name)
    paths = PackPaths(as_path(out, "out"))
    if paths.root.exists():
        raise AlreadyExistsError(f"{paths.root} exists already", "choose another name or remove it")
    with disk_errors(paths.root), _staging_folder(paths) as staging:
        records = None
        while records is None:
            try:
                records = _write_shards(source, staging, options)
            except UnevenShapesError as error:
                if not (isinstance(source, EncodedSource) and source.shape_is_guess):
                    raise
                _logger.info("packing %s again: %s", source.name, error.what)
                colour = isinstance(error, ColourFoundError)
                source = source.in_colour() if colour else source.as_encoded()
        meta = _describe(source, records, staging, options)
        if expect is not None and meta.fingerprint != expect:
            raise InvalidValueError(
                f"{source.key()}: these are not the published images of {source.name} "
                f"(fingerprint {meta.fingerprint[:8]}…, expected {expect[:8]}…)",
                "get them again",
            )
        ids = pa.chunked_array(
            [batch.column("id") for batch in map_shards(staging, meta)], type=pa.string()
        )
        _check_unique(ids)
        check_held_out(options, meta.splits, (id.as_py() for id in ids))
        meta = merge(meta, staging)
        _remove_all_but(staging, {shard.file for shard in meta.shards})
        meta.write(staging)
        os.rename(staging, paths.root)
    pack = Pack.open(paths.root)
    training = pc.equal(pack.splits, "train").to_numpy()
    mention_no_training(pack.meta.splits)
    mention_empty(pack.classes, pack.labels)
    mention_alike(pack.classes)
    mention_untrained(pack.classes, pack.labels[training], pack.labels[~training])
    return pack


@contextlib.contextmanager
def _staging_folder(paths: PackPaths) -> Iterator[Path]:
    """Hold the staging folder; remove it after an error, but not after a kill or Ctrl-C."""
    staging = paths.staging  # the folder itself is the lock, so no file is left
    busy = f"another process is packing into {paths.root}"
    with new_parents(staging):
        staging.mkdir(exist_ok=True)
        with exclusive_lock(staging, busy, "wait for it, or choose another name"):
            try:
                with disk_errors(paths.root):
                    yield staging
            except WorkerKilledError:
                raise  # the same command resumes
            except ThresherError:
                shutil.rmtree(staging, ignore_errors=True)
                raise


def _write_shards(source: Source, staging: Path, options: WriteOptions) -> list[ShardRecord]:
    """Write the shards that are not finished yet; return the records of all."""
    chunks = source.chunks()
    if not chunks:
        raise InvalidValueError(f"{source.name} has no images", "check the path")
    shape = options.image_shape(source)
    plan: dict[str, object] = {
        "format": STAGING_FORMAT,
        "source": source.key(),
        "shape": None if shape is None else list(shape),
        "chunks": chunks,
    }
    if options.test is not None:
        plan["test"] = [options.test, options.group, options.seed]
    _keep_finished(staging, plan)
    todo = [n for n in range(len(chunks)) if not record_file(staging, n).exists()]
    processes = min(options.processes or core_count(), len(chunks))
    with (
        workers(Job(source, chunks, staging, options), processes) as run,
        bar(f"packing {source.name}", len(chunks), "shards") as progress,
    ):
        progress.resume(len(chunks) - len(todo))
        for _ in run(write_shard, todo):
            progress.advance()
        records = [ShardRecord.read(staging, n) for n in range(len(chunks))]
        if options.test is not None and options.group is None:
            for _ in run(set_test, shards_with_test(staging, records, shape, options)):
                pass
            records = [ShardRecord.read(staging, n) for n in range(len(chunks))]
        if shape is None:
            records[0] = dataclasses.replace(records[0], histograms=_sampled(staging, records, run))
    if options.strict:  # shards may be of an interrupted call that was not strict
        check_no_broken([name for record in records for name in record.broken])
    return records


def _sampled(staging: Path, records: list[ShardRecord], run: Run) -> dict[str, list[list[int]]]:
    """Decode some of the images of an encoded pack and count their values."""
    shards = [record.meta for record in records]
    rows = sampled_rows([batch for shard in shards for batch in map_shard(staging, shard, None)])
    ends = np.cumsum([shard.samples for shard in shards])
    parts = np.split(rows, np.searchsorted(rows, ends[:-1]))
    todo = [
        (shard, part - (end - shard.samples))
        for shard, part, end in zip(shards, parts, ends.tolist(), strict=True)
        if len(part)
    ]
    return {"sampled": sum(run(count_sampled, todo), np.zeros((3, 256), np.int64)).tolist()}


def _keep_finished(staging: Path, plan: dict[str, object]) -> None:
    """Keep the finished shards of the same plan; remove everything else from the folder."""
    plan_file = staging / "plan.json"
    with contextlib.suppress(ThresherError):
        if read_json(plan_file) == plan:
            remove_temporary(staging)
            return
    _remove_all_but(staging, set())
    write_json(plan_file, plan)


def _remove_all_but(staging: Path, keep: set[str]) -> None:
    for path in staging.iterdir():
        if path.name not in keep:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _describe(
    source: Source, records: list[ShardRecord], staging: Path, options: WriteOptions
) -> PackMeta:
    digests = np.concatenate([np.load(digests_file(staging, n)) for n in range(len(records))])
    splits = sum((Counter(record.splits) for record in records), Counter[str]())
    broken = sorted(name for record in records for name in record.broken)
    if not splits:
        raise InvalidValueError(
            f"{source.name} has no readable image"
            + (f" ({len(broken)} could not be read, such as {broken[0]})" if broken else "")
        )
    mean, std = from_counts([record.histograms for record in records])
    order = ["train", "validation", "test"]
    shape = options.image_shape(source)
    return PackMeta(
        name=source.name,
        classes=list(source.classes),
        splits={s: splits[s] for s in sorted(splits, key=lambda s: [*order, s].index(s))},
        image_shape=shape,
        mean=mean,
        std=std,
        fingerprint=fingerprint(digests),
        source=source.key(),
        broken=broken,
        shards=tuple(record.meta for record in records if record.meta.samples),
        digests="files" if shape is None else "pixels",
    )


def _check_unique(ids: pa.ChunkedArray) -> None:
    counts = ids.value_counts()
    repeated = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(repeated):
        id, count = repeated[0].as_py().values()
        message = f'{count} samples have the id "{id}"'
        raise InvalidValueError(message, "ids must be unique within a pack")
