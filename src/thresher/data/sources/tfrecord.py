"""TFRecord files in ImageNet's layout: an `Example` per image with `image/encoded` and
`image/class/label` (from 1, as ImageNet counts), `image/class/text`, `image/filename`."""

import mmap
import re
import struct
from collections.abc import Iterator
from pathlib import Path

from thresher.data.sources.base import Block
from thresher.data.sources.description import description_in
from thresher.data.sources.encoded import (
    EncodedSource,
    class_names,
    common_shape,
    in_blocks,
    split_of,
)
from thresher.data.sources.protobuf import Value, example, message
from thresher.errors import ThresherError

NAMED = re.compile(r".*\.tfrecords?$|.*-\d+-of-\d+$")
PROBES_PER_FILE = 8


class TfRecord(EncodedSource):
    """A TFRecord file, or a folder of them; the split is read from a file's name.

    Without class names (a description, or `classes`) all labels are read once beforehand: class
    names come from `image/class/text`, and labels that begin at 0 are taken as they are.
    """

    def __init__(self, path: Path, name: str | None = None, classes: Path | None = None) -> None:
        path = Path(path)
        self.root = path if path.is_dir() else path.parent
        self.files = [path] if path.is_file() else records_in(path)
        if not self.files:
            raise ThresherError(f"{path} holds no TFRecord file", "check the path")
        described = description_in(self.root)
        self.name = name or (described.name if described else path.resolve().stem)
        self.first_label = 1
        if described is not None:
            self.classes = described.classes
            self.image_shape, self.shape_is_guess = described.image_shape, False
            return
        if classes is not None:
            self.classes = class_names(classes, list)
        else:
            self._learn_classes()
        self.image_shape = common_shape(self._probes())

    def key(self) -> str:
        sizes = ",".join(str(file.stat().st_size) for file in self.files)
        return f"tfrecord {self.root.name}, {len(self.files)} files of {sizes} bytes"

    def chunks(self) -> list[str]:
        return [file.relative_to(self.root).as_posix() for file in self.files]

    def read(self, chunk: str) -> Iterator[Block]:
        def samples() -> Iterator[tuple[str, int, str, bytes]]:
            file = self.root / chunk
            for n, found in enumerate(_examples(file)):
                split = _text(found, "image/split") or split_of(file)
                id = _text(found, "image/filename") or f"{file.stem}/{n:06d}"
                label = _label(found, file, n) - self.first_label
                yield id, label, split, bytes(message(found["image/encoded"][0]))

        yield from in_blocks(samples())

    def _learn_classes(self) -> None:
        texts: dict[int, str] = {}
        for file in self.files:
            for n, found in enumerate(_examples(file)):
                label = _label(found, file, n)
                texts.setdefault(label, _text(found, "image/class/text"))
        self.first_label = 0 if min(texts, default=1) == 0 else 1
        last = max(texts, default=0)
        self.classes = [
            texts.get(label) or str(label - self.first_label)
            for label in range(self.first_label, last + 1)
        ]

    def _probes(self) -> Iterator[bytes]:
        for file in self.files:
            for n, found in enumerate(_examples(file)):
                if n >= PROBES_PER_FILE:
                    break
                yield bytes(message(found["image/encoded"][0]))


def records_in(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if NAMED.match(p.name) and p.is_file())


def records(file: Path) -> Iterator[memoryview]:
    """The records of a TFRecord file, as views of its memory map.

    A record is its length (8 bytes), a checksum of that, the data, and a checksum of the data.
    """
    if not file.is_file():
        raise ThresherError(f"there is no file {file}", "check the path")
    if file.stat().st_size == 0:
        return
    with open(file, "rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    view, at = memoryview(mapped), 0
    while at < len(view):
        size = struct.unpack_from("<Q", view, at)[0] if at + 12 <= len(view) else len(view)
        if at + 16 + size > len(view):
            raise ThresherError(
                f"{file} is cut short or is not a TFRecord file (at byte {at:,})", "get it again"
            )
        yield view[at + 12 : at + 12 + size]
        at += 16 + size


def _examples(file: Path) -> Iterator[dict[str, list[Value]]]:
    for n, record in enumerate(records(file)):
        try:
            found = example(record)
            message(found["image/encoded"][0])
        except (ValueError, KeyError, IndexError, UnicodeDecodeError):
            raise ThresherError(
                f"record {n} of {file} is not an image in ImageNet's layout",
                "it needs the features image/encoded and image/class/label",
            ) from None
        yield found


def _label(found: dict[str, list[Value]], file: Path, n: int) -> int:
    labels = found.get("image/class/label") or []
    if not labels or not isinstance(labels[0], int):
        raise ThresherError(f"record {n} of {file} has no image/class/label")
    return labels[0]


def _text(found: dict[str, list[Value]], name: str) -> str:
    values = found.get(name) or []
    return (
        bytes(values[0]).decode("utf-8", "replace")
        if values and not isinstance(values[0], int)
        else ""
    )
