"""A folder of image files: class/name.ext, or split/class/name.ext, in any format Pillow reads."""

import contextlib
import csv
import errno
import functools
import hashlib
import logging
import os
import shlex
import stat
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from thresher.data.sources import encoded
from thresher.data.sources.base import Block
from thresher.data.sources.walk import is_hidden, walk
from thresher.errors import InvalidValueError, NotFoundError, counted
from thresher.read_errors import unreadable

logger = logging.getLogger(__name__)

INDEX = "samples.csv"
"""Written by an export beside thresher.json: file, id, label, split, bytes, sha256."""
LAYOUT = "expected class/name.ext or split/class/name.ext"
METADATA = ("metadata.csv", "metadata.jsonl")
"""What lists the labels of images in a folder for the `datasets` library."""
PARQUET = "a folder of Parquet files that hold images is read as hf:FOLDER"
GO_BY_FOLDERS = f"remove {INDEX} and {encoded.DESCRIPTION} to go by the names of the folders"


@dataclass(frozen=True)
class ImageFile:
    """An image file; its id is its path relative to the root, unless an index gives another."""

    path: str
    id: str
    label: int
    split: str
    size: int
    time: int = 0
    digest: str = ""
    """Of the image when it was exported; empty if unknown."""


class Folder(encoded.EncodedSource):
    """Image files in class folders, using some 300 bytes of memory per file."""

    def __init__(self, where: Path | str, name: str | None = None) -> None:
        self.root = Path(where)
        described = self._use_description(
            encoded.Description.find(self.root), name, _printable(self.root.resolve().name)
        )
        if described and (self.root / INDEX).is_file():
            self.files = _as_on_disk(self.root, _read_index(self.root))
        else:
            self.classes, self.files = _list_files(self.root)
        if not described:
            probes = (_read(self.root / file.path) for file in encoded.spread(self.files))
            self.image_shape = encoded.common_shape(data for data in probes if data is not None)

    @staticmethod
    def matches(where: str) -> bool:
        return Path(where).is_dir()

    def key(self) -> str:
        listing = hashlib.sha256()
        for file in self.files:
            listing.update(
                f"{file.path}\0{file.id}\0{file.label}\0{file.size}\0{file.time}\n".encode(
                    errors="surrogateescape"
                )
            )
        name = _printable(self.root.name)
        return f"folder {name}, {len(self.files)} files, {listing.hexdigest()[:16]}"

    def chunks(self) -> list[str]:
        # Opening a small file costs about as much as reading 4 KB more of it.
        return encoded.ranges([file.size + 4096 for file in self.files])

    def read(self, chunk: str) -> Iterator[Block]:
        begin, end = (int(bound) for bound in chunk.split(":"))
        yield from encoded.in_blocks(
            (file.id, file.label, file.split, self._content(file)) for file in self.files[begin:end]
        )

    def _content(self, file: ImageFile) -> bytes | None:
        data = _read(self.root / file.path) if _is_text(file.path) else None
        if data is not None and file.digest and file.digest != content_digest(data):
            self._check_not_moved(file, content_digest(data))
        return data

    @functools.cached_property
    def _exported_as(self) -> dict[str, str]:
        """Paths by the digests of the images when they were exported."""
        return {file.digest: file.path for file in reversed(self.files)}

    def _check_not_moved(self, file: ImageFile, digest: str) -> None:
        """Refuse an image that was exported under another name: its id and label are another's."""
        exported = self._exported_as.get(digest)
        if exported is not None:
            raise InvalidValueError(
                f"{self.root / file.path} holds the image that was exported as {exported}",
                GO_BY_FOLDERS,
            )


def exported_ids(root: Path) -> dict[str, str] | None:
    """Return the ids of the files of an export by their paths below it; None for other folders."""
    if not (root / INDEX).is_file() or not (root / encoded.DESCRIPTION).is_file():
        return None
    return {file.path: file.id for file in _read_index(root)}


def content_digest(data: bytes) -> str:
    """Return a digest of an image file, as in the index of an export."""
    return hashlib.sha256(data).hexdigest()[:16]


