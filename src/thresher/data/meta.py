"""The content of `pack.json`, checked by type and value when it is read."""

import dataclasses
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thresher.errors import InvalidValueError
from thresher.paths import PackPaths, read_json, write_json

FORMAT = 1
Shape = tuple[int, int, int]
"""(height, width, channels)."""


@dataclass(frozen=True)
class ShardMeta:
    """One Arrow file of a pack."""

    file: str
    """File name inside the pack's folder."""
    samples: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class PackMeta:
    """The description of a pack."""

    name: str
    classes: list[str]
    splits: dict[str, int]
    """Number of samples per split."""
    image_shape: Shape | None
    """(height, width, channels) of raw images; None if the images are encoded files."""
    mean: list[float]
    """Per channel, of the training images scaled to [0, 1]."""
    std: list[float]
    fingerprint: str
    source: str = ""
    """What the pack was made from."""
    broken: list[str] = field(default_factory=list)
    """Ids or file names that could not be read and were left out."""
    shards: list[ShardMeta] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Total size of the shards."""
        return sum(shard.bytes for shard in self.shards)

    @classmethod
    def read(cls, root: Path) -> "PackMeta":
        """Read `pack.json` of the pack in `root`.

        Raises:
            InvalidValueError: The file is not a `pack.json`, or one of its fields is wrong.
        """
        meta = read_json(PackPaths(root).meta, "pack")
        if not isinstance(meta, dict) or meta.get("format") != FORMAT:
            raise InvalidValueError(
                f"{root} is not a pack of format {FORMAT}",
                "pack it again with `thresher data pack`",
            )
        meta = {"source": "", "broken": [], **meta}
        names = [item.name for item in dataclasses.fields(cls)]
        wrong = [name for name in names if not _VALID[name](meta.get(name))]
        if not wrong:
            channels = meta["image_shape"][2] if meta["image_shape"] else 3
            wrong = [name for name in ("mean", "std") if len(meta[name]) != channels]
        if wrong:
            raise InvalidValueError(
                f'{root}/pack.json is damaged: its field "{wrong[0]}" is missing or wrong',
                "make the pack again",
            )
        values = {name: meta[name] for name in names}
        shape = values["image_shape"]
        values["image_shape"] = None if shape is None else (shape[0], shape[1], shape[2])
        values["shards"] = [
            ShardMeta(s["file"], s["samples"], s["bytes"], s["sha256"]) for s in values["shards"]
        ]
        return cls(**values)

    def write(self, root: Path) -> None:
        """Write `pack.json` to the folder `root`."""
        write_json(PackPaths(root).meta, {"format": FORMAT, **dataclasses.asdict(self)})


def _text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _finite(value: Any) -> bool:
    # A comparison, because math.isfinite fails on integers beyond the range of a float.
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and -sys.float_info.max <= value <= sys.float_info.max


def _list_of(valid: Callable[[Any], bool], empty: bool = False) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, list) and (empty or bool(value)) and all(map(valid, value))
    )


def _shape(value: Any) -> bool:
    return value is None or (_list_of(_count)(value) and len(value) == 3 and min(value) > 0)


def _shard(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and _text(value.get("file"))
        and Path(value["file"]).name == value["file"]  # never outside the pack's folder
        and _count(value.get("samples"))
        and _count(value.get("bytes"))
        and _text(value.get("sha256"))
    )


_VALID: dict[str, Callable[[Any], bool]] = {
    "name": _text,
    "classes": _list_of(lambda name: isinstance(name, str)),
    "splits": lambda value: isinstance(value, dict) and _list_of(_count)(list(value.values())),
    "image_shape": _shape,
    "mean": _list_of(_finite),
    "std": _list_of(_finite),
    "fingerprint": _text,
    "source": lambda value: isinstance(value, str),
    "broken": _list_of(lambda name: isinstance(name, str), empty=True),
    "shards": _list_of(_shard),
}
