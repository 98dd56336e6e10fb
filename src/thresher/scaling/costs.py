"""Cost of an all-reduce: latency and bandwidth formulas, compression, and a fit to measurements.

Symbols: N bytes of gradient, p workers, α seconds of latency per message, β seconds per byte. A
ring takes 2(p−1) steps of N/p bytes; a double tree goes up and down log₂p levels at full bandwidth;
hierarchical and torus run a ring in one dimension and a smaller one in the other.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from thresher.distributed.names import POWERSGD_RANK, TOPK_SHARE
from thresher.errors import InvalidValueError, nearest
from thresher.scaling.cluster import Cluster

ALGORITHMS = ("ring", "tree", "hierarchical", "torus")
TRAINED = (f"topk:{TOPK_SHARE:g}", f"powersgd:{POWERSGD_RANK}")
"""`topk` and `powersgd` as `thresher train` compresses with them."""


@dataclass(frozen=True)
class Link:
    """Seconds to start a message, and seconds per byte."""

    latency_s: float
    seconds_per_byte: float


def ring(size: float, p: int, link: Link) -> float:
    """Return the seconds of a ring: 2(p−1)α + 2((p−1)/p)Nβ."""
    if p <= 1:
        return 0.0
    return 2 * (p - 1) * link.latency_s + 2 * (p - 1) / p * size * link.seconds_per_byte


def double_tree(size: float, p: int, link: Link) -> float:
    """Return the seconds of two trees that each carry half of the bytes: 2·log₂p·α + 2Nβ."""
    if p <= 1:
        return 0.0
    return 2 * math.ceil(math.log2(p)) * link.latency_s + 2 * size * link.seconds_per_byte


def torus(size: float, x: int, y: int, across: Link, along: Link) -> float:
    """Return the seconds of a ring of N bytes over x workers, then of N/x over y (2-D torus).

    Hierarchical: x devices of a node, then y nodes.
    """
    return ring(size, x, across) + ring(size / x, y, along)


@dataclass(frozen=True)
class Fabric:
    """The links of a cluster as an all-reduce uses them."""

    inner: Link
    outer: Link
    devices_per_node: int
    scale: float = 1.0
    """Factor on every transfer time, for low and high estimates."""

    @classmethod
    def of(cls, cluster: Cluster, scale: float = 1.0) -> "Fabric":
        """Return the links of `cluster`."""
        return cls(
            Link(cluster.inner_latency_s, 1 / cluster.inner_bytes_s),
            Link(cluster.outer_latency_s, 1 / cluster.outer_bytes_s),
            cluster.devices_per_node,
            scale,
        )

    def seconds(self, algorithm: str, size: float, workers: int) -> float:
        """Return the seconds to all-reduce `size` bytes; "best" takes the cheapest algorithm."""
        if workers <= 1 or size <= 0:
            return 0.0
        if algorithm == "best":
            return min(self.seconds(name, size, workers) for name in ALGORITHMS)
        if algorithm not in ALGORITHMS:
            raise InvalidValueError(
                f'unknown all-reduce "{algorithm}"', nearest(algorithm, (*ALGORITHMS, "best"))
            )
        g = min(self.devices_per_node, workers)
        nodes = math.ceil(workers / g)
        if nodes == 1:
            plain = double_tree if algorithm == "tree" else ring
            return self.scale * plain(size, workers, self.inner)
        # A ring or tree that visits the devices of a node in turn crosses the network once per
        # node, so its slowest link determines the time.
        mixed = Link(
            max(self.inner.latency_s, self.outer.latency_s),
            max(self.inner.seconds_per_byte, self.outer.seconds_per_byte),
        )
        # g rings that leave the node at once share its network link.
        shared = Link(self.outer.latency_s, g * self.outer.seconds_per_byte)
        if algorithm == "ring":
            seconds = ring(size, workers, mixed)
        elif algorithm == "tree":
            inside = ring(size, g, Link(self.inner.latency_s, 0.0))
            seconds = inside + double_tree(size, nodes, mixed)
        elif algorithm == "hierarchical":
            seconds = torus(size, g, nodes, self.inner, shared)
        else:
            seconds = min(
                torus(size, x, math.ceil(workers / x), self.inner if x == g else mixed, shared)
                for x in torus_widths(workers, g)
            )
        return self.scale * seconds

    def cheapest(self, size: float, workers: int) -> str:
        """Return the algorithm that takes least time."""
        return min(ALGORITHMS, key=lambda name: self.seconds(name, size, workers))


def torus_widths(workers: int, g: int) -> list[int]:
    """Return candidate widths: whole nodes, up to about the square root of the workers."""
    side = max(1, round(math.sqrt(workers) / g))
    return sorted({g * k for k in (1, side, max(1, side // 2))})


@dataclass(frozen=True)
class Compression:
    """Fewer bytes on the network in exchange for work on the device."""

    share: float
    """Share of the bytes that is sent."""
    passes: float
    """Passes over the gradient's memory to compress and decompress it."""
    gathered: bool
    """Whether the parts cannot be summed on the way (top-k): every worker then receives those of
    all others, and the bytes grow with the number of workers."""

    def seconds(
        self, fabric: Fabric, algorithm: str, size: float, workers: int, bytes_s: float
    ) -> float:
        """Return the seconds to compress, all-reduce and decompress `size` bytes of float32, with
        memory of `bytes_s`."""
        if workers <= 1:
            return 0.0
        work = self.passes * size / bytes_s
        if not self.gathered:
            return work + fabric.seconds(algorithm, size * self.share, workers)
        # An all-gather moves p−1 parts of N·share: half of a ring all-reduce of p·N·share bytes.
        return work + fabric.seconds("ring", size * self.share * workers, workers) / 2