def _printable(name: str) -> str:
    """Return a file name as text; bytes that are not UTF-8 are escaped, as in `\\xff`."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _is_text(name: str) -> bool:
    """Return whether a file name is UTF-8, whatever the encoding of the locale."""
    try:
        os.fsencode(name).decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _read(path: Path) -> bytes | None:
    try:
        # Not a FIFO or a device: reading one could block for ever.
        return path.read_bytes() if stat.S_ISREG(path.stat().st_mode) else None
    except OSError as error:
        # An image that cannot be read now is not broken: without it, the data set is another one.
        refused = None if error.errno == errno.ELOOP else unreadable(path, error)
        if refused is not None:
            raise refused from None
        return None


def _image_suffixes() -> set[str]:
    from PIL import Image

    return {end for end, kind in Image.registered_extensions().items() if kind in Image.OPEN}


def _list_files(root: Path) -> tuple[list[str], list[ImageFile]]:
    if not root.is_dir():
        raise NotFoundError(f"there is no folder {root}", "check the path")
    others: Counter[str] = Counter()
    files = sorted(_walk(root, _image_suffixes(), others))
    if not files:
        raise InvalidValueError(
            f"{root} has no image file", PARQUET if others[".parquet"] else LAYOUT
        )
    if others:
        endings = ", ".join(
            f"{_printable(end) or 'none'} ({n:,})" for end, n in others.most_common(9)
        )
        are = "is" if others.total() == 1 else "are"
        logger.warning(
            f"{counted(others.total(), 'file')} in {root} {are} left out because of endings other "
            f"than those of images that Pillow reads: {endings}"
        )
    tops = {path.split("/", 1)[0] for path, _, _ in files if "/" in path}
    split_first = bool(tops) and all(top.lower() in encoded.SPLITS for top in tops)
    if not split_first:
        _check_no_splits(root, tops, [path for path, _, _ in files])
    depth = 2 if split_first else 1
    names = []
    inside: dict[str, set[str]] = defaultdict(set)
    for path, _, _ in files:
        parts = path.split("/")
        if len(parts) <= depth:
            listed = {root, root / parts[0]} if parts[1:] else {root}
            tables = [file for file in METADATA if any((top / file).is_file() for top in listed)]
            pack = f"`thresher data pack {shlex.quote(f'hf:{root}')} OUT`"
            fix = f"{pack} uses the labels in {tables[0]}" if tables else LAYOUT
            raise InvalidValueError(f"{_printable(str(root / path))} is not in a class folder", fix)
        names.append(parts[depth - 1])
        inside[parts[depth - 1]].update(parts[depth : depth + 1] if parts[depth + 1 :] else ())
    # A name that is not UTF-8 cannot be an id or a class name: the file is listed as broken.
    classes = sorted({_printable(name) for name in names if _is_text(name)})
    if not classes:
        raise InvalidValueError(f"the folder names in {root} are not UTF-8 text", "rename them")
    _mention_empty(root, tops if split_first else {""}, set(names))
    _mention_inside(root, inside)
    label = {name: n for n, name in enumerate(classes)}
    images = []
    for name, (path, size, changed) in zip(names, files, strict=True):
        split = encoded.SPLITS[path.split("/", 1)[0].lower()] if split_first else "train"
        images.append(
            ImageFile(path, _printable(path), label.get(_printable(name), 0), split, size, changed)
        )
    return classes, images


def _mention_empty(root: Path, parents: set[str], names: set[str]) -> None:
    """Log folders beside those of the classes that hold no image: they are no classes."""
    beside = (entry for parent in parents for entry in os.scandir(root / parent))
    found = {entry.name for entry in beside if entry.is_dir() and not is_hidden(entry.name)}
    empty = sorted(_printable(name) for name in found - names)
    if empty:
        logger.warning(
            f"class folders without images in {root}: {len(empty):,}, such as "
            f'"{empty[0]}". They are left out, so that the classes after it have lower numbers'
        )


def _mention_inside(root: Path, inside: dict[str, set[str]]) -> None:
    """Log folders of the same names inside several classes, or inside the only one.

    They may be the classes or the splits of another layout: `images/cat` or `cat/test`.
    """
    counts = Counter(name for names in inside.values() for name in names)
    several = {name for name, count in counts.items() if count > 1 or len(inside) == 1}
    top = next((top for top, names in sorted(inside.items()) if len(names & several) > 1), None)
    if top is not None:
        first, second = sorted(map(_printable, inside[top] & several))[:2]
        logger.warning(
            f'folders inside those of the classes of {root}, such as "{first}" and "{second}" in '
            f'"{_printable(top)}", count as neither classes nor splits: {LAYOUT}'
        )


def _check_no_splits(root: Path, tops: set[str], paths: list[str]) -> None:
    """Refuse split/class/name.ext beside other folders: the splits would become classes."""
    splits = {top for top in tops if top.lower() in encoded.SPLITS}
    inside = [path for path in paths if path.split("/", 1)[0] in splits]
    several = len(splits) > 1 and "train" in {encoded.usual_split(top) for top in splits}
    if several and all(path.count("/") > 1 for path in inside):
        raise InvalidValueError(
            f"{root} has folders of splits ({', '.join(sorted(splits))}) beside others, such as "
            f"{min(tops - splits)}",
            "leave only folders of splits, or only folders of classes",
        )


def _walk(
    root: Path, suffixes: set[str], others: Counter[str] | None = None
) -> Iterator[tuple[str, int, int]]:
    """Yield path, size and modification time of image files; `others` counts the endings of others.

    See `walk` for hidden files and links.
    """
    for folder, names in walk(root):
        below = os.path.relpath(folder, root)
        prefix = "" if below == os.curdir else f"{below}/"
        for name in names:
            ending = os.path.splitext(name)[1].lower()
            if ending not in suffixes:
                if others is not None:
                    others[ending] += 1
                continue
            size = changed = 0  # of a dangling link: listed as broken when it is read
            with contextlib.suppress(OSError):
                status = os.stat(os.path.join(folder, name))
                size, changed = status.st_size, status.st_mtime_ns
            yield prefix + name, size, changed


def _as_on_disk(root: Path, files: list[ImageFile]) -> list[ImageFile]:
    """Return the listed files with their present sizes and times.

    Refuse an export to which files were added, or in which they were moved to other classes.
    """
    found = {path: (size, time) for path, size, time in _walk(root, _image_suffixes())}
    if unlisted := found.keys() - {file.path for file in files}:
        raise InvalidValueError(
            f"{root / min(unlisted)} is not listed in {INDEX}, which was written with the export",
            GO_BY_FOLDERS,
        )
    states = (found.get(file.path, (file.size, 0)) for file in files)
    return [replace(f, size=size, time=time) for f, (size, time) in zip(files, states, strict=True)]


def _read_index(root: Path) -> list[ImageFile]:
    try:
        with open(root / INDEX, newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
        return [
            ImageFile(
                os.fsdecode(row["file"].encode()),
                row["id"],
                int(row["label"]),
                row["split"],
                int(row["bytes"]),
                digest=row.get("sha256") or "",
            )
            for row in rows
        ]
    except (KeyError, ValueError, TypeError, csv.Error):
        raise InvalidValueError(f"{root / INDEX} is damaged", "export the folder again") from None
