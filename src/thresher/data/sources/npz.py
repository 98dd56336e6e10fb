"""NumPy's .npz: `images`, `labels`, optional `splits`, or a pair per split such as `x_train`."""

import contextlib
import logging
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from thresher.data.ids import id_texts
from thresher.data.labels import as_labels, class_names
from thresher.data.sources import arrays
from thresher.data.sources.base import Block
from thresher.data.sources.encoded import SPLITS, describe_files
from thresher.errors import InvalidValueError
from thresher.read_errors import unreadable

SUFFIXES = (".npz",)
logger = logging.getLogger(__name__)
BLOCK_BYTES = 8 << 20
_DAMAGED = (ValueError, KeyError, zipfile.BadZipFile, zlib.error, EOFError, OSError)


class _Arrays(NamedTuple):
    images: str
    labels: str
    ids: str | None
    splits: str | None


class Npz:
    """An .npz file; images are streamed, so it may be larger than memory."""

    def __init__(
        self, where: Path | str, name: str | None = None, classes: Path | None = None
    ) -> None:
        self.path = arrays.open_archive(where, SUFFIXES)
        self.name = name or self.path.stem
        self.splits = _splits(self._members(), self.path)
        self.classes = class_names(
            classes,
            lambda: np.concatenate([self._labels(split) for split in self.splits]),
            str(self.path),
        )
        with self._stream(next(iter(self.splits.values())).images) as file:
            shape, dtype = self._header(file)
        probe = arrays.as_images(np.empty((0, *shape[1:]), dtype), str(self.path))
        self.image_shape: tuple[int, int, int] | None = probe.shape[1:]

    @staticmethod
    def matches(where: str) -> bool:
        return arrays.find_archive(where, SUFFIXES) is not None

    def key(self) -> str:
        return f"npz {self.path.name}, {describe_files([self.path])}"

    def chunks(self) -> list[str]:
        return list(self.splits)

    def read(self, chunk: str) -> Iterator[Block]:
        names = self.splits[chunk]
        labels = self._labels(chunk)
        with self._stream(names.images) as file:
            shape, dtype = self._header(file)
            ids = [f"{chunk}/{number:06d}" for number in range(shape[0])]
            if names.ids:
                ids = id_texts(self._array(names.ids))
            splits = [chunk] * shape[0]
            if names.splits:
                splits = id_texts(self._array(names.splits))
            for name, values in (("labels", labels), ("ids", ids), ("splits", splits)):
                arrays.check_length(name, len(values), shape[0], str(self.path))
            row = int(np.prod(shape[1:])) * dtype.itemsize
            step = max(1, BLOCK_BYTES // max(row, 1))
            for begin in range(0, shape[0], step):
                n = min(step, shape[0] - begin)
                block = np.frombuffer(self._read(file, n * row), dtype).reshape(n, *shape[1:])
                images = np.ascontiguousarray(
                    arrays.as_images(block, f"{self.path}:{names.images}")
                )
                rows = slice(begin, begin + n)
                yield Block(ids[rows], labels[rows], splits[rows], images)

    def _members(self) -> list[str]:
        with self._reading(), zipfile.ZipFile(self.path) as file:
            return [name.removesuffix(".npy") for name in file.namelist()]

    def _stream(self, name: str) -> IO[bytes]:
        return zipfile.ZipFile(self.path).open(f"{name}.npy")

    def _header(self, file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
        with self._reading():
            read = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[np.lib.format.read_magic(file)]
            shape, fortran, dtype = read(file)
        if fortran and len(shape) > 1:
            raise InvalidValueError(
                f"the images in {self.path} are in Fortran order", "save them in C order"
            )
        if dtype.hasobject:
            raise InvalidValueError(f"{self.path} has Python objects", "save plain arrays")
        return shape, dtype

    def _read(self, file: IO[bytes], size: int) -> bytes:
        with self._reading():
            data = file.read(size)
            if len(data) != size:
                raise EOFError
        return data

    def _array(self, name: str) -> np.ndarray:
        with self._reading(), np.load(self.path, allow_pickle=False) as file:
            return np.asarray(file[name])

    def _labels(self, split: str) -> np.ndarray:
        return as_labels(self._array(self.splits[split].labels), str(self.path))

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except _DAMAGED as error:
            wrong = InvalidValueError(
                f"{self.path} is truncated, damaged or not an .npz file of plain arrays",
                "save it again",
            )
            raise unreadable(self.path, error) or wrong from None


def _splits(names: list[str], path: Path) -> dict[str, _Arrays]:
    """Find the arrays of each split by their names."""
    by_split: dict[str, dict[str, str]] = {}
    for name in names:
        words = name.lower().split("_")
        split = next((SPLITS[word] for word in words if word in SPLITS), "train")
        bare_name = "_".join(word for word in words if word not in SPLITS)
        other = by_split.setdefault(split, {}).setdefault(bare_name, name)
        if other != name and bare_name in arrays.KNOWN:
            raise InvalidValueError(
                f"{other} and {name} in {path} are both for the {split} split", "rename one"
            )
    splits = {}
    for split, bare in by_split.items():
        images = arrays.find_name("images", list(bare))
        labels = arrays.find_name("labels", list(bare))
        if images and not labels:
            logger.warning(f"{bare[images]} in {path} has no labels and is left out")
        if images and labels:
            optional = (arrays.find_name(kind, list(bare)) for kind in ("ids", "splits"))
            own = (None if name is None else bare[name] for name in optional)
            splits[split] = _Arrays(bare[images], bare[labels], *own)
    if not splits:
        raise InvalidValueError(
            f"{path} has no pair of images and labels (it has {', '.join(names) or 'nothing'})",
            f"{arrays.accepted_names('images')}, {arrays.accepted_names('labels')}, with the split "
            "before or after them",
        )
    return splits
