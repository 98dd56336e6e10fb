"""Fashion-MNIST (and anything else in MNIST's idx files): 28×28 grey, in four files.

Debian and Ubuntu ship it as `dataset-fashion-mnist`; that copy is found by itself.
"""

import gzip
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from thresher.data.sources.base import Block
from thresher.errors import ThresherError

CLASSES = [
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
]
FILES = {"train": "train", "test": "t10k"}
ROWS_PER_BLOCK = 10_000
# Where packages of the common systems put it.
PLACES = (
    "/usr/share/datasets/fashion-mnist",
    "/usr/share/dataset-fashion-mnist",
    "/usr/local/share/datasets/fashion-mnist",
)


class FashionMnist:
    """The four idx files (plain or .gz) in `folder`."""

    image_shape: tuple[int, int, int] | None = (28, 28, 1)

    def __init__(self, folder: Path, name: str = "fashion-mnist") -> None:
        self.name = name
        self.classes = CLASSES
        self.folder = Path(folder) if Path(folder).is_dir() else Path(folder).parent
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
            raise ThresherError(
                f"{self._files[chunk, 'images']} holds an array of {images.shape}, and its labels "
                f"one of {labels.shape}: not what Fashion-MNIST has",
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
    """The folder of a Fashion-MNIST that the system's package manager installed, if any."""
    return next((Path(p) for p in PLACES if Path(p).is_dir()), None) or _from_dpkg()


def _from_dpkg() -> Path | None:
    lists = Path("/var/lib/dpkg/info").glob("dataset-fashion-mnist*.list")
    for listed in lists:
        for line in listed.read_text().splitlines():
            if line.endswith(("train-images-idx3-ubyte.gz", "train-images-idx3-ubyte")):
                return Path(line).parent
    return None


def read_idx(path: Path) -> np.ndarray:
    """An idx file of bytes as a uint8 array; a wrong or cut one is named."""
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise ThresherError(f"{path} is cut short or damaged", "get it again") from None
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise ThresherError(f"{path} is not an idx file of bytes", "get it again")
    axes = data[3]
    begin = 4 + 4 * axes
    shape = struct.unpack(f">{axes}I", data[4:begin].ljust(4 * axes, b"\0"))
    if len(data) - begin != int(np.prod(shape)):
        raise ThresherError(
            f"{path} should hold {int(np.prod(shape)):,} bytes and holds {len(data) - begin:,}",
            "get it again",
        )
    return np.frombuffer(data, np.uint8, offset=begin).reshape(shape)


def _find(folder: Path, stem: str) -> Path:
    for name in (f"{stem}.gz", stem):
        if (folder / name).is_file():
            return folder / name
    raise ThresherError(
        f"{folder} holds no {stem}.gz",
        "name the folder of the four idx files with --from, or install dataset-fashion-mnist",
    )
