"""`thresher data pack` and `thresher data flip`: make packs."""

from dataclasses import asdict, dataclass
from pathlib import Path

from thresher.cli.commands import Outcome
from thresher.cli.packs import open_pack
from thresher.data.flip import ORACLE, FlipOptions, flip_labels
from thresher.data.selection import Selection
from thresher.data.shard_writer import WriteOptions
from thresher.data.sources.registry import SourceOptions, open_source
from thresher.errors import counted
from thresher.options import option


@dataclass(frozen=True, kw_only=True)
class WriteConfig(SourceOptions, WriteOptions):
    source: str = option(positional=True)
    """A folder or file of images, or hf:NAME for a data set on the Hugging Face hub."""
    out: Path = option(positional=True)
    """Folder to create."""


def pack(config: WriteConfig) -> Outcome:
    """Pack your own images into one container that every command reads.

    SOURCE is a folder (class/name.ext or split/class/name.ext), a Hugging Face data set,
    WebDataset tars, TFRecord files in ImageNet's layout, LMDB, HDF5 or .npz. Small images of equal
    size are stored as raw pixels, others as they are. If interrupted, the same command resumes.
    """
    from thresher.data.write import write_pack

    pack = write_pack(open_source(config.source, config), config.out, config)
    broken = pack.meta.broken
    splits = ", ".join(f"{count:,} {split}" for split, count in pack.meta.splits.items())
    text = (
        f"{pack.root}: {counted(len(pack), 'image')} of "
        f"{counted(len(pack.classes), 'class', 'classes')} ({splits}), "
        f"{pack.fingerprint}"
    )
    if broken:
        shown = "".join(f"\n  {name}" for name in broken[:20])
        more = f"\n  … and {len(broken) - 20} more (in pack.json)" if len(broken) > 20 else ""
        text += f"\nImages that cannot be read and were left out: {len(broken)}{shown}{more}"
    return Outcome({**asdict(pack.info()), "broken_ids": broken}, text)


@dataclass(frozen=True, kw_only=True)
class FlipConfig(FlipOptions):
    pack: str = option(positional=True)
    """Folder of a pack, or its name in the cache."""
    out: Path = option(positional=True)
    """Folder to create."""


def flip(config: FlipConfig) -> Outcome:
    """Copy a pack and change some of its training labels at random, to test filters.

    `flipped.parquet` in the new pack is a selection that drops exactly the changed samples.
    """
    copy = flip_labels(open_pack(config.pack), config.out, config)
    oracle = Selection.load(copy.root / ORACLE)
    return Outcome(
        {**asdict(copy.info()), "changed": oracle.dropped, "oracle": str(oracle.path)},
        f"{copy.root}: {oracle.dropped:,} of {len(oracle.ids):,} training labels changed\n"
        f"the changed samples are listed in {oracle.path}",
    )
