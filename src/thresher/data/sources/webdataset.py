"""WebDataset: tar files whose members share a key, such as `0001.jpg` and `0001.cls`."""

import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from thresher.data.labels import class_names
from thresher.data.sources import encoded
from thresher.data.sources.base import Block
from thresher.data.sources.cifar import open_tar
from thresher.data.sources.walk import is_hidden, walk
from thresher.errors import InvalidValueError, NotFoundError
from thresher.read_errors import unreadable

_SUFFIXES = """
jpg jpeg jfif jp2 j2k png webp avif bmp tif tiff gif ppm pgm pbm pnm dib tga pcx dcx sgi ico icns
cur dds psd qoi xbm xpm im msp sun fli blp
"""
IMAGES = frozenset(_SUFFIXES.split())
LABELS = frozenset(("cls", "json"))
UNKNOWN = ""
PROBES_PER_TAR = 8
NEEDED = "each sample needs a .cls member with a number, or a .json member with `label`"
_TAR = re.compile(r"\.(tar(\.(gz|bz2|xz|zst))?|tgz|tbz2?|txz)$")


class WebDataset(encoded.EncodedSource):
    """A tar file, or a folder of them; the name of the tar, or of its folder, gives the split.

    The label is the `.cls` member, or `label` in the `.json` member, which may also hold `id` and
    `split`. Without class names, all labels are read once beforehand to count the classes.
    """

    def __init__(
        self, where: Path | str, name: str | None = None, classes: Path | None = None
    ) -> None:
        path = Path(where)
        self.root = path if path.is_dir() else path.parent
        self.tars = _tars(path, deep=True) if path.is_dir() else [path]
        stems = [_stem(tar.name) for tar in self.tars]
        # Splits in folders of their own often number their tars alike.
        self.with_folder = len(set(stems)) < len(stems)
        if not self.tars:
            raise NotFoundError(f"{path} has no .tar file", "check the path")
        if not self._use_description(
            encoded.Description.find(self.root), name, path.resolve().stem
        ):
            self.classes = class_names(classes, self._labels, str(path))
            if not self.classes:
                raise InvalidValueError(f"{path} has no labels", NEEDED)
            self.image_shape = encoded.common_shape(self._probes())

    @staticmethod
    def matches(where: str) -> bool:
        path = Path(where)
        if path.is_file():
            return _is_tar(path)
        return path.is_dir() and bool(_tars(path, deep=False) or _tars_in_splits(path))

    def key(self) -> str:
        return f"webdataset {self.root.name}, {encoded.describe_files(self.tars, self.root)}"

    def chunks(self) -> list[str]:
        return [tar.relative_to(self.root).as_posix() for tar in self.tars]

    def read(self, chunk: str) -> Iterator[Block]:
        tar = self.root / chunk
        yield from encoded.in_blocks(
            (
                *self._parse(key, members, tar, chunk),
                next((data for kind, data in members.items() if kind in IMAGES), None),
            )
            for key, members in grouped(tar, IMAGES | LABELS)
        )

    def _labels(self) -> Iterator[int]:
        for tar in self.tars:
            for key, members in grouped(tar, LABELS):
                yield self._parse(key, members, tar, tar.name)[1]

    def _probes(self) -> Iterator[bytes]:
        for tar in self.tars:
            for _, members in islice(grouped(tar, IMAGES), PROBES_PER_TAR):
                yield from members.values()

    def _parse(
        self, key: str, members: dict[str, bytes], tar: Path, chunk: str
    ) -> tuple[str, Any, str]:
        """Return id, label and split. Keys may repeat across tars: an id begins with the tar."""
        try:
            fields = json.loads(members["json"]) if "json" in members else {}
            if set(members) == {UNKNOWN}:
                fields = {"label": 0}  # of an image that is listed as broken
            label = int(members["cls"]) if "cls" in members else fields["label"]
            place = PurePosixPath(chunk)
            name = _stem(place.name)
            name = (place.parent / name).as_posix() if self.with_folder else name
            id, split = fields.get("id"), fields.get("split")
            return (
                f"{name}/{key}" if id is None else str(id),
                label,
                encoded.split_of(chunk) if split is None else str(split),
            )
        except (KeyError, ValueError, TypeError, AttributeError):
            raise InvalidValueError(
                f'sample "{key}" of {tar} has no label',
                NEEDED,
            ) from None


def _stem(name: str) -> str:
    return name.partition(".")[0]


def _is_tar(path: Path) -> bool:
    """Return whether a file is a tar file, compressed or not, by its name."""
    return not is_hidden(path.name) and _TAR.search(path.name.lower()) is not None


def _tars(folder: Path, deep: bool) -> list[Path]:
    below = (Path(sub, name) for sub, names in walk(folder) for name in names)
    files = below if deep else folder.iterdir()
    return sorted(file for file in files if _is_tar(file) and file.is_file())


def _tars_in_splits(folder: Path) -> list[Path]:
    """Return the tar files in folders of splits that hold no other folders."""
    inside = [sub for sub in folder.iterdir() if sub.is_dir() and not is_hidden(sub.name)]
    if any(sub.name.lower() not in encoded.SPLITS for sub in inside):
        return []
    if any(below.is_dir() for sub in inside for below in sub.iterdir()):
        return []
    return [tar for sub in inside for tar in _tars(sub, deep=False)]


def grouped(tar: Path, kinds: frozenset[str]) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield the samples of a tar file in order: the key, and members of these kinds by suffix.

    A second member of a kind begins another sample, so that none is lost if a key repeats. The key
    ends at the first dot: an image with another one, as `v1.2.jpg`, is a member of kind `UNKNOWN`.
    """
    key = ""
    members: dict[str, bytes] = {}
    if tar.suffix == ".tar":
        _check_end(tar)
    with open_tar(tar, "is truncated or damaged") as archive:
        for member in archive:
            path = PurePosixPath(member.name)
            stem, _, kind = path.name.partition(".")
            current = (path.parent / stem).as_posix()
            if not member.isfile() or not stem:
                continue
            if members and (current != key or kind.lower() in members):
                yield key, members
                members = {}
            key = current
            if kind.lower().rpartition(".")[2] in kinds & IMAGES and kind.lower() not in kinds:
                members[UNKNOWN] = b""
            if kind.lower() in kinds:
                content = archive.extractfile(member)
                members[kind.lower()] = content.read() if content else b""
        if members:
            yield key, members


def _check_end(tar: Path) -> None:
    """Refuse a file without the two empty blocks that end an archive: samples may be missing."""
    try:
        with open(tar, "rb") as file:
            file.seek(max(0, tar.stat().st_size - 1024))
            end = file.read()
    except OSError as error:
        raise unreadable(tar, error) or error from None
    if end.strip(b"\0"):
        raise InvalidValueError(f"{tar} is truncated or damaged", "get it again")
