"""The content of `pack.json`, checked by type and value when it is read."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from thresher.errors import InvalidValueError
from thresher.options import from_mapping, option
from thresher.paths import PackPaths, read_json, write_json

FORMAT = 1
CHECKSUMMED = ("name", "classes", "image_shape", "source", "broken", "shards")
Shape = tuple[int, int, int]
"""(height, width, channels)."""


@dataclass(frozen=True)
class ShardMeta:
    """One Arrow file of a pack."""

    file: str
    """File name inside the pack's folder."""
    samples: int = option(ge=0)
    bytes: int = option(ge=0)
    sha256: str = option()


@dataclass(frozen=True)
class PackMeta:
    """The description of a pack."""

    name: str
    classes: list[str]
    splits: dict[str, int] = option(ge=0)
    """Number of samples per split."""
    image_shape: Shape | None = option(ge=1)
    """(height, width, channels) of raw images; None if the images are encoded files."""
    mean: list[float] = option()
    """Per channel, of the training images scaled to [0, 1]; of encoded files, of some of them."""
    std: list[float] = option(ge=0)
    fingerprint: str = option()
    source: str = ""
    """What the pack was made from."""
    broken: list[str] = dataclasses.field(default_factory=list)
    """Ids or file names that could not be read and were left out."""
    shards: tuple[ShardMeta, ...] = ()
    checksums: dict[str, str] = dataclasses.field(default_factory=dict)
    """Of the fields that cannot be recomputed from the images, as they were written."""
    digests: Literal["pixels", "files"] = "pixels"
    """What the fingerprint is computed from. Encoded packs of older versions have "pixels", too,
    and their mean and standard deviation are of all images."""

    @property
    def bytes(self) -> int:
        """Total size of the shards."""
        return sum(shard.bytes for shard in self.shards)

    @classmethod
    def read(cls, root: Path) -> "PackMeta":
        """Read `pack.json` of the pack in `root`."""
        content = read_json(PackPaths(root).meta, "pack")
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise InvalidValueError(
                f"{root} is not a pack of format {FORMAT}",
                "pack it again with `thresher data pack`",
            )
        known = {field.name for field in dataclasses.fields(cls)}
        values = {key: value for key, value in content.items() if key in known}
        try:
            meta = from_mapping(cls, {"image_shape": None, **values})
            meta._check()
        except InvalidValueError as error:
            raise InvalidValueError(
                f"{root}/pack.json is damaged: {error.what}", "make the pack again"
            ) from None
        return meta

    def _check(self) -> None:
        """Check what the types of the fields do not say."""
        for name in ("name", "classes", "splits", "fingerprint", "shards"):
            if not getattr(self, name):
                raise InvalidValueError(f"{name} is empty")
        channels = self.image_shape[2] if self.image_shape else 3
        for name in ("mean", "std"):
            if len(getattr(self, name)) != channels:
                raise InvalidValueError(f"{name} must have {channels} values")
        for shard in self.shards:
            if not shard.file or Path(shard.file).name != shard.file:
                raise InvalidValueError(f"shards: {shard.file!r} is not a file name")

    def write(self, root: Path) -> None:
        """Write `pack.json` to the folder `root`."""
        content = dataclasses.asdict(dataclasses.replace(self, checksums=self.field_checksums()))
        if self.digests == "pixels":  # so that raw packs are the same files as before
            del content["digests"]
        write_json(PackPaths(root).meta, {"format": FORMAT, **content})

    def field_checksums(self) -> dict[str, str]:
        """Return the checksum of each field that `checksums` covers."""
        fields = dataclasses.asdict(self)
        return {name: _checksum(fields[name]) for name in CHECKSUMMED}


def _checksum(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
