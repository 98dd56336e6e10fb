"""LMDB as Caffe writes it: a `Datum` per image, raw (planes, blue first) or encoded."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from thresher.data.sources.base import Block
from thresher.data.sources.description import description_in
from thresher.data.sources.encoded import (
    EncodedSource,
    class_names,
    common_shape,
    in_blocks,
    split_of,
)
from thresher.data.sources.needs import needed
from thresher.data.sources.protobuf import Value, datum, message
from thresher.errors import ThresherError

PROBES_PER_FOLDER = 32
ROWS_PER_CHUNK = 20_000
ROWS_PER_BLOCK = 1_000


class Lmdb(EncodedSource):
    """A folder with `data.mdb`, or a folder of such folders, one per split."""

    def __init__(self, path: Path, name: str | None = None, classes: Path | None = None) -> None:
        self.root = Path(path)
        self.folders = databases_in(self.root)
        described = description_in(self.root)
        self.name = name or (described.name if described else self.root.resolve().name)
        first = [value for value in (self._first(folder, 1) for folder in self.folders) if value]
        if not first:
            raise ThresherError(f"{path} holds no samples", "check the path")
        self.raw = not first[0][0].get(7)
        if described is not None:
            self.classes = described.classes
            self.image_shape, self.shape_is_guess = described.image_shape, False
            return
        self.classes = class_names(classes, self._labels)
        if self.raw:
            self.image_shape, self.shape_is_guess = _shape(first[0][0]), False
        else:
            self.image_shape = common_shape(self._probes())

    def key(self) -> str:
        sizes = [(folder / "data.mdb").stat().st_size for folder in self.folders]
        return f"lmdb {self.root.name}, {sizes} bytes"

    def chunks(self) -> list[str]:
        found = []
        for number, folder in enumerate(self.folders):
            with _opened(folder) as env:
                rows = env.stat()["entries"]
            found += [f"{number}:{begin}" for begin in range(0, rows, ROWS_PER_CHUNK)]
        return found

    def read(self, chunk: str) -> Iterator[Block]:
        number, begin = (int(part) for part in chunk.split(":"))
        rows = self._rows(self.folders[number], begin, ROWS_PER_CHUNK)
        split = split_of(self.folders[number])
        if self.raw:
            yield from self._raw_blocks(rows, split)
        else:
            yield from in_blocks(
                (id, int(_number(value, 5)), split, bytes(message(value[4]))) for id, value in rows
            )

    def _raw_blocks(
        self, rows: Iterator[tuple[str, dict[int, Value]]], split: str
    ) -> Iterator[Block]:
        ids: list[str] = []
        labels: list[int] = []
        images: list[np.ndarray] = []
        for id, value in rows:
            height, width, channels = _shape(value)
            planes = np.frombuffer(message(value[4]), np.uint8)
            if planes.size != height * width * channels:
                raise ThresherError(f'"{id}" in {self.root} does not have the size that it says')
            image = planes.reshape(channels, height, width).transpose(1, 2, 0)
            ids.append(id)
            labels.append(_number(value, 5))
            # A copy: the views end with the transaction.
            images.append((image[:, :, ::-1] if channels == 3 else image).copy())
            if len(ids) == ROWS_PER_BLOCK:
                yield Block(ids, labels, [split] * len(ids), self._stacked(images, ids))
                ids, labels, images = [], [], []
        if ids:
            yield Block(ids, labels, [split] * len(ids), self._stacked(images, ids))

    def _stacked(self, images: list[np.ndarray], ids: list[str]) -> np.ndarray:
        if {image.shape for image in images} != {self.image_shape}:
            odd = next(
                id for id, image in zip(ids, images, strict=True) if image.shape != self.image_shape
            )
            raise ThresherError(f'"{odd}" in {self.root} has another shape than {self.image_shape}')
        return np.stack(images)

    def _rows(self, folder: Path, begin: int, count: int) -> Iterator[tuple[str, dict[int, Value]]]:
        with _opened(folder) as env, env.begin(buffers=True) as transaction:
            for n, (key, value) in enumerate(transaction.cursor().iternext()):
                if n < begin:
                    continue
                if n >= begin + count:
                    return
                id = bytes(key).decode("utf-8", "replace")
                try:
                    found = datum(memoryview(value))
                    message(found[4])
                except (ValueError, KeyError):
                    raise ThresherError(
                        f'"{id}" in {folder} is not a Caffe Datum',
                        "other layouts of LMDB must be converted first",
                    ) from None
                yield id, found

    def _first(self, folder: Path, count: int) -> list[dict[int, Value]]:
        return [
            {k: v if isinstance(v, int) else memoryview(bytes(v)) for k, v in value.items()}
            for _, value in self._rows(folder, 0, count)
        ]

    def _labels(self) -> Iterator[int]:
        for folder in self.folders:
            for _, value in self._rows(folder, 0, 1 << 62):
                yield _number(value, 5)

    def _probes(self) -> Iterator[bytes]:
        for folder in self.folders:
            for value in self._first(folder, PROBES_PER_FOLDER):
                yield bytes(message(value[4]))


def databases_in(path: Path) -> list[Path]:
    """The folders with a `data.mdb`: the path itself, or those in it."""
    if (path / "data.mdb").is_file():
        return [path]
    found = sorted(file.parent for file in path.glob("*/data.mdb"))
    if not found:
        raise ThresherError(f"{path} holds no data.mdb", "check the path")
    return found


def _opened(folder: Path) -> Any:
    lmdb = needed("lmdb", "containers")
    try:
        return lmdb.open(str(folder), readonly=True, lock=False, readahead=False)
    except lmdb.Error as error:
        raise ThresherError(f"{folder} cannot be opened as LMDB ({error})") from None


def _number(value: dict[int, Value], field: int) -> int:
    found = value.get(field, 0)
    return found if isinstance(found, int) else 0


def _shape(value: dict[int, Value]) -> tuple[int, int, int]:
    return _number(value, 2), _number(value, 3), _number(value, 1)
