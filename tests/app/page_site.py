"""What the tests of the page share: a selection made cheaply, and a server over it."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlparse

import numpy as np

from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.data.sources.base import Block
from thresher.select.cluster import ClassGraph

if TYPE_CHECKING:
    from playwright.sync_api import Page

Opener = Callable[..., "Page"]
Serve = Callable[..., str]
MIN_SAMPLES = 5
SHARE = 0.06


@dataclass(frozen=True)
class Made:
    """A saved selection with what it was made from."""

    path: Path
    pack: Pack
    graph: ClassGraph
    xy: np.ndarray

    def copy(self, folder: Path, name: str = "chosen") -> "Made":
        """The same selection under a path of its own, without decisions."""
        for suffix in (".parquet", ".json"):
            shutil.copy(self.path.with_suffix(suffix), folder / f"{name}{suffix}")
        return Made(folder / f"{name}.parquet", self.pack, self.graph, self.xy)


@dataclass(frozen=True)
class Site:
    """A running server."""

    url: str
    made: Made

    @property
    def base(self) -> str:
        parts = urlparse(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def token(self) -> str:
        return parse_qs(urlparse(self.url).query)["token"][0]


class Few:
    """The first images of a pack, as the source of a smaller one."""

    def __init__(self, pack: Pack, train: int = 600, test: int = 100) -> None:
        self.pack = pack
        self.rows = {"train": pack.indices("train")[:train], "test": pack.indices("test")[:test]}
        self.name, self.classes, self.image_shape = "few", pack.classes, pack.image_shape

    def key(self) -> str:
        return f"few of {self.pack.fingerprint}"

    def chunks(self) -> list[str]:
        return ["train", "test"]

    def read(self, chunk: str) -> Iterator[Block]:
        rows = self.rows[chunk]
        yield Block(
            ids=self.pack.ids.take(rows).to_pylist(),
            labels=self.pack.labels[rows],
            splits=[chunk] * len(rows),
            images=self.pack.images(rows),
        )


def select(pack: Pack, rows: np.ndarray, path: Path) -> Made:
    """DBSCAN noise on a cheap map: two principal components of 8 × 8 pixel means."""
    images = pack.images(rows)
    n, height, width, channels = images.shape
    step = max(height // 8, 1)
    # Sums of whole numbers along rows first: a tenth of the time of a mean over both axes.
    lines = images.reshape(n, height // step, step, -1).sum(axis=2, dtype=np.uint16)
    parts = lines.reshape(n, height // step, width // step, step, channels)
    x = np.einsum("nhwsc->nhwc", parts).reshape(n, -1).astype(np.float32) / step**2
    x -= x.mean(axis=0)
    _, axes = np.linalg.eigh(x.T @ x)
    xy = x @ axes[:, -2:]
    xy = (xy / xy.std(axis=0)).astype(np.float32)
    labels = pack.labels[rows]
    graph = ClassGraph(xy, labels, MIN_SAMPLES)
    eps = graph.eps_for_share(SHARE)
    noise = graph.noise(eps)
    Selection(
        ids=pack.ids.take(rows).to_pylist(),
        labels=labels,
        keep=~noise,
        score=graph.threshold.astype(np.float32),
        reason=["noise" if out else "" for out in noise.tolist()],
        fingerprint=pack.fingerprint,
        x=xy[:, 0],
        y=xy[:, 1],
        cluster=graph.clusters(eps),
        meta={
            "data": str(pack.root),
            "method": "network",
            "eps": eps,
            "settings": {"min_samples": MIN_SAMPLES},
        },
    ).save(path)
    return Made(path, pack, graph, xy)
