"""A small data set of drawn shapes, to pretrain a network on other images than digits."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from thresher.data.pack import Pack
from thresher.data.sources.base import Block
from thresher.data.write import write_pack

SIDE = 8


class Shapes:
    """Noisy 8×8 grey images of four shapes at random places; every fifth is a test image."""

    name = "shapes"
    image_shape: tuple[int, int, int] | None = (SIDE, SIDE, 1)

    def __init__(self, count: int = 1200) -> None:
        self.count = count
        self.classes = ["disc", "ring", "bar", "cross"]

    def key(self) -> str:
        """Identify the source."""
        return f"shapes {self.count}"

    def chunks(self) -> list[str]:
        """Return the names of the chunks."""
        return ["all"]

    def read(self, chunk: str) -> Iterator[Block]:
        """Yield all images."""
        random = np.random.Generator(np.random.Philox(key=[7, self.count]))
        labels = random.integers(0, len(self.classes), self.count)
        y, x = np.mgrid[:SIDE, :SIDE][:, None] - random.uniform(2.5, 4.5, (2, self.count, 1, 1))
        distance = np.hypot(x, y)
        drawn = np.stack(
            [distance < 2.5, np.abs(distance - 2.5) < 0.8, np.abs(x) < 1, (x * y) ** 2 < 1]
        )[labels, np.arange(self.count)]
        images = 180 * drawn + random.normal(40, 25, drawn.shape)
        yield Block(
            ids=[f"shapes/{row:05d}" for row in range(self.count)],
            labels=labels,
            splits=["test" if row % 5 == 0 else "train" for row in range(self.count)],
            images=np.clip(images, 0, 255).astype(np.uint8)[..., None],
        )


def shapes_pack(folder: Path) -> Pack:
    """Return the pack in `folder`, written if it does not exist."""
    return Pack.open(folder) if folder.exists() else write_pack(Shapes(), folder)