def compression(text: str) -> Compression:
    """Parse `none`, `fp16`, `bf16`, `int8`, `topk:SHARE` or `powersgd:RANK`.

    Without SHARE and RANK, `topk` and `powersgd` are those of `thresher train`.
    PowerSGD of rank r sends r(n+m) of n·m numbers; matrices of 1,000 × 1,000 are assumed, as in
    the layers that hold most parameters of a ResNet.
    """
    name, _, argument = text.partition(":")
    # int8: parts are exchanged, summed in float32, then gathered: a quarter of the bytes.
    plain = {"none": (1.0, 0.0), "fp16": (0.5, 3.0), "bf16": (0.5, 3.0), "int8": (0.25, 4.0)}
    if name in plain:
        return Compression(*plain[name], False)
    if name not in ("topk", "powersgd"):
        known = (*plain, *TRAINED)
        raise InvalidValueError(f'unknown compression "{text}"', nearest(text, known))
    try:
        value = float(argument or (TOPK_SHARE if name == "topk" else POWERSGD_RANK))
    except ValueError:
        value = math.nan
    if name == "topk":
        if not 0 < value <= 1:
            raise InvalidValueError(f'the share of compression "{text}" must be in (0, 1]')
        # A value and its index take eight bytes instead of four; the selection reads all values.
        return Compression(min(1.0, 2 * value), 8.0, True)
    if not (value >= 1 and value.is_integer()):
        raise InvalidValueError(f'the rank of compression "{text}" must be an integer from 1')
    return Compression(min(1.0, 2 * value / 1000), 4.0 + value / 2, False)


def fit_ring(points: Sequence[tuple[float, float]], workers: int) -> tuple[Link, float]:
    """Fit α and β ≥ 0 to (bytes, seconds) of all-reduces of `workers`.

    Least squares of the relative error: small messages determine the latency and large ones the
    bandwidth, while their times span four orders of magnitude.

    Returns:
        The link, and the median relative error of the fit.
    """
    if workers < 2 or len(points) < 2:
        raise InvalidValueError("a fit needs at least two workers and two message sizes")
    sizes, seconds = np.array(points, dtype=float).T
    steps = 2.0 * (workers - 1)
    columns = np.stack([np.full_like(sizes, steps), steps / workers * sizes], axis=1)
    from scipy.optimize import nnls

    (latency, per_byte), _ = nnls(columns / seconds[:, None], np.ones_like(seconds))
    predicted = columns @ np.array([latency, per_byte])
    error = np.median(np.abs(predicted - seconds) / seconds)
    return Link(float(latency), float(per_byte)), float(error)
