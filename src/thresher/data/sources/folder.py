"""A folder of image files: class/name.ext, or split/class/name.ext, in any format Pillow reads."""

import csv
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from thresher.data.sources.base import Block
from thresher.data.sources.description import Description, description_in
from thresher.data.sources.encoded import (
    SPLITS,
    EncodedSource,
    common_shape,
    in_blocks,
    ranges,
    spread,
)
from thresher.errors import ThresherError

INDEX = "samples.csv"
"""Written by an export beside thresher.json: file, id, label, split."""


@dataclass(frozen=True)
class _File:
    path: str
    """Relative to the root, with forward slashes: the sample's id, unless an index gives one."""
    id: str
    label: int
    split: str
    size: int
    time: int = 0
    """When it was last changed, in nanoseconds."""


class Folder(EncodedSource):
    """Images under `root`. Memory: some 300 bytes per file."""

    def __init__(self, root: Path, name: str | None = None) -> None:
        self.root = Path(root)
        described = description_in(self.root)
        self.name = name or (described.name if described else self.root.resolve().name)
        if described is not None and (self.root / INDEX).is_file():
            self.classes, self._files = described.classes, _indexed(self.root, described)
        else:
            self.classes, self._files = _listed(self.root)
        if described is not None:
            self.image_shape, self.shape_is_guess = described.image_shape, False
        else:
            probes = (_bytes(self.root / file.path) for file in spread(self._files))
            self.image_shape = common_shape(data for data in probes if data is not None)

    def key(self) -> str:
        listing = hashlib.sha256()
        for file in self._files:
            listing.update(
                f"{file.path}\0{file.id}\0{file.label}\0{file.size}\0{file.time}\n".encode()
            )
        return f"folder {self.root.name}, {len(self._files)} files, {listing.hexdigest()[:16]}"

    def chunks(self) -> list[str]:
        # Opening a small file costs about as much as reading 4 KB more of it.
        return ranges([file.size + 4096 for file in self._files])

    def read(self, chunk: str) -> Iterator[Block]:
        begin, end = (int(bound) for bound in chunk.split(":"))
        broken: list[str] = []

        def samples() -> Iterator[tuple[str, int, str, bytes]]:
            for file in self._files[begin:end]:
                data = _bytes(self.root / file.path)
                if data is None:
                    broken.append(file.id)
                else:
                    yield file.id, file.label, file.split, data

        yield from in_blocks(samples())
        if broken:
            yield Block([], [], [], [], broken=broken)


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def image_suffixes() -> set[str]:
    """The file name endings that this Pillow can open."""
    from PIL import Image

    return {end for end, kind in Image.registered_extensions().items() if kind in Image.OPEN}


def _listed(root: Path) -> tuple[list[str], list[_File]]:
    if not root.is_dir():
        raise ThresherError(f"there is no folder {root}", "check the path")
    found = sorted(_walk(root, image_suffixes()))
    if not found:
        raise ThresherError(
            f"{root} holds no image file", "expected class/name.ext or split/class/name.ext"
        )
    tops = {path.split("/", 1)[0] for path, _, _ in found if "/" in path}
    split_first = bool(tops) and all(top.lower() in SPLITS for top in tops)
    depth = 2 if split_first else 1
    rows = []
    for path, size, changed in found:
        parts = path.split("/")
        if len(parts) <= depth:
            raise ThresherError(
                f"{root / path} lies in no class folder",
                "expected class/name.ext or split/class/name.ext",
            )
        split = SPLITS[parts[0].lower()] if split_first else "train"
        rows.append((parts[depth - 1], path, split, size, changed))
    classes = sorted({row[0] for row in rows})
    number = {name: n for n, name in enumerate(classes)}
    return classes, [
        _File(path, path, number[name], split, size, changed)
        for name, path, split, size, changed in rows
    ]


def _walk(root: Path, suffixes: set[str]) -> Iterator[tuple[str, int, int]]:
    """Image files below `root`: path, size, time of change; linked folders are followed once."""
    waiting, seen = [""], set()
    while waiting:
        inside = waiting.pop()
        place = root / inside
        real = os.path.realpath(place)
        if real in seen:
            continue
        seen.add(real)
        try:
            entries = list(os.scandir(place))
        except OSError as error:
            raise ThresherError(f"the folder {place} cannot be read ({error.strerror})") from None
        for entry in entries:
            path = f"{inside}/{entry.name}" if inside else entry.name
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                waiting.append(path)
            elif os.path.splitext(entry.name)[1].lower() in suffixes:
                try:
                    status = entry.stat()
                except OSError:  # a link to nothing: listed as broken when it is read
                    yield path, 0, 0
                else:
                    yield path, status.st_size, status.st_mtime_ns


def _indexed(root: Path, described: Description) -> list[_File]:
    with open(root / INDEX, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    try:
        return [
            _File(row["file"], row["id"], int(row["label"]), row["split"], int(row["bytes"]))
            for row in rows
        ]
    except (KeyError, ValueError, TypeError):
        raise ThresherError(f"{root / INDEX} is damaged", "export the folder again") from None
