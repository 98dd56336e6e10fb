"""The contract between an origin of images and the pack writer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np


@dataclass
class Block:
    """Some samples on their way into a pack.

    `images` is one uint8 array (n, height, width, channels) where all images share a shape, else a
    list of encoded files (JPEG, PNG, …), one `bytes` per sample.
    """

    ids: Sequence[str]
    labels: Sequence[int] | np.ndarray
    splits: Sequence[str]
    images: np.ndarray | list[bytes]
    broken: list[str] = field(default_factory=list)
    """Ids (or file names) that could not be read; they are listed in the pack's report."""


class Source(Protocol):
    """An origin of images. Picklable, cheap to build; `chunks` is deterministic.

    A chunk becomes one shard: it is the unit of parallel work and of resuming after a kill.
    Where a source gives encoded files and names an `image_shape` all the same, the writer decodes
    them to it.
    """

    name: str
    classes: list[str]
    image_shape: tuple[int, int, int] | None
    """(height, width, channels) if all images share it; None: they stay encoded files."""

    def key(self) -> str:
        """What identifies this source and its settings; a resumed packing must have the same."""

    def chunks(self) -> list[str]:
        """Names of the parts, in order; each is read on its own, in any process."""

    def read(self, chunk: str) -> Iterator[Block]:
        """The samples of one part, in blocks small enough to hold in memory."""
