"""Images made for the tests, and a source of them that worker processes can import."""

import io
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from thresher.data.sources.base import Block


class Made:
    """`chunks_` × `rows` seeded random images; `pause` seconds before each chunk."""

    def __init__(
        self,
        rows: int = 50,
        chunks: int = 4,
        shape: tuple[int, int, int] = (6, 5, 3),
        pause: float = 0.0,
        blocks: int = 2,
    ) -> None:
        self.name, self.classes = "made", ["a", "b", "c"]
        self.rows, self.parts, self.pause, self.blocks = rows, chunks, pause, blocks
        self.image_shape: tuple[int, int, int] | None = shape

    def key(self) -> str:
        return f"made {self.rows} {self.parts} {self.image_shape}"

    def chunks(self) -> list[str]:
        return [str(n) for n in range(self.parts)]

    def read(self, chunk: str) -> Iterator[Block]:
        time.sleep(self.pause)
        random = np.random.default_rng(int(chunk))
        step = -(-self.rows // self.blocks)
        for begin in range(0, self.rows, step):
            numbers = range(begin, min(begin + step, self.rows))
            yield Block(
                [f"{chunk}/{n}" for n in numbers],
                [n % 3 for n in numbers],
                ["test" if n % 5 == 0 else "train" for n in numbers],
                random.integers(0, 256, (len(numbers), *(self.image_shape or ())), dtype=np.uint8),
            )


def picture(seed: int, width: int, height: int, kind: str = "JPEG", mode: str = "RGB") -> bytes:
    """A small smooth image as a file."""
    random = np.random.default_rng(seed)
    small = random.integers(0, 256, (4, 4, 3), dtype=np.uint8)
    image = Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC).convert(mode)
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def class_folder(root: Path, uneven: bool = True, each: int = 6) -> Path:
    """split/class/name.jpg, of unequal sizes or all 20×16."""
    for split in ("train", "val"):
        for number, name in enumerate(("cat", "dog", "eel")):
            place = root / split / name
            place.mkdir(parents=True)
            for n in range(each):
                seed = 100 * number + n + (1000 if split == "val" else 0)
                size = (20 + n, 16 + 2 * n) if uneven else (20, 16)
                (place / f"{n}.jpg").write_bytes(picture(seed, *size))
    return root


def mixed_folder(root: Path) -> Path:
    """class/name: two colour JPEGs and a PNG, a CMYK, a grey and a turned JPEG."""
    turned, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6
    Image.open(io.BytesIO(picture(1, 60, 40))).save(turned, "JPEG", exif=exif)
    files = {
        "one/a.jpg": picture(2, 60, 50),
        "one/b.png": picture(3, 60, 50, "PNG"),
        "one/c.jpg": picture(4, 60, 50, "JPEG", "CMYK"),
        "one/d.jpg": picture(5, 60, 50, "JPEG", "L"),
        "one/e.jpg": turned.getvalue(),
        "two/f.jpg": picture(6, 30, 90),
    }
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


class Meeting(Made):
    """Can be read by a worker only when a second one has started.

    Its state is read before the long names of its chunks, which do not fit into a pipe.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(rows=4, chunks=2)
        self.folder = folder

    def chunks(self) -> list[str]:
        return [f"{n}{' ' * 500_000}" for n in range(self.parts)]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        (self.folder / str(os.getpid())).touch()
        end = time.monotonic() + 60
        while len(list(self.folder.iterdir())) < 2:
            if time.monotonic() > end:
                raise TimeoutError("no second worker started")
            time.sleep(0.01)


class Modules(Made):
    """Each worker writes down which modules it has imported."""

    def __init__(self, folder: Path) -> None:
        super().__init__(rows=4, chunks=2)
        self.folder = folder

    def read(self, chunk: str) -> Iterator[Block]:
        pa.array(["converting a value"])  # as the shard writer does; pyarrow may look for pandas
        (self.folder / chunk).write_text("\n".join(sys.modules))
        yield from super().read(chunk)
