"""LMDB as Caffe writes it: a `Datum` per image, raw (planes, blue first) or encoded."""

import os
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from thresher.data.labels import class_names
from thresher.data.sources import encoded
from thresher.data.sources.base import Block
from thresher.data.sources.protobuf import Datum, fields, message
from thresher.data.sources.walk import is_hidden
from thresher.errors import InvalidValueError, NotFoundError
from thresher.plugins import import_optional
from thresher.read_errors import unreadable

PROBES_PER_FOLDER = 32
ROWS_PER_CHUNK = 20_000
ROWS_PER_BLOCK = 1_000


class Lmdb(encoded.EncodedSource):
    """A folder with `data.mdb`, or a folder of such folders, one per split."""

    def __init__(
        self, where: Path | str, name: str | None = None, classes: Path | None = None
    ) -> None:
        path = Path(where)
        self.root = path.parent if path.is_file() else path
        self.folders = _databases(self.root)
        if not self.folders:
            raise NotFoundError(f"{self.root} has no data.mdb", "check the path")
        first = [(not datum.get(7), _shape(datum)) for datum in self._first(1)]
        if not first:
            raise InvalidValueError(f"{path} has no samples", "check the path")
        self.raw, shape = first[0]
        self.description = encoded.Description.find(self.root)
        if self._use_description(self.description, name, self.root.resolve().name):
            return
        labels = (_number(datum, 5) for datum in self._first(sys.maxsize))
        self.classes = class_names(classes, lambda: labels, str(path))
        if self.raw:
            self.image_shape, self.shape_is_guess = shape, False
        else:
            probes = (bytes(message(datum[4])) for datum in self._first(PROBES_PER_FOLDER))
            self.image_shape = encoded.common_shape(probes)

    @staticmethod
    def matches(where: str) -> bool:
        path = Path(where)
        if path.is_file():
            return path.suffix.lower() == ".mdb"
        return path.is_dir() and bool(_databases(path))

    def key(self) -> str:
        files = [folder / "data.mdb" for folder in self.folders]
        return f"lmdb {self.root.name}, {encoded.describe_files(files, self.root)}"

    def chunks(self) -> list[str]:
        rows = {}
        for number, folder in enumerate(self.folders):
            with _opened(folder) as env:
                rows[number] = env.stat()["entries"]
        return encoded.row_chunks(rows, ROWS_PER_CHUNK)

    def read(self, chunk: str) -> Iterator[Block]:
        number, begin = (int(part) for part in chunk.split(":"))
        rows = self._rows(self.folders[number], begin, ROWS_PER_CHUNK)
        folder = Path(os.path.abspath(self.folders[number])).name  # "." has no name
        split = encoded.split_of(folder)
        if self.description is not None:  # as it was exported
            split = self.description.splits.get(folder, folder)
        if self.raw:
            yield from self._raw_blocks(rows, split)
        else:
            yield from encoded.in_blocks(
                (id, _number(datum, 5), split, bytes(message(datum[4]))) for id, datum in rows
            )

    def _raw_blocks(self, rows: Iterator[tuple[str, Datum]], split: str) -> Iterator[Block]:
        samples = self._raw_samples(rows)
        while block := list(islice(samples, ROWS_PER_BLOCK)):
            ids, labels, images = zip(*block, strict=True)
            yield Block(ids, labels, [split] * len(ids), np.stack(images))

    def _raw_samples(
        self, rows: Iterator[tuple[str, Datum]]
    ) -> Iterator[tuple[str, int, np.ndarray]]:
        for id, datum in rows:
            height, width, channels = shape = _shape(datum)
            planes = np.frombuffer(message(datum[4]), np.uint8)
            sample = f'"{id}" in {self.root}'
            if planes.size != height * width * channels:
                size = f"{planes.size:,} bytes, not {height}×{width}×{channels}"
                raise InvalidValueError(f"{sample} has {size}")
            if shape != self.image_shape:
                others = self.image_shape
                raise InvalidValueError(f"{sample} has shape {shape}, but others have {others}")
            image = planes.reshape(channels, height, width).transpose(1, 2, 0)
            # A copy: the views end with the transaction.
            yield id, _number(datum, 5), (image[:, :, ::-1] if channels == 3 else image).copy()

    def _rows(self, folder: Path, begin: int, count: int) -> Iterator[tuple[str, Datum]]:
        with _opened(folder) as env, env.begin(buffers=True) as transaction:
            for key, value in islice(transaction.cursor().iternext(), begin, begin + count):
                id = bytes(key).decode("utf-8", "replace")
                try:
                    datum = dict(fields(memoryview(value)))
                    message(datum[4])
                except (ValueError, KeyError):
                    raise InvalidValueError(
                        f'"{id}" in {folder} is not a Caffe Datum', "convert other layouts first"
                    ) from None
                yield id, datum

    def _first(self, count: int) -> Iterator[Datum]:
        """Yield the first samples of each folder."""
        for folder in self.folders:
            for _, datum in self._rows(folder, 0, count):
                yield datum


def _databases(path: Path) -> list[Path]:
    """Return the folders with a `data.mdb`: the path itself, or those in it, if any."""
    if (path / "data.mdb").is_file():
        return [path]
    folders = (file.parent for file in path.glob("*/data.mdb"))
    return sorted(folder for folder in folders if not is_hidden(folder.name))


def _opened(folder: Path) -> Any:
    lmdb = import_optional("lmdb", "containers")
    try:
        env = lmdb.open(str(folder), readonly=True, lock=False, readahead=False)
    except lmdb.Error as error:
        wrong = InvalidValueError(f"{folder} cannot be opened as LMDB ({error})")
        raise unreadable(folder / "data.mdb", error) or wrong from None
    # LMDB maps the file: reading beyond the end of a truncated one would end the process.
    pages = env.info()["last_pgno"] + 1
    if (folder / "data.mdb").stat().st_size < pages * env.stat()["psize"]:
        env.close()
        raise InvalidValueError(f"{folder}/data.mdb is truncated", "copy it again")
    return env


def _number(datum: Datum, field: int) -> int:
    value = datum.get(field, 0)
    return value if isinstance(value, int) else 0


def _shape(datum: Datum) -> tuple[int, int, int]:
    return _number(datum, 2), _number(datum, 3), _number(datum, 1)
