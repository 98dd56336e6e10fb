"""One step on a time line: buckets or Horovod's queue against the backward pass.

Times count from the beginning of the backward pass. Gradients become ready from the last layer to
the first; communication runs beside the backward pass, one message after another.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

MEGA = 2**20
FIRST_BUCKET = 1 * MEGA
"""DDP makes its first bucket small, so that communication begins early."""


@dataclass(frozen=True)
class Gradient:
    """A tensor's bytes and when the backward pass has made it."""

    size: float
    ready_s: float


@dataclass(frozen=True)
class Span:
    """Something on the time line: `negotiate` or `allreduce`, its bytes, from when to when."""

    kind: str
    size: float
    begin_s: float
    end_s: float


@dataclass
class Timeline:
    """What one step's communication did."""

    backward_s: float
    spans: list[Span] = field(default_factory=list)

    @property
    def communication_s(self) -> float:
        """Seconds in which messages were under way."""
        return sum(s.end_s - s.begin_s for s in self.spans if s.kind == "allreduce")

    @property
    def end_s(self) -> float:
        return max([self.backward_s, *(span.end_s for span in self.spans)])

    @property
    def exposed_s(self) -> float:
        """What the backward pass does not hide."""
        return self.end_s - self.backward_s


Cost = Callable[[float], float]


def buckets(gradients: Sequence[Gradient], bucket_bytes: float) -> list[Gradient]:
    """DDP's static buckets: gradients in the order in which they become ready, cut by size."""
    made: list[Gradient] = []
    size, ready, limit = 0.0, 0.0, min(FIRST_BUCKET, bucket_bytes)
    for gradient in gradients:
        size += gradient.size
        ready = max(ready, gradient.ready_s)
        if size >= limit:
            made.append(Gradient(size, ready))
            size, limit = 0.0, bucket_bytes
    if size:
        made.append(Gradient(size, ready))
    return made


def ddp(
    gradients: Sequence[Gradient], backward_s: float, cost: Cost, bucket_bytes: float = 25 * MEGA
) -> Timeline:
    """Each bucket is reduced as soon as it is full and the one before it is through."""
    line = Timeline(backward_s)
    free = 0.0
    for bucket in buckets(gradients, bucket_bytes):
        begin = max(bucket.ready_s, free)
        free = begin + cost(bucket.size)
        line.spans.append(Span("allreduce", bucket.size, begin, free))
    return line


@dataclass(frozen=True)
class Horovod:
    """Horovod's background thread: every `cycle_s` it asks all workers which tensors are ready,
    fuses up to `fusion_bytes` of them and reduces. The defaults are those of Horovod 0.28.

    A round of negotiation is a tiny all-reduce of bit vectors over p workers (log₂p messages each
    way) and, at the coordinator, `per_rank_s` for each rank; fused tensors are copied into the
    buffer and out again at `copy_bytes_s`.
    """

    cycle_s: float = 1e-3
    fusion_bytes: float = 128 * MEGA
    per_rank_s: float = 2e-6
    copy_bytes_s: float = 400e9

    def negotiation_s(self, workers: int, latency_s: float) -> float:
        if workers <= 1:
            return 0.0
        return 2 * math.ceil(math.log2(workers)) * latency_s + workers * self.per_rank_s


def horovod(
    gradients: Sequence[Gradient],
    backward_s: float,
    cost: Cost,
    workers: int,
    latency_s: float,
    settings: Horovod,
) -> Timeline:
    """The dynamic queue: what is ready at a tick is negotiated, fused and reduced in order."""
    line = Timeline(backward_s)
    waiting = sorted(gradients, key=lambda gradient: gradient.ready_s)
    negotiation = settings.negotiation_s(workers, latency_s)
    tick, stream_free, position = 0.0, 0.0, 0
    while position < len(waiting):
        # A tick with nothing ready still costs a round, which delays the next one.
        if waiting[position].ready_s > tick:
            late = waiting[position].ready_s - tick
            pause = max(settings.cycle_s, negotiation)
            tick += math.ceil(late / pause) * pause
        ready = []
        while position < len(waiting) and waiting[position].ready_s <= tick:
            ready.append(waiting[position])
            position += 1
        agreed = tick + negotiation
        line.spans.append(Span("negotiate", sum(g.size for g in ready), tick, agreed))
        for size in _fused(ready, settings.fusion_bytes):
            begin = max(agreed, stream_free)
            stream_free = begin + 2 * size / settings.copy_bytes_s + cost(size)
            line.spans.append(Span("allreduce", size, begin, stream_free))
        tick = max(tick + settings.cycle_s, agreed)
    return line


def _fused(ready: Sequence[Gradient], limit: float) -> list[float]:
    """Sizes of the fused messages: neighbours together while they fit the buffer."""
    sizes: list[float] = []
    for gradient in ready:
        if sizes and sizes[-1] + gradient.size <= limit:
            sizes[-1] += gradient.size
        else:
            sizes.append(gradient.size)
    return sizes
