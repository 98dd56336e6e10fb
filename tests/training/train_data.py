"""A small pack for runs of a second: the first digits, a few hundred to train on."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from thresher.data.pack import Pack
from thresher.data.sources.base import Block
from thresher.data.write import WriteOptions, write_pack

TRAIN, TEST = 287, 40


class _Few:
    name = "few-digits"
    image_shape: tuple[int, int, int] | None = (8, 8, 1)

    def __init__(self, pack: Pack) -> None:
        self.pack = pack
        self.classes = pack.classes

    def key(self) -> str:
        return self.name

    def chunks(self) -> list[str]:
        return ["all"]

    def read(self, chunk: str) -> Iterator[Block]:
        train, test = self.pack.indices("train")[:TRAIN], self.pack.indices("test")[:TEST]
        positions = np.concatenate([train, test])
        ids = self.pack.ids.take(positions).to_pylist()
        splits = ["train"] * TRAIN + ["test"] * TEST
        yield Block(ids, self.pack.labels[positions], splits, self.pack.images(positions))


@pytest.fixture(scope="session")
def few(digits: Path, once: Callable[..., Path]) -> Path:
    """287 digits to train on and 40 to test on, 8×8 pixels."""

    def make(folder: Path) -> None:
        write_pack(_Few(Pack.open(digits)), folder / "few", WriteOptions(processes=1))

    return once("train-data", make) / "few"
