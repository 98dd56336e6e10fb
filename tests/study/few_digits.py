"""A pack so small that a trial takes a fraction of a second."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from thresher.data.sources.base import Block
from thresher.data.sources.digits import Digits
from thresher.data.write import write_pack


class FewDigits(Digits):
    name = "few-digits"

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def key(self) -> str:
        return f"the first {self.rows} digits"

    def read(self, chunk: str) -> Iterator[Block]:
        for block in super().read(chunk):
            yield replace(
                block,
                ids=block.ids[: self.rows],
                labels=block.labels[: self.rows],
                splits=block.splits[: self.rows],
                images=block.images[: self.rows],
            )


def make_pack(folder: Path, rows: int = 300) -> str:
    """Write a pack of the first digits, every fifth of them to test on, and return its folder."""
    out = folder / "few-digits"
    write_pack(FewDigits(rows), out)
    return str(out)
