"""What an all-reduce costs: latency and bandwidth formulas, compression, and a fit to measurements.

N bytes of gradient, p workers, α seconds of latency per message, β seconds per byte. A ring takes
2(p−1) steps of N/p bytes; a double tree goes up and down log₂p levels at full bandwidth;
hierarchical and torus do a ring in one dimension and a smaller one in the other.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from thresher.errors import ThresherError, nearest
from thresher.scaling.cluster import Cluster

ALGORITHMS = ("ring", "tree", "hierarchical", "torus")


@dataclass(frozen=True)
class Link:
    """One way to pass a message: seconds to begin it, and seconds per byte."""

    latency_s: float
    seconds_per_byte: float


def ring(size: float, p: int, link: Link) -> float:
    """2(p−1)α + 2((p−1)/p)Nβ."""
    if p <= 1:
        return 0.0
    return 2 * (p - 1) * link.latency_s + 2 * (p - 1) / p * size * link.seconds_per_byte


def double_tree(size: float, p: int, link: Link) -> float:
    """2·log₂p·α + 2Nβ: two trees, each carrying half of the bytes up and down."""
    if p <= 1:
        return 0.0
    return 2 * math.ceil(math.log2(p)) * link.latency_s + 2 * size * link.seconds_per_byte


def hierarchical(size: float, g: int, n: int, inner: Link, outer: Link) -> float:
    """Reduce-scatter in each node of g, ring of N/g bytes over the n nodes, all-gather inside."""
    return ring(size, g, inner) + ring(size / g, n, outer)


def torus(size: float, x: int, y: int, across: Link, along: Link) -> float:
    """A ring of N over X, then of N/X over Y: the 2-D torus, "hybrid" all-reduce."""
    return ring(size, x, across) + ring(size / x, y, along)


@dataclass(frozen=True)
class Fabric:
    """The links of a cluster, as an all-reduce over `workers` of its devices sees them.

    `scale` multiplies every transfer time: the hand on the dial for low and high estimates.
    """

    inner: Link
    outer: Link
    devices_per_node: int
    scale: float = 1.0

    @classmethod
    def of(cls, cluster: Cluster, scale: float = 1.0) -> "Fabric":
        return cls(
            Link(cluster.inner_latency_s, 1 / cluster.inner_bytes_s),
            Link(cluster.outer_latency_s, 1 / cluster.outer_bytes_s),
            cluster.devices_per_node,
            scale,
        )

    def seconds(self, algorithm: str, size: float, workers: int) -> float:
        """Seconds to all-reduce `size` bytes; `best` takes the cheapest algorithm."""
        if workers <= 1 or size <= 0:
            return 0.0
        if algorithm == "best":
            return min(self.seconds(name, size, workers) for name in ALGORITHMS)
        if algorithm not in ALGORITHMS:
            raise ThresherError(
                f'there is no all-reduce "{algorithm}"', nearest(algorithm, (*ALGORITHMS, "best"))
            )
        g = min(self.devices_per_node, workers)
        nodes = math.ceil(workers / g)
        if nodes == 1:
            plain = double_tree if algorithm == "tree" else ring
            return self.scale * plain(size, workers, self.inner)
        # A ring or a tree that visits the devices of a node in turn crosses the network once per
        # node, so its slowest hop sets the pace.
        mixed = Link(
            max(self.inner.latency_s, self.outer.latency_s),
            max(self.inner.seconds_per_byte, self.outer.seconds_per_byte),
        )
        # g rings that leave the node at once share what leaves it.
        shared = Link(self.outer.latency_s, g * self.outer.seconds_per_byte)
        if algorithm == "ring":
            seconds = ring(size, workers, mixed)
        elif algorithm == "tree":
            inside = ring(size, g, Link(self.inner.latency_s, 0.0))
            seconds = inside + double_tree(size, nodes, mixed)
        elif algorithm == "hierarchical":
            seconds = hierarchical(size, g, nodes, self.inner, shared)
        else:
            seconds = min(
                torus(size, x, math.ceil(workers / x), self.inner if x == g else mixed, shared)
                for x in torus_widths(workers, g)
            )
        return self.scale * seconds

    def cheapest(self, size: float, workers: int) -> str:
        return min(ALGORITHMS, key=lambda name: self.seconds(name, size, workers))


def torus_widths(workers: int, g: int) -> list[int]:
    """Whole nodes side by side, up to about the square root of the workers."""
    side = max(1, round(math.sqrt(workers) / g))
    return sorted({g * k for k in (1, side, max(1, side // 2))})


@dataclass(frozen=True)
class Compression:
    """Fewer bytes on the wire, at a price on the device.

    `share` of the bytes is sent; `passes` over the gradient's memory to make and undo it. A
    gathered kind (top-k) cannot be summed on the way: every worker receives the parts of all the
    others, so its bytes grow with the workers.
    """

    name: str
    share: float
    passes: float
    gathered: bool

    def seconds(
        self, fabric: Fabric, algorithm: str, size: float, workers: int, bytes_s: float
    ) -> float:
        """All-reduce of `size` bytes of float32 gradient, with making and undoing it."""
        if workers <= 1:
            return 0.0
        work = self.passes * size / bytes_s
        if not self.gathered:
            return work + fabric.seconds(algorithm, size * self.share, workers)
        # An all-gather moves (p−1) parts of N·share: half of a ring all-reduce of p·N·share bytes.
        return work + fabric.seconds("ring", size * self.share * workers, workers) / 2


def compression(text: str) -> Compression:
    """`none`, `fp16`, `bf16`, `int8`, `topk:SHARE` or `powersgd:RANK`.

    PowerSGD of rank r sends r(n+m) of n·m numbers; the layers of a ResNet are about 1,000 × 1,000
    as matrices where their bytes are, which is what is assumed here.
    """
    name, _, argument = text.partition(":")
    known = ("none", "fp16", "bf16", "int8", "topk:0.01", "powersgd:4")
    if name == "none":
        return Compression(text, 1.0, 0.0, False)
    if name in ("fp16", "bf16"):
        return Compression(text, 0.5, 3.0, False)
    if name == "int8":
        # Parts are exchanged and summed in float32, then gathered: a quarter of the bytes.
        return Compression(text, 0.25, 4.0, False)
    try:
        if name == "topk":
            value = float(argument or 0.01)
            if not 0 < value <= 1:
                raise ThresherError(f'compression "{text}" keeps an impossible share')
            # A value and its index: eight bytes for four, and a selection over the whole.
            return Compression(text, min(1.0, 2 * value), 8.0, True)
        if name == "powersgd":
            rank = int(argument or 4)
            if rank < 1:
                raise ThresherError(f'compression "{text}" has an impossible rank')
            return Compression(text, min(1.0, 2 * rank / 1000), 4.0 + rank / 2, False)
    except ValueError:
        raise ThresherError(f'compression "{text}" needs a number after the colon') from None
    raise ThresherError(f'there is no compression "{text}"', nearest(text, known))


@dataclass(frozen=True)
class Fit:
    """α and β of a measured group, and the median relative error of the fit."""

    latency_s: float
    seconds_per_byte: float
    error: float


def fit_ring(points: Sequence[tuple[float, float]], workers: int) -> Fit:
    """α and β ≥ 0 from (bytes, seconds) of all-reduces over `workers`, by relative least squares.

    Relative, since small messages tell of latency and large ones of bandwidth, and seconds span
    four orders of magnitude.
    """
    if workers < 2 or len(points) < 2:
        raise ThresherError("a fit needs two workers and two message sizes at least")
    sizes = np.array([size for size, _ in points], dtype=float)
    seconds = np.array([time for _, time in points], dtype=float)
    columns = np.stack(
        [
            np.full_like(sizes, 2.0 * (workers - 1)),
            2.0 * (workers - 1) / workers * sizes,
        ],
        axis=1,
    )
    from scipy.optimize import nnls

    (latency, per_byte), _ = nnls(columns / seconds[:, None], np.ones_like(seconds))
    predicted = columns @ np.array([latency, per_byte])
    return Fit(
        float(latency),
        float(per_byte),
        float(np.median(np.abs(predicted - seconds) / seconds)),
    )
