"""NumPy's .npz: `images` and `labels`, or a pair per split such as `x_train`, `y_train`."""

import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from thresher.data.sources.arrays import as_images, names_of, pick
from thresher.data.sources.base import Block
from thresher.data.sources.encoded import SPLITS, class_names
from thresher.errors import ThresherError

BLOCK_BYTES = 8 << 20


class Npz:
    """One .npz file; images are read in a stream, so that it may be larger than memory."""

    def __init__(self, path: Path, name: str | None = None, classes: Path | None = None) -> None:
        self.path = Path(path)
        self.name = name or self.path.stem
        self.pairs = _pairs(self._members(), self.path)
        self.classes = class_names(
            classes, lambda: [int(np.max(self._labels(s), initial=-1)) for s in self.pairs]
        )
        images, _, _ = self.pairs[next(iter(self.pairs))]
        with self._stream(images) as file:
            shape, dtype = self._header(file)
        probe = as_images(np.empty((0, *shape[1:]), dtype), str(self.path))
        self.image_shape: tuple[int, int, int] | None = probe.shape[1:]

    def key(self) -> str:
        return f"npz {self.path.name}, {self.path.stat().st_size} bytes"

    def chunks(self) -> list[str]:
        return list(self.pairs)

    def read(self, chunk: str) -> Iterator[Block]:
        images, _, ids_name = self.pairs[chunk]
        labels = self._labels(chunk)
        ids = self._array(ids_name).tolist() if ids_name else None
        with self._stream(images) as file:
            shape, dtype = self._header(file)
            if len(labels) != shape[0]:
                raise ThresherError(f"{self.path} has {shape[0]} images and {len(labels)} labels")
            row = int(np.prod(shape[1:])) * dtype.itemsize
            step = max(1, BLOCK_BYTES // max(row, 1))
            for at in range(0, shape[0], step):
                n = min(step, shape[0] - at)
                data = self._exactly(file, n * row)
                block = np.frombuffer(data, dtype).reshape(n, *shape[1:])
                yield Block(
                    [str(id) for id in ids[at : at + n]]
                    if ids
                    else [f"{chunk}/{number:06d}" for number in range(at, at + n)],
                    labels[at : at + n],
                    [chunk] * n,
                    np.ascontiguousarray(as_images(block, f"{self.path}:{images}")),
                )

    def _members(self) -> list[str]:
        try:
            with zipfile.ZipFile(self.path) as file:
                return [name.removesuffix(".npy") for name in file.namelist()]
        except FileNotFoundError:
            raise ThresherError(f"there is no file {self.path}", "check the path") from None
        except (zipfile.BadZipFile, OSError):
            raise self._cut() from None

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
        except (ValueError, KeyError, zipfile.BadZipFile, zlib.error, EOFError):
            raise self._cut() from None
        if fortran and len(shape) > 1:
            raise ThresherError(f"the images in {self.path} lie in Fortran order", "save them in C")
        if dtype.hasobject:
            raise ThresherError(f"{self.path} holds Python objects", "save plain arrays instead")
        return shape, dtype

    def _exactly(self, file: IO[bytes], size: int) -> bytes:
        try:
            data = file.read(size)
        except (zipfile.BadZipFile, zlib.error, EOFError):
            raise self._cut() from None
        if len(data) != size:
            raise self._cut()
        return data

    def _array(self, name: str) -> np.ndarray:
        try:
            with np.load(self.path, allow_pickle=False) as file:
                return np.asarray(file[name])
        except (ValueError, zipfile.BadZipFile, zlib.error, EOFError):
            raise self._cut() from None

    def _labels(self, split: str) -> np.ndarray:
        return self._array(self.pairs[split][1]).reshape(-1).astype(np.int64)

    def _cut(self) -> ThresherError:
        return ThresherError(
            f"{self.path} is cut short, damaged or no .npz of plain arrays", "save it again"
        )


def _pairs(names: list[str], path: Path) -> dict[str, tuple[str, str, str | None]]:
    """Per split: the names of its images, its labels and, if any, its ids."""
    by_split: dict[str, list[str]] = {}
    for name in names:
        words = name.lower().split("_")
        split = next((SPLITS[word] for word in words if word in SPLITS), "train")
        by_split.setdefault(split, []).append(name)
    found = {}
    for split, members in by_split.items():
        bare = {_without_split(name): name for name in members}
        images, labels = pick("images", list(bare)), pick("labels", list(bare))
        if images and labels:
            found[split] = (bare[images], bare[labels], bare.get("ids"))
    if not found:
        raise ThresherError(
            f"{path} holds no pair of images and labels (it holds {', '.join(names) or 'nothing'})",
            f"{names_of('images')}, {names_of('labels')}, with the split before or after them",
        )
    return found


def _without_split(name: str) -> str:
    return "_".join(word for word in name.lower().split("_") if word not in SPLITS)
