"""What the sources of encoded images share: blocks, chunks, splits and a common image shape."""

import copy
import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, TypeVar

from thresher.data.images import is_grey_mode
from thresher.data.sources.base import Block
from thresher.errors import InvalidValueError
from thresher.options import from_mapping, option, to_mapping
from thresher.paths import read_json, write_json

DESCRIPTION = "thresher.json"
T = TypeVar("T", bound="EncodedSource")
SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
BLOCK_BYTES = 4 << 20
PROBES = 64
RAW_UP_TO = 128 * 128 * 3
"""Images of equal size are stored as raw pixels up to this many bytes each. Larger ones take many
times the space of their files, and stay encoded unless they are resized."""


@dataclass(frozen=True)
class Description:
    """`thresher.json`: what other formats cannot store, so that an export can be packed again."""

    name: str
    classes: list[str]
    image_shape: tuple[int, int, int] | None = option(ge=1)
    fingerprint: str = ""
    """Of the exported pack; empty if a selection was applied."""
    splits: dict[str, str] = field(default_factory=dict)
    """Names of splits by that of their files or folder, where the two differ."""

    def write(self, folder: Path) -> None:
        """Write `thresher.json` to `folder`."""
        write_json(folder / DESCRIPTION, to_mapping(self))

    @classmethod
    def from_json(cls, value: Any, where: Path | str) -> "Description":
        """Check and convert JSON values that were read from `where`."""
        try:
            return from_mapping(cls, value)
        except InvalidValueError as error:
            raise InvalidValueError(
                f"the description in {where} is damaged: {error.what}", "export the data set again"
            ) from None

    @classmethod
    def find(cls, folder: Path) -> "Description | None":
        """Read `thresher.json` in `folder`, if there is one."""
        file = folder / DESCRIPTION
        return cls.from_json(read_json(file, "description"), file) if file.is_file() else None


class UnevenShapesError(InvalidValueError):
    """An image does not have the shape of the others."""


class ColourFoundError(UnevenShapesError):
    """An image has colours, the others are grey."""


class EncodedSource:
    """Base class of sources whose images are encoded files.

    `image_shape` may be a guess from some of the files; if one of them differs, the writer
    continues with `in_colour()` or `as_encoded()`.
    """

    name: str
    classes: list[str]
    image_shape: tuple[int, int, int] | None
    shape_is_guess = True

    def _use_description(
        self, description: Description | None, name: str | None, default_name: str
    ) -> bool:
        """Set name, and classes and shape if there is a description; return whether there is."""
        self.name = name or (description.name if description else default_name)
        if description is not None:
            self.classes, self.image_shape = description.classes, description.image_shape
            self.shape_is_guess = False
        return description is not None

    def as_encoded(self: T) -> T:
        """Return a copy whose images stay encoded files."""
        other = copy.copy(self)
        other.image_shape = None
        return other

    def in_colour(self: T) -> T:
        """Return a copy whose images have three channels."""
        assert self.image_shape is not None
        other = copy.copy(self)
        other.image_shape = (*self.image_shape[:2], 3)
        return other


def common_shape(files: Iterable[bytes]) -> tuple[int, int, int] | None:
    """Return the shape that these images share, if they are small enough to be stored raw."""
    from PIL import Image

    shapes: set[tuple[int, int, int]] = set()
    for data in files:
        try:
            image = Image.open(io.BytesIO(data))
        except Exception:  # Pillow raises a dozen types; damaged files are listed when packed
            continue
        width, height = image.size
        shapes.add((height, width, 1 if is_grey_mode(image.mode) else 3))
        if len({shape[:2] for shape in shapes}) > 1 or width * height * 3 > RAW_UP_TO:
            return None
    # One size by now; with several numbers of channels, the largest.
    return max(shapes, default=None)


def spread(items: Sequence[Any]) -> list[Any]:
    """Return at most `PROBES` of the items, evenly spaced."""
    step = max(1, -(-len(items) // PROBES))
    return list(items[::step])


def ranges(sizes: Sequence[int]) -> list[str]:
    """Group consecutive items into chunks `begin:end` of 16 to 256 MB, about 64 of them."""
    limit = min(max(sum(sizes) // 64, 16 << 20), 256 << 20)
    chunks, begin, filled = [], 0, 0
    for n, size in enumerate(sizes):
        if filled and filled + size > limit:
            chunks.append(f"{begin}:{n}")
            begin, filled = n, 0
        filled += size
    if begin < len(sizes):
        chunks.append(f"{begin}:{len(sizes)}")
    return chunks


def describe_files(files: Sequence[Path], root: Path | None = None) -> str:
    """Identify the content of files by their names, sizes and times of change.

    Sizes are not enough: other labels in an array or a tar file take the same number of bytes.
    Names are paths below `root`, if it is given: folders may name splits.
    """
    names = [file.name if root is None else file.relative_to(root).as_posix() for file in files]
    states = [(name, file.stat()) for name, file in zip(names, files, strict=True)]
    listing = "\n".join(f"{name}\0{s.st_size}\0{s.st_mtime_ns}" for name, s in states)
    digest = hashlib.sha256(listing.encode(errors="surrogateescape")).hexdigest()[:16]
    total = sum(status.st_size for _, status in states)
    return f"{len(states)} files of {total} bytes, {digest}"


def row_chunks(rows: Mapping[Any, int], step: int) -> list[str]:
    """Return chunks `part:begin` of at most `step` rows, given the number of rows of each part."""
    return [f"{part}:{begin}" for part, n in rows.items() for begin in range(0, n, step)]


EncodedSample = tuple[str, int, str, bytes | None]
"""Id, label, split and file; None if that cannot be read."""


def in_blocks(samples: Iterable[EncodedSample]) -> Iterator[Block]:
    """Group samples into blocks of a few megabytes; samples without a file are listed as broken."""
    rows: list[tuple[str, int, str, bytes]] = []
    broken: list[str] = []
    filled = 0
    for id, label, split, data in samples:
        if data is None:
            broken.append(id)
            continue
        rows.append((id, label, split, data))
        filled += len(data)
        if filled >= BLOCK_BYTES:
            yield _block(rows)
            rows, filled = [], 0
    if rows:
        yield _block(rows)
    if broken:
        yield Block([], [], [], [], broken)


def _block(rows: list[tuple[str, int, str, bytes]]) -> Block:
    ids, labels, splits, files = zip(*rows, strict=True)
    return Block(ids, labels, splits, list(files))


def split_of(path: PurePath | str) -> str:
    """Return the split that a relative path names (`val-0001.tar`, `val/0001.tar`), else train.

    The name of the file counts before those of its folders.
    """
    for name in reversed(PurePath(path).parts):
        for word in re.split(r"[^a-z]+", name.lower()):
            if word in SPLITS:
                return SPLITS[word]
    return "train"


def usual_split(name: str) -> str:
    """Return the usual name of a split: validation for `val`; other names stay."""
    return SPLITS.get(name.lower(), name)
