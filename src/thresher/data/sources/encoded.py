"""What the sources of encoded images share: blocks, chunks, splits and a common image shape."""

import copy
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Any, TypeVar

import numpy as np

from thresher.data.sources.base import Block
from thresher.data.sources.description import Description
from thresher.errors import InvalidValueError

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


class UnevenShapesError(InvalidValueError):
    """An image does not have the shape of the others."""


class EncodedSource:
    """Base class of sources whose images are encoded files.

    `image_shape` may be a guess from some of the files; if one of them differs, the writer
    continues with `as_encoded()`.
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
        grey = image.mode in ("1", "L", "I;16") or image.mode.startswith("I")
        shapes.add((height, width, 1 if grey else 3))
        if len({shape[:2] for shape in shapes}) > 1 or width * height * 3 > RAW_UP_TO:
            return None
    # One size by now; with several numbers of channels, the largest.
    return max(shapes, default=None)


def spread(items: Sequence[Any], count: int = PROBES) -> list[Any]:
    """Return at most `count` of the items, evenly spaced."""
    step = max(1, -(-len(items) // count))
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


EncodedSample = tuple[str, int, str, bytes]
"""Id, label, split and file."""


def in_blocks(samples: Iterable[EncodedSample]) -> Iterator[Block]:
    """Group samples into blocks of a few megabytes."""
    rows: list[EncodedSample] = []
    filled = 0
    for sample in samples:
        rows.append(sample)
        filled += len(sample[3])
        if filled >= BLOCK_BYTES:
            yield _block(rows)
            rows, filled = [], 0
    if rows:
        yield _block(rows)


def _block(rows: list[EncodedSample]) -> Block:
    ids, labels, splits, files = zip(*rows, strict=True)
    return Block(ids, np.array(labels), splits, list(files))


def split_of(path: PurePath | str) -> str:
    """Return the split that a file or folder name contains (`val-0001.tar`); default: train."""
    for word in re.split(r"[^a-z]+", PurePath(path).name.lower()):
        if word in SPLITS:
            return SPLITS[word]
    return "train"
