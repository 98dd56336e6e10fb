"""HDF5: `images` and `labels`, at the root or in a group per split; raw arrays or encoded files."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from thresher.data.ids import id_texts
from thresher.data.labels import as_labels, class_names
from thresher.data.sources import arrays, encoded
from thresher.data.sources.base import Block
from thresher.errors import InvalidValueError
from thresher.plugins import import_optional
from thresher.read_errors import unreadable

SUFFIXES = (".h5", ".hdf5")
ROWS_PER_CHUNK = 20_000
BLOCK_BYTES = 8 << 20


class Hdf5(encoded.EncodedSource):
    """An .h5 file. Beside `images` and `labels` it may hold `ids` and `splits` (strings)."""

    def __init__(
        self, where: Path | str, name: str | None = None, classes: Path | None = None
    ) -> None:
        self.path = arrays.open_archive(where, SUFFIXES)
        with _opened(self.path) as file:
            attribute = file.attrs.get("thresher")
            described = None
            if attribute:
                value = None
                with contextlib.suppress(ValueError, TypeError):
                    value = json.loads(attribute)
                described = encoded.Description.from_json(value, self.path)
            self.groups = _groups(file, self.path)
            images, _ = _pair(file, self.groups[0], self.path)
            self.raw = images.ndim > 1
            if self._use_description(described, name, self.path.stem):
                return
            self.classes = class_names(classes, lambda: self._largest_labels(file), str(self.path))
            if self.raw:
                probe = arrays.as_images(images[:1], str(self.path))
                self.image_shape = (probe.shape[1], probe.shape[2], probe.shape[3])
                self.shape_is_guess = False
            else:
                self.image_shape = encoded.common_shape(
                    bytes(images[n]) for n in range(min(len(images), 64))
                )

    @staticmethod
    def matches(where: str) -> bool:
        return arrays.find_archive(where, SUFFIXES) is not None

    def key(self) -> str:
        return f"hdf5 {self.path.name}, {encoded.describe_files([self.path])}"

    def chunks(self) -> list[str]:
        with _opened(self.path) as file:
            rows = [len(_pair(file, group, self.path)[0]) for group in self.groups]
        return encoded.row_chunks(dict(enumerate(rows)), ROWS_PER_CHUNK)

    def read(self, chunk: str) -> Iterator[Block]:
        number, first = (int(part) for part in chunk.split(":"))
        with _opened(self.path) as file:
            group = self.groups[number]
            images, labels = _pair(file, group, self.path)
            last = min(first + ROWS_PER_CHUNK, len(images))
            step = ROWS_PER_CHUNK
            if self.raw:
                step = max(1, BLOCK_BYTES // int(np.prod(images.shape[1:])))
            for begin in range(first, last, step):
                end = min(begin + step, last)
                ids = _strings(file, group, "ids", begin, end) or [
                    f"{group.strip('/') or self.path.stem}/{n:06d}" for n in range(begin, end)
                ]
                splits = _strings(file, group, "splits", begin, end)
                splits = splits or [encoded.split_of(group)] * (end - begin)
                numbers = as_labels(labels[begin:end], str(self.path))
                if self.raw:
                    yield Block(ids, numbers, splits, arrays.as_images(images[begin:end], ids[0]))
                else:
                    files = (bytes(images[n]) for n in range(begin, end))
                    yield from encoded.in_blocks(
                        zip(ids, numbers.tolist(), splits, files, strict=True)
                    )

    def _largest_labels(self, file: Any) -> list[int]:
        """Return the largest label of each group."""
        arrays = (_pair(file, group, self.path)[1][...] for group in self.groups)
        labels = (as_labels(array, str(self.path)) for array in arrays)
        return [int(array.max()) for array in labels if len(array)]


def _opened(path: Path) -> Any:
    h5py = import_optional("h5py", "containers")
    try:
        return h5py.File(path, "r")
    except OSError as error:
        wrong = InvalidValueError(f"{path} is truncated or not an HDF5 file", "get it again")
        raise unreadable(path, error) or wrong from None


def _groups(file: Any, path: Path) -> list[str]:
    """Return the groups that hold images: the root, or one per split."""
    groups = ["/", *(f"/{name}" for name in file if hasattr(file[name], "keys"))]
    groups = [group for group in groups if arrays.find_name("images", list(file[group]))]
    if not groups:
        raise InvalidValueError(
            f"{path} has no data set named images", arrays.accepted_names("images")
        )
    return groups


def _pair(file: Any, group: str, path: Path) -> tuple[Any, Any]:
    members = file[group]
    names = [arrays.find_name(kind, list(members)) for kind in ("images", "labels")]
    if names[0] is None or names[1] is None:
        raise InvalidValueError(
            f"{path}{group} has images but no labels", arrays.accepted_names("labels")
        )
    images, labels = members[names[0]], members[names[1]]
    for kind in arrays.NAMES:
        name = arrays.find_name(kind, list(members))
        if name is None:
            continue
        if not getattr(members[name], "ndim", 0):
            what = f"{name} in {path}{group} must be an array with a value for each image"
            raise InvalidValueError(what, "save it as one")
        arrays.check_length(kind, len(members[name]), len(images), f"{path}{group}")
    return images, labels


def _strings(file: Any, group: str, kind: str, begin: int, end: int) -> list[str]:
    name = arrays.find_name(kind, list(file[group]))
    return [] if name is None else id_texts(file[group][name][begin:end])
