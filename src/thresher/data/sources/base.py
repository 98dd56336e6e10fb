"""The interface between a source of images and the pack writer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np


@dataclass
class Block:
    """Some samples of a source.

    `images` is one uint8 array (n, height, width, channels) if all images share a shape, otherwise
    a list of encoded files (JPEG, PNG, …), one `bytes` per sample.
    """

    ids: Sequence[str]
    labels: Sequence[int] | np.ndarray
    splits: Sequence[str]
    images: np.ndarray | list[bytes]
    broken: list[str] = field(default_factory=list)
    """Ids (or file names) that could not be read; they are listed in `pack.json`."""


class Source(Protocol):
    """A source of images: picklable, and `chunks` is deterministic.

    A chunk becomes one shard: the unit of parallel work and of resuming. If a source yields
    encoded files and has an `image_shape`, the writer decodes them to that shape.

    A class that is registered as a source (see `thresher.data.sources.registry`) is called as
    `Class(where, name=None)`, or `Class(where, name=None, classes=None)` if it accepts a file with
    a class name per line. `where` is a path or an address; `name` replaces the default name. It may
    have a static method `matches(where: str) -> bool`, which tells cheaply whether it can read it.
    """

    name: str
    """Name of the data set."""
    classes: list[str]
    """Class names; a label is an index into them."""
    image_shape: tuple[int, int, int] | None
    """(height, width, channels) if all images share it; None: they stay encoded files."""

    def key(self) -> str:
        """Return what identifies the source and its content; a packing resumes if it is equal."""

    def chunks(self) -> list[str]:
        """Return the names of the chunks, in order; each is read on its own, in any process."""

    def read(self, chunk: str) -> Iterator[Block]:
        """Yield the samples of a chunk, in blocks small enough to hold in memory."""
