"""The communication of one step on a time line: DDP's buckets or Horovod's queue.

Times count from the beginning of the backward pass. Gradients become ready from the last layer to
the first; communication runs beside the backward pass, one message after another.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

MEGA = 2**20


@dataclass(frozen=True)
class Gradient:
    """Bytes of a gradient or bucket, and when the backward pass has computed it."""

    bytes: float
    ready_s: float


@dataclass(frozen=True)
class Span:
    """An interval of the time line.

    Kinds of a predicted step: negotiate, allreduce. A measured step also has forward, backward,
    wait (for gradients), update and bucket (DDP: from full to summed).
    """

    kind: str
    begin_s: float
    end_s: float
    bytes: float = 0
    name: str = ""


@dataclass
class Timeline:
    """The communication of one step."""

    backward_s: float
    spans: list[Span] = field(default_factory=list)

    @property
    def communication_s(self) -> float:
        """Seconds in which messages are sent."""
        return sum(s.end_s - s.begin_s for s in self.spans if s.kind == "allreduce")

    @property
    def end_s(self) -> float:
        """When both the backward pass and the communication have ended."""
        return max([self.backward_s, *(span.end_s for span in self.spans)])

    @property
    def exposed_s(self) -> float:
        """Seconds of communication that the backward pass does not hide."""
        return self.end_s - self.backward_s


Cost = Callable[[float], float]
"""Seconds of an all-reduce of that many bytes."""


def buckets(
    gradients: Sequence[Gradient], bucket_bytes: float, first_bytes: float | None = None
) -> list[Gradient]:
    """Group gradients into DDP's static buckets, in the order in which they become ready.

    `first_bytes` is the size of the first, by default that of the others: torch makes it small only
    where no size is given, and training always gives one.
    """
    grouped: list[Gradient] = []
    size, ready, limit = 0.0, 0.0, min(first_bytes or bucket_bytes, bucket_bytes)
    for gradient in gradients:
        size += gradient.bytes
        ready = max(ready, gradient.ready_s)
        if size >= limit:
            grouped.append(Gradient(size, ready))
            size, limit = 0.0, bucket_bytes
    if size:
        grouped.append(Gradient(size, ready))
    return grouped


def ddp(
    gradients: Sequence[Gradient],
    backward_s: float,
    cost: Cost,
    bucket_bytes: float,
    first_bytes: float | None = None,
) -> Timeline:
    """Reduce each bucket as soon as it is full and the bucket before it is reduced."""
    line = Timeline(backward_s)
    free = 0.0
    for bucket in buckets(gradients, bucket_bytes, first_bytes):
        begin = max(bucket.ready_s, free)
        free = begin + cost(bucket.bytes)
        line.spans.append(Span("allreduce", begin, free, bucket.bytes))
    return line


@dataclass(frozen=True)
class HorovodQueue:
    """Horovod's background thread: every `cycle_s` it asks all workers which tensors are ready,
    fuses up to `fusion_bytes` of them (copied in and out at `copy_bytes_s`) and reduces.

    A negotiation is a tiny all-reduce of bit vectors over p workers (log₂p messages each way)
    plus, at the coordinator, `per_rank_s` for each rank. A longer negotiation makes fewer and
    larger messages, so that a step can become shorter with it.
    """

    cycle_s: float
    fusion_bytes: float
    per_rank_s: float = 2e-6
    copy_bytes_s: float = 400e9

    def negotiation_s(self, workers: int, latency_s: float) -> float:
        """Return the seconds of one negotiation."""
        if workers <= 1:
            return 0.0
        return 2 * math.ceil(math.log2(workers)) * latency_s + workers * self.per_rank_s


def horovod(
    gradients: Sequence[Gradient],
    backward_s: float,
    cost: Cost,
    queue: HorovodQueue,
    negotiation_s: float,
) -> Timeline:
    """Negotiate, fuse and reduce at each tick the gradients that are ready by then."""
    line = Timeline(backward_s)
    waiting = sorted(gradients, key=lambda gradient: gradient.ready_s)
    tick, stream_free, position = 0.0, 0.0, 0
    while position < len(waiting):
        # A tick without a ready gradient still costs a round, which delays the next one.
        if waiting[position].ready_s > tick:
            late = waiting[position].ready_s - tick
            pause = max(queue.cycle_s, negotiation_s)
            tick += math.ceil(late / pause) * pause
        ready = [gradient for gradient in waiting[position:] if gradient.ready_s <= tick]
        position += len(ready)
        agreed = tick + negotiation_s
        line.spans.append(Span("negotiate", tick, agreed, sum(g.bytes for g in ready)))
        for size in _fused(ready, queue.fusion_bytes):
            begin = max(agreed, stream_free)
            stream_free = begin + 2 * size / queue.copy_bytes_s + cost(size)
            line.spans.append(Span("allreduce", begin, stream_free, size))
        tick = max(tick + queue.cycle_s, agreed)
    return line


def _fused(ready: Sequence[Gradient], limit: float) -> list[float]:
    sizes: list[float] = []
    for gradient in ready:
        if sizes and sizes[-1] + gradient.bytes <= limit:
            sizes[-1] += gradient.bytes
        else:
            sizes.append(gradient.bytes)
    return sizes
