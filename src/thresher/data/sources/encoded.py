"""What the sources of encoded images share: their chunks, their labels, whether sizes are equal."""

import copy
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any, TypeVar

import numpy as np

from thresher.data.sources.base import Block
from thresher.errors import ThresherError

T = TypeVar("T", bound="EncodedSource")
SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
BLOCK_BYTES = 4 << 20
PROBES = 64
RAW_UP_TO = 128 * 128 * 3
"""Images of equal size are kept as raw pixels up to this many bytes each; larger ones take many
times the room of their files, and stay as they are unless --resize says otherwise."""


class Uneven(ThresherError):
    """An image is not of the shape that the others have."""


class EncodedSource:
    """A source whose images come as files. `image_shape` is a guess from some of them; should a
    file turn out otherwise, the writer goes on with `as_encoded()`."""

    name: str
    classes: list[str]
    image_shape: tuple[int, int, int] | None
    shape_is_guess = True

    def as_encoded(self: T) -> T:
        other = copy.copy(self)
        other.image_shape = None
        return other


def common_shape(files: Iterable[bytes]) -> tuple[int, int, int] | None:
    """The shape that these images share, if they are small enough to be kept raw."""
    shapes: set[tuple[int, int, int]] = set()
    for data in files:
        try:
            image = _header(data)
        except Exception:  # a broken file says nothing about the others
            continue
        width, height = image.size
        grey = image.mode in ("1", "L", "I;16") or image.mode.startswith("I")
        shapes.add((height, width, 1 if grey else 3))
        if len({shape[:2] for shape in shapes}) > 1 or width * height * 3 > RAW_UP_TO:
            return None
    if not shapes:
        return None
    height, width, _ = next(iter(shapes))
    return (height, width, 1 if all(shape[2] == 1 for shape in shapes) else 3)


def _header(data: bytes) -> Any:
    from PIL import Image

    return Image.open(io.BytesIO(data))


def spread(items: Sequence[Any], count: int = PROBES) -> list[Any]:
    """At most `count` of the items, evenly spaced."""
    step = max(1, -(-len(items) // count))
    return list(items[::step])


def ranges(sizes: Sequence[int]) -> list[str]:
    """Consecutive items in chunks `begin:end` of 16 to 256 MB, about 64 of them."""
    total = sum(sizes)
    limit = min(max(total // 64, 16 << 20), 256 << 20)
    chunks, begin, filled = [], 0, 0
    for n, size in enumerate(sizes):
        if filled and filled + size > limit:
            chunks.append(f"{begin}:{n}")
            begin, filled = n, 0
        filled += size
    if begin < len(sizes):
        chunks.append(f"{begin}:{len(sizes)}")
    return chunks


def in_blocks(samples: Iterable[tuple[str, int, str, bytes]]) -> Iterator[Block]:
    """Samples (id, label, split, file) in blocks of a few megabytes."""
    rows: list[tuple[str, int, str, bytes]] = []
    filled = 0
    for sample in samples:
        rows.append(sample)
        filled += len(sample[3])
        if filled >= BLOCK_BYTES:
            yield _block(rows)
            rows, filled = [], 0
    if rows:
        yield _block(rows)


def _block(rows: list[tuple[str, int, str, bytes]]) -> Block:
    ids, labels, splits, files = zip(*rows, strict=True)
    return Block(ids, np.array(labels), splits, list(files))


def split_of(path: PurePath | str) -> str:
    """The split that a file or folder name speaks of (`val-0001.tar`, `train`); else train."""
    for word in re.split(r"[^a-z]+", PurePath(path).name.lower()):
        if word in SPLITS:
            return SPLITS[word]
    return "train"


def class_names(file: Path | None, labels: Callable[[], Iterable[int]]) -> list[str]:
    """Names from a file (one per line), else numbers up to the largest label that there is."""
    if file is not None:
        try:
            names = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
        except (OSError, UnicodeDecodeError):
            raise ThresherError(f"{file} cannot be read as a list of class names") from None
        if not (names := [name for name in names if name]):
            raise ThresherError(f"{file} names no class", "write one name per line")
        return names
    return [str(n) for n in range(max(labels(), default=-1) + 1)]
