"""Fashion-MNIST from its four idx files: 28×28 grey.

Debian and Ubuntu ship it as `dataset-fashion-mnist`; that copy is used by default.
"""

import gzip
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from thresher.data.sources.base import Block
from thresher.errors import InvalidValueError, NotFoundError
from thresher.read_errors import unreadable

CLASSES = [
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
]
FILES = {"train": "train", "test": "t10k"}
ROWS_PER_BLOCK = 10_000
INSTALL_FOLDERS = (
    "/usr/share/datasets/fashion-mnist",
    "/usr/share/dataset-fashion-mnist",
    "/usr/local/share/datasets/fashion-mnist",
)


class FashionMnist:
    """The four idx files, plain or .gz; by default where the system's package manager puts them."""

    name = "fashion-mnist"
    image_shape: tuple[int, int, int] | None = (28, 28, 1)

    def __init__(self, folder: Path | None = None) -> None:
        folder = folder or installed()
        if folder is None:
            raise NotFoundError(
                "Fashion-MNIST is not installed on this system",
                "install Debian's dataset-fashion-mnist, or give the folder of its four idx files: "
                "`thresher data get fashion-mnist --from FOLDER`",
            )
        self.classes = CLASSES
        self.folder = folder if folder.is_dir() else folder.parent
        self._files = {
            (split, kind): _find(self.folder, f"{stem}-{kind}-idx{axes}-ubyte")
            for split, stem in FILES.items()
            for kind, axes in (("images", 3), ("labels", 1))
        }

    def key(self) -> str:
        return f"{self.name}, idx files"

    def chunks(self) -> list[str]:
        return list(FILES)

    def read(self, chunk: str) -> Iterator[Block]:
        images = read_idx(self._files[chunk, "images"])
        labels = read_idx(self._files[chunk, "labels"])
        if images.shape[1:] != (28, 28) or labels.shape != images.shape[:1]:
            raise InvalidValueError(
                f"{self._files[chunk, 'images']} is not Fashion-MNIST: its images have shape "
                f"{images.shape} and its labels {labels.shape}",
                "get the files again",
            )
        for begin in range(0, len(images), ROWS_PER_BLOCK):
            end = min(begin + ROWS_PER_BLOCK, len(images))
            yield Block(
                ids=[f"{self.name}/{chunk}/{n:05d}" for n in range(begin, end)],
                labels=labels[begin:end],
                splits=[chunk] * (end - begin),
                images=images[begin:end, :, :, None],
            )


def installed() -> Path | None:
    """Return the folder of Fashion-MNIST from the system's package manager, if any."""
    for folder in map(Path, INSTALL_FOLDERS):
        if folder.is_dir():
            return folder
    for listing in Path("/var/lib/dpkg/info").glob("dataset-fashion-mnist*.list"):
        for line in listing.read_text().splitlines():
            if line.endswith(("train-images-idx3-ubyte.gz", "train-images-idx3-ubyte")):
                return Path(line).parent
    return None


def read_idx(path: Path) -> np.ndarray:
    """Read an idx file of bytes as a uint8 array."""
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (EOFError, zlib.error, OSError) as error:
        wrong = InvalidValueError(f"{path} is truncated or damaged", "get it again")
        raise unreadable(path, error) or wrong from None
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise InvalidValueError(f"{path} is not an idx file of bytes", "get it again")
    axes = data[3]
    begin = 4 + 4 * axes
    shape = struct.unpack(f">{axes}I", data[4:begin].ljust(4 * axes, b"\0"))
    if len(data) - begin != int(np.prod(shape)):
        raise InvalidValueError(
            f"{path} is truncated: {len(data) - begin:,} bytes, expected {int(np.prod(shape)):,}",
            "get it again",
        )
    return np.frombuffer(data, np.uint8, offset=begin).reshape(shape)


def _find(folder: Path, stem: str) -> Path:
    for name in (f"{stem}.gz", stem):
        if (folder / name).is_file():
            return folder / name
    raise NotFoundError(
        f"{folder} has no {stem}.gz",
        "`thresher data get fashion-mnist --from FOLDER` with the folder of the four idx files",
    )
