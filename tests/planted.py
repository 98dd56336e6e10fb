"""Digits with planted faults, each known by its ids."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from thresher.data.pack import Pack
from thresher.data.sources.base import Block
from thresher.data.write import write_pack


@dataclass
class ArraySource:
    """Images in memory as a source for the pack writer."""

    images: np.ndarray
    labels: np.ndarray
    splits: list[str]
    ids: list[str]
    classes: list[str]
    name: str = "planted"

    def __post_init__(self) -> None:
        height, width, channels = self.images.shape[1:]
        self.image_shape: tuple[int, int, int] | None = (height, width, channels)

    def key(self) -> str:
        return self.name

    def chunks(self) -> list[str]:
        return ["all"]

    def read(self, chunk: str) -> Iterator[Block]:
        yield Block(self.ids, self.labels.tolist(), self.splits, self.images)


KINDS = {"flipped": 60, "noise": 30, "copy": 25, "cross": 15, "leak": 20, "blank": 5}
"""Faults and how many training images have each."""


def plant(pack: Pack, out: Path, seed: int = 0) -> dict[str, list[str]]:
    """Write a copy of `pack` with faults to `out`; return the ids of the faulty samples by kind.

    Copies and leaks are other images of the training and test split with noise of a few grey
    levels; `cross` are such copies under another label.
    """
    random = np.random.default_rng(seed)
    images, labels = pack.images(np.arange(len(pack))).copy(), pack.labels.copy()
    train, test = pack.indices("train"), pack.indices("test")
    classes = len(pack.classes)
    order = random.permutation(train)
    ends = np.cumsum(list(KINDS.values()))
    rows = dict(zip(KINDS, np.split(order[: ends[-1]], ends[:-1]), strict=True))
    clean = order[ends[-1] :]

    def copies(of: np.ndarray) -> np.ndarray:
        wobble = random.integers(-2, 3, images[of].shape)
        return np.clip(images[of] + wobble, 0, 255).astype(np.uint8)

    for kind, faulty in rows.items():
        if kind == "flipped":
            labels[faulty] = (labels[faulty] + random.integers(1, classes, len(faulty))) % classes
        elif kind == "noise":
            images[faulty] = random.integers(0, 256, images[faulty].shape)
        elif kind == "blank":
            images[faulty] = 128
        else:
            source = random.choice(test if kind == "leak" else clean, len(faulty), replace=False)
            images[faulty], labels[faulty] = copies(source), labels[source]
            if kind == "cross":
                labels[faulty] = (labels[faulty] + 1) % classes
    ids = pack.ids.to_pylist()
    splits = pack.splits.to_pylist()
    write_pack(ArraySource(images, labels, splits, ids, list(pack.classes)), out)
    return {kind: [ids[row] for row in faulty] for kind, faulty in rows.items()}
