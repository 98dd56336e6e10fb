"""NumPy's .npz: `images` and `labels`, or a pair per split such as `x_train`, `y_train`."""

import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from thresher.data.labels import as_labels, class_names
from thresher.data.sources.arrays import (
    accepted_names,
    as_images,
    find_archive,
    find_name,
    open_archive,
)
from thresher.data.sources.base import Block
from thresher.data.sources.encoded import SPLITS
from thresher.errors import InvalidValueError

SUFFIXES = (".npz",)
BLOCK_BYTES = 8 << 20
_DAMAGED = (ValueError, KeyError, zipfile.BadZipFile, zlib.error, EOFError, OSError)


class _Arrays(NamedTuple):
    """Names of the arrays of a split."""

    images: str
    labels: str
    ids: str | None


class Npz:
    """An .npz file; images are streamed, so it may be larger than memory."""

    def __init__(
        self, where: Path | str, name: str | None = None, classes: Path | None = None
    ) -> None:
        self.path = open_archive(where, SUFFIXES)
        self.name = name or self.path.stem
        self.splits = _splits(self._members(), self.path)
        self.classes = class_names(
            classes,
            lambda: np.concatenate([self._labels(split) for split in self.splits]),
            str(self.path),
        )
        with self._stream(next(iter(self.splits.values())).images) as file:
            shape, dtype = self._header(file)
        probe = as_images(np.empty((0, *shape[1:]), dtype), str(self.path))
        self.image_shape: tuple[int, int, int] | None = probe.shape[1:]

    @staticmethod
    def matches(where: str) -> bool:
        return find_archive(where, SUFFIXES) is not None

    def key(self) -> str:
        return f"npz {self.path.name}, {self.path.stat().st_size} bytes"

    def chunks(self) -> list[str]:
        return list(self.splits)

    def read(self, chunk: str) -> Iterator[Block]:
        names = self.splits[chunk]
        labels = self._labels(chunk)
        ids = self._array(names.ids).tolist() if names.ids else None
        with self._stream(names.images) as file:
            shape, dtype = self._header(file)
            if len(labels) != shape[0]:
                raise InvalidValueError(
                    f"{self.path} has {shape[0]} images and {len(labels)} labels"
                )
            row = int(np.prod(shape[1:])) * dtype.itemsize
            step = max(1, BLOCK_BYTES // max(row, 1))
            for begin in range(0, shape[0], step):
                n = min(step, shape[0] - begin)
                block = np.frombuffer(self._read(file, n * row), dtype).reshape(n, *shape[1:])
                yield Block(
                    [str(id) for id in ids[begin : begin + n]]
                    if ids
                    else [f"{chunk}/{number:06d}" for number in range(begin, begin + n)],
                    labels[begin : begin + n],
                    [chunk] * n,
                    np.ascontiguousarray(as_images(block, f"{self.path}:{names.images}")),
                )

    def _members(self) -> list[str]:
        try:
            with zipfile.ZipFile(self.path) as file:
                return [name.removesuffix(".npy") for name in file.namelist()]
        except _DAMAGED:
            raise self._damaged() from None

    def _stream(self, name: str) -> IO[bytes]:
        return zipfile.ZipFile(self.path).open(f"{name}.npy")

    def _header(self, file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
        try:
            version = np.lib.format.read_magic(file)
            read = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            shape, fortran, dtype = read(file)
        except _DAMAGED:
            raise self._damaged() from None
        if fortran and len(shape) > 1:
            raise InvalidValueError(
                f"the images in {self.path} are in Fortran order", "save them in C order"
            )
        if dtype.hasobject:
            raise InvalidValueError(f"{self.path} has Python objects", "save plain arrays")
        return shape, dtype

    def _read(self, file: IO[bytes], size: int) -> bytes:
        try:
            data = file.read(size)
        except _DAMAGED:
            raise self._damaged() from None
        if len(data) != size:
            raise self._damaged()
        return data

    def _array(self, name: str) -> np.ndarray:
        try:
            with np.load(self.path, allow_pickle=False) as file:
                return np.asarray(file[name])
        except _DAMAGED:
            raise self._damaged() from None

    def _labels(self, split: str) -> np.ndarray:
        return as_labels(self._array(self.splits[split].labels), str(self.path))

    def _damaged(self) -> InvalidValueError:
        return InvalidValueError(
            f"{self.path} is truncated, damaged or not an .npz file of plain arrays",
            "save it again",
        )


def _splits(names: list[str], path: Path) -> dict[str, _Arrays]:
    """Find the arrays of each split by their names."""
    by_split: dict[str, list[str]] = {}
    for name in names:
        words = name.lower().split("_")
        split = next((SPLITS[word] for word in words if word in SPLITS), "train")
        by_split.setdefault(split, []).append(name)
    splits = {}
    for split, members in by_split.items():
        bare = {_without_split(name): name for name in members}
        images, labels = find_name("images", list(bare)), find_name("labels", list(bare))
        if images and labels:
            splits[split] = _Arrays(bare[images], bare[labels], bare.get("ids"))
    if not splits:
        raise InvalidValueError(
            f"{path} has no pair of images and labels (it has {', '.join(names) or 'nothing'})",
            f"{accepted_names('images')}, {accepted_names('labels')}, with the split before or "
            "after them",
        )
    return splits


def _without_split(name: str) -> str:
    return "_".join(word for word in name.lower().split("_") if word not in SPLITS)
