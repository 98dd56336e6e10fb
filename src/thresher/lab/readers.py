"""Readers of each container for `thresher data bench`, in sequence and at random.

All return uint8 batches (n, height, width, channels).
"""

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from thresher.data.images import decode
from thresher.data.meta import Shape
from thresher.data.pack import Pack
from thresher.data.sources.folder import Folder
from thresher.data.sources.protobuf import fields, message, parse_example
from thresher.data.sources.tfrecord import records, tfrecord_files
from thresher.data.sources.webdataset import IMAGES, grouped
from thresher.plugins import import_optional


class Reader:
    """A container opened for reading.

    Args:
        path: The container.
        shape: (height, width, channels) of the images to return.
        raw: All images of the container have that shape.
    """

    random_batch: Callable[[int], np.ndarray] | None = None
    """Reads that many images at random positions; None if the container cannot do that."""

    def __init__(self, path: Path, shape: Shape, raw: bool) -> None:
        self.path, self.shape, self.raw = path, shape, raw
        self.random = random.Random(0)

    def batches(self, size: int) -> Iterator[np.ndarray]:
        """Read the container once from the start, in batches; the last may be smaller."""
        raise NotImplementedError

    def decoded(self, data: bytes) -> np.ndarray:
        """Decode one image; images of unequal size are cut to a square."""
        return decode(data, None if self.raw else self.shape[0], self.shape[2])

    def stacked(self, images: Iterator[np.ndarray], size: int) -> Iterator[np.ndarray]:
        """Collect images into batches; every batch uses the same memory."""
        out, filled = np.empty((size, *self.shape), np.uint8), 0
        for image in images:
            out[filled] = image
            filled += 1
            if filled == size:
                yield out
                filled = 0
        if filled:
            yield out[:filled]


class PackReader(Reader):
    """Reads a pack."""

    def __init__(self, pack: Pack, positions: np.ndarray, shape: Shape, raw: bool) -> None:
        super().__init__(pack.root, shape, raw)
        self.pack, self.positions = pack, positions
        self.size = None if raw else shape[0]
        self.numpy = np.random.default_rng(0)
        self.out = np.empty((0, *shape), np.uint8)

    def batches(self, size: int) -> Iterator[np.ndarray]:
        for at in range(0, len(self.positions), size):
            yield self._read(self.positions[at : at + size])

    def random_batch(self, size: int) -> np.ndarray:
        return self._read(self.positions[self.numpy.integers(0, len(self.positions), size)])

    def _read(self, positions: np.ndarray) -> np.ndarray:
        if len(self.out) < len(positions):
            self.out = np.empty((len(positions), *self.shape), np.uint8)
        return self.pack.images(positions, self.out[: len(positions)], self.size)


class ArrayReader(Reader):
    """numpy's indexing of an array in memory: an upper bound."""

    def __init__(self, array: np.ndarray) -> None:
        super().__init__(Path(), array.shape[1:], True)
        self.array = array
        self.numpy = np.random.default_rng(0)

    def batches(self, size: int) -> Iterator[np.ndarray]:
        for at in range(0, len(self.array), size):
            yield self.array[at : at + size].copy()

    def random_batch(self, size: int) -> np.ndarray:
        return self.array[self.numpy.integers(0, len(self.array), size)]


class FolderReader(Reader):
    """Opens and decodes a file per image."""

    def __init__(self, path: Path, shape: Shape, raw: bool) -> None:
        super().__init__(path, shape, raw)
        self.files = [str(path / file.path) for file in Folder(path).files]

    def batches(self, size: int) -> Iterator[np.ndarray]:
        yield from self.stacked(map(self._image, self.files), size)

    def random_batch(self, size: int) -> np.ndarray:
        chosen = (self._image(self.random.choice(self.files)) for _ in range(size))
        return next(self.stacked(chosen, size))

    def _image(self, path: str) -> np.ndarray:
        with open(path, "rb") as file:
            return self.decoded(file.read())


class WebDatasetReader(Reader):
    """Reads tar files, which is possible in sequence only."""

    def batches(self, size: int) -> Iterator[np.ndarray]:
        tars = sorted(self.path.glob("*.tar"))
        parts = (part for tar in tars for _, part in grouped(tar, IMAGES))
        yield from self.stacked((self.decoded(next(iter(p.values()))) for p in parts), size)


class TfRecordReader(Reader):
    """Reads TFRecord files in sequence; without an index they cannot be read at random."""

    def batches(self, size: int) -> Iterator[np.ndarray]:
        files = tfrecord_files(self.path)
        examples = (parse_example(record) for file in files for record in records(file))
        images = (bytes(message(example["image/encoded"][0])) for example in examples)
        yield from self.stacked(map(self.decoded, images), size)


class LmdbReader(Reader):
    """Reads Caffe datums from LMDB."""

    def __init__(self, path: Path, shape: Shape, raw: bool) -> None:
        super().__init__(path, shape, raw)
        lmdb = import_optional("lmdb", "containers")
        folders = sorted(str(file.parent) for file in path.glob("*/data.mdb"))
        options = {"readonly": True, "lock": False, "readahead": False}
        self.environments = [lmdb.open(folder, **options) for folder in folders]
        self.transactions = [env.begin(buffers=True) for env in self.environments]
        self.keys = [
            (transaction, bytes(key))
            for transaction in self.transactions
            for key in transaction.cursor().iternext(keys=True, values=False)
        ]

    def batches(self, size: int) -> Iterator[np.ndarray]:
        shards = (t.cursor().iternext(keys=False, values=True) for t in self.transactions)
        yield from self.stacked(map(self._image, itertools.chain.from_iterable(shards)), size)

    def random_batch(self, size: int) -> np.ndarray:
        chosen = (self.random.choice(self.keys) for _ in range(size))
        return next(self.stacked((self._image(t.get(key)) for t, key in chosen), size))

    def _image(self, value: memoryview) -> np.ndarray:
        data = message(dict(fields(memoryview(value)))[4])
        if not self.raw:
            return self.decoded(bytes(data))
        height, width, channels = self.shape
        image = np.frombuffer(data, np.uint8).reshape(channels, height, width).transpose(1, 2, 0)
        return image[:, :, ::-1] if channels == 3 else image


class Hdf5Reader(Reader):
    """Reads an HDF5 file."""

    def __init__(self, path: Path, shape: Shape, raw: bool) -> None:
        super().__init__(path, shape, raw)
        h5py = import_optional("h5py", "containers")
        self.file: AbstractContextManager[Any] = h5py.File(next(path.glob("*.h5")), "r")
        self.images = self.file["images"]

    def batches(self, size: int) -> Iterator[np.ndarray]:
        if not self.raw:
            yield from self.stacked(map(self._image, range(len(self.images))), size)
            return
        for at in range(0, len(self.images), size):
            yield self.images[at : at + size]

    def _image(self, row: int) -> np.ndarray:
        return self.decoded(bytes(self.images[row]))

    def random_batch(self, size: int) -> np.ndarray:
        rows = [self.random.randrange(len(self.images)) for _ in range(size)]
        if not self.raw:
            return next(self.stacked(map(self._image, rows), size))
        # h5py requires ascending rows without repetition.
        unique, back = np.unique(rows, return_inverse=True)
        return np.asarray(self.images[unique])[back]


READERS: dict[str, Callable[[Path, Shape, bool], Reader]] = {
    "folder": FolderReader,
    "webdataset": WebDatasetReader,
    "tfrecord": TfRecordReader,
    "lmdb": LmdbReader,
    "hdf5": Hdf5Reader,
}
