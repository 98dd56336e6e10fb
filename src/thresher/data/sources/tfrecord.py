"""TFRecord files in ImageNet's layout: an `Example` per image with `image/encoded` and
`image/class/label` (from 1, as in ImageNet), `image/class/text`, `image/filename`."""

import mmap
import re
import struct
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from thresher.data.labels import as_labels, class_names
from thresher.data.sources import encoded
from thresher.data.sources.base import Block
from thresher.data.sources.protobuf import Value, message, parse_example
from thresher.errors import InvalidValueError, NotFoundError

FILE_NAME = re.compile(r".*\.tfrecords?$|.*-\d+-of-\d+$")
PROBES_PER_FILE = 8
LABELS_PER_FILE = 1000

Example = dict[str, list[Value]]


class TfRecord(encoded.EncodedSource):
    """A TFRecord file, or a folder of them; the split comes from the file's name.

    Without class names (a description, or `classes`), all labels are read once beforehand: class
    names come from `image/class/text`. Labels begin at 0 if one of them is 0; with `classes`, if
    one of the first of each file is.
    """

    def __init__(
        self, where: Path | str, name: str | None = None, classes: Path | None = None
    ) -> None:
        path = Path(where)
        self.root = path if path.is_dir() else path.parent
        self.files = tfrecord_files(path) if path.is_dir() else [path]
        if not self.files:
            raise NotFoundError(f"{path} has no TFRecord file", "check the path")
        self.first_label = 1
        if self._use_description(encoded.Description.find(self.root), name, path.resolve().stem):
            return
        if classes is not None:
            self.classes = class_names(classes, list, str(path))
            first = (label for _, label in self._examples(LABELS_PER_FILE))
            self.first_label = 0 if 0 in first else 1
        else:
            self._read_classes(str(path))
        probes = (_image(example) for example, _ in self._examples(PROBES_PER_FILE))
        self.image_shape = encoded.common_shape(probes)

    @staticmethod
    def matches(where: str) -> bool:
        path = Path(where)
        if path.is_file():
            return FILE_NAME.match(path.name) is not None
        return path.is_dir() and bool(tfrecord_files(path))

    def key(self) -> str:
        # What they count from may depend on whether class names are given.
        labels = "" if self.first_label else ", labels from 0"
        return f"tfrecord {self.root.name}{labels}, {encoded.describe_files(self.files)}"

    def chunks(self) -> list[str]:
        return [file.relative_to(self.root).as_posix() for file in self.files]

    def read(self, chunk: str) -> Iterator[Block]:
        def samples() -> Iterator[encoded.EncodedSample]:
            file = self.root / chunk
            for n, example in enumerate(_examples(file)):
                split = _text(example, "image/split") or encoded.split_of(chunk)
                id = _text(example, "image/filename") or f"{file.stem}/{n:06d}"
                label = _label(example, file, n) - self.first_label
                yield id, label, split, _image(example)

        yield from encoded.in_blocks(samples())

    def _read_classes(self, where: str) -> None:
        texts: dict[int, str] = {}
        for example, label in self._examples():
            texts.setdefault(label, _text(example, "image/class/text"))
        self.first_label = 0 if min(texts, default=1) == 0 else 1
        last = int(as_labels(list(texts), where).max(initial=0))
        labels = range(self.first_label, last + 1)
        names = [texts.get(label) or str(label - self.first_label) for label in labels]
        # ImageNet has two classes called "crane" and two called "maillot".
        repeated = {name for name, count in Counter(names).items() if count > 1}
        self.classes = [
            f"{name} ({n})" if name in repeated else name for n, name in enumerate(names)
        ]

    def _examples(self, per_file: int | None = None) -> Iterator[tuple[Example, int]]:
        """Yield the examples of all files, or the first ones of each, with their labels."""
        for file in self.files:
            for n, example in enumerate(islice(_examples(file), per_file)):
                yield example, _label(example, file, n)


def tfrecord_files(folder: Path) -> list[Path]:
    """Return the TFRecord files in a folder, recognised by their names."""
    return sorted(p for p in folder.iterdir() if FILE_NAME.match(p.name) and p.is_file())


def records(file: Path) -> Iterator[memoryview]:
    """Yield the records of a TFRecord file as views of its memory map.

    A record is its length (8 bytes), a checksum of that, the data, and a checksum of the data.
    """
    if not file.is_file():
        raise NotFoundError(f"{file} does not exist", "check the path")
    if file.stat().st_size == 0:
        return
    with open(file, "rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    view, at = memoryview(mapped), 0
    while at < len(view):
        size = struct.unpack_from("<Q", view, at)[0] if at + 12 <= len(view) else len(view)
        if at + 16 + size > len(view):
            raise InvalidValueError(
                f"{file} is truncated or not a TFRecord file (at byte {at:,})", "get it again"
            )
        yield view[at + 12 : at + 12 + size]
        at += 16 + size


def _examples(file: Path) -> Iterator[Example]:
    for n, record in enumerate(records(file)):
        try:
            example = parse_example(record)
            message(example["image/encoded"][0])
        except (ValueError, KeyError, IndexError, UnicodeDecodeError):
            raise InvalidValueError(
                f"record {n} of {file} is not an image in ImageNet's layout",
                "it needs the features image/encoded and image/class/label",
            ) from None
        yield example


def _image(example: Example) -> bytes:
    return bytes(message(example["image/encoded"][0]))


def _label(example: Example, file: Path, n: int) -> int:
    labels = example.get("image/class/label") or []
    if not labels or not isinstance(labels[0], int):
        raise InvalidValueError(f"record {n} of {file} has no integer image/class/label")
    return labels[0]


def _text(example: Example, name: str) -> str:
    values = example.get(name) or []
    if not values or isinstance(values[0], int):
        return ""
    return bytes(values[0]).decode("utf-8", "replace")
