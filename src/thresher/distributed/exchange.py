"""Sum gradients over ranks during the backward pass: the base of every hook.

DDP fills *buckets* (flat buffers of several gradients) and passes each to a hook as soon as it is
full. An `Exchange` replaces the bucket's content by the **sum** over ranks. It keeps its state
(error feedback) by parameter name, because DDP regroups its buckets after the first step and a
resumed run starts with the first grouping again.

An exchange of several rounds must not be built from callbacks: gloo runs them on its own two
threads, where the order of collectives would differ between ranks and a callback that waits can
starve the collective it waits for. So on a CPU the rounds run on one thread of ours, over a process
group of their own, bucket by bucket; on CUDA they are queued on a stream of their own.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

Reduce = Callable[[Tensor], None]
"""Sums a contiguous tensor over ranks in place; returns when that is done (CUDA: queued)."""

# A callback (torch's PowerSGD has some) refers to its group, and the thread of gloo that ran it
# drops it a moment after the result is there. Were that the last reference, the thread would wait
# for its own end, and C++ aborts the process: so closed groups live a while longer.
_closed: deque[dist.ProcessGroup] = deque(maxlen=4)


@dataclass
class Bucket:
    """A flat buffer (n,) and the gradients that are views of it; method names are torch's."""

    flat: Tensor
    names: tuple[str, ...]
    views: list[Tensor]
    number: int
    last: bool

    def buffer(self) -> Tensor:
        return self.flat

    def gradients(self) -> list[Tensor]:
        return self.views

    def index(self) -> int:
        return self.number

    def is_last(self) -> bool:
        return self.last

    def slices(self) -> list[tuple[str, int, int]]:
        """Return (name, first element, elements) of each gradient in `flat`."""
        first = self.flat.storage_offset()
        return [
            (name, int(view.storage_offset() - first), view.numel())
            for name, view in zip(self.names, self.views, strict=True)
        ]


class Residual:
    """Error feedback: what compression left out so far, by parameter; each rank has its own.

    Gradients may be multiplied by a loss scale (`scale`, 0-d) that changes from step to step. The
    residual is stored without it.
    """

    scale: Tensor | None = None

    def __init__(self) -> None:
        self._pieces: dict[str, Tensor] = {}
        self._flat: dict[tuple[str, ...], Tensor] = {}
        self._new: list[tuple[Tensor, Tensor, Tensor]] = []

    def of(self, bucket: Bucket) -> Tensor:
        """Return the residual of a bucket in the scale of its gradients, (n,) like its buffer."""
        stored = self._stored(bucket)
        return stored if self.scale is None else stored * self.scale

    def _stored(self, bucket: Bucket) -> Tensor:
        if bucket.names not in self._flat:
            flat = torch.zeros_like(bucket.flat)
            for name, first, count in bucket.slices():
                view = flat[first : first + count]
                if name in self._pieces:
                    view.copy_(self._pieces[name])
                self._pieces[name] = view
            self._flat = {n: f for n, f in self._flat.items() if set(n).isdisjoint(bucket.names)}
            self._flat[bucket.names] = flat
        return self._flat[bucket.names]

    def keep(self, bucket: Bucket, left_out: Tensor) -> None:
        """Store `left_out` when the last bucket is there, unless a sum of the step overflowed.

        Such a step is skipped with all of its buckets, so the residual stays as before it.
        """
        left_out = left_out if self.scale is None else left_out / self.scale
        self._new.append((self._stored(bucket), left_out, bucket.flat.isfinite().all()))
        if bucket.last:
            finite = torch.stack([each for *_, each in self._new]).all()
            for stored, new, _ in self._new:
                stored.copy_(torch.where(finite, new, stored))
            self._new.clear()

    def state_dict(self) -> dict[str, Tensor]:
        return {f"error.{name}": piece.clone() for name, piece in self._pieces.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._flat, self._new = {}, []
        self._pieces = {name: t.flatten() for name, t in part(state, "error").items()}


def part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with `prefix.`, without the prefix."""
    start = f"{prefix}."
    return {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}


def redistribute(states: list[dict[str, Tensor]], rank: int, world: int) -> dict[str, Tensor]:
    """Return the state of `rank` of `world` from the states of all ranks of a saved run.

    Errors are distributed so that their sum over ranks, which training still adds, is unchanged;
    everything else is equal on all ranks and taken from the first.
    """
    if len(states) == world:
        return states[rank]
    mine = {key: value for key, value in states[0].items() if not key.startswith("error.")}
    for key in (key for key in states[0] if key.startswith("error.")):
        parts = [state[key] for state in states[rank::world]]
        mine[key] = torch.stack(parts).sum(0) if parts else torch.zeros_like(states[0][key])
    return mine


class Exchange:
    """The plain sum; subclasses override `_start`.

    Every rank must make its exchanges in the same order (each may make a process group).
    `state_dict` holds tensors only, this rank's own (see `redistribute`).
    """

    group: dist.ProcessGroup | None = None
    """The ranks; None: all."""

    def __init__(self) -> None:
        active = dist.is_available() and dist.is_initialized()
        self.world = dist.get_world_size() if active else 1
        self.rank = dist.get_rank() if active else 0
        self.names: dict[int, str] = {}  # of the parameters, by identity, for DDP's buckets

    def start(self, bucket: Bucket) -> torch.futures.Future[Tensor]:
        """Start the sum; the future's value is the bucket's buffer."""
        if self.world > 1:
            return self._start(bucket)
        devices = [bucket.flat.device] if bucket.flat.is_cuda else []
        future: torch.futures.Future[Tensor] = torch.futures.Future(devices=cast(Any, devices))
        future.set_result(bucket.flat)
        return future

    def _start(self, bucket: Bucket) -> torch.futures.Future[Tensor]:
        if bucket.flat.is_cuda and torch.cuda.is_current_stream_capturing():
            return self._captured(bucket.flat)
        work = dist.all_reduce(bucket.flat, group=self.group, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    def _captured(self, flat: Tensor) -> torch.futures.Future[Tensor]:
        """Sum within a CUDA graph: on a stream of its own, beside the backward pass."""
        # The callback of a work's future would run later, outside of the graph.
        stream = torch.cuda.Stream(flat.device)
        stream.wait_stream(torch.cuda.current_stream(flat.device))
        future: torch.futures.Future[Tensor] = torch.futures.Future(devices=[flat.device])
        with torch.cuda.stream(stream):
            dist.all_reduce(flat, group=self.group)
            future.set_result(flat)
        return future

    def set_loss_scale(self, scale: Tensor) -> None:
        """Say what the gradients of the next step are multiplied by, 0-d."""
        del scale

    def state_dict(self) -> dict[str, Tensor]:
        """Return this rank's state as tensors; call it between steps."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        del state

    def close(self) -> None:
        """Free threads and process groups; call it before `destroy_process_group`."""


class Rounds(Exchange):
    """An exchange of several rounds, with error feedback, over a process group of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.residual = Residual()
        self._thread = ThreadPoolExecutor(1, "thresher-exchange")
        self._stream: torch.cuda.Stream | None = None
        if self.world > 1:
            self.group = dist.new_group()

    def sum(self, bucket: Bucket) -> None:
        """Replace the bucket's buffer by the sum over ranks; blocks (CUDA: queues)."""
        raise NotImplementedError

    def _start(self, bucket: Bucket) -> torch.futures.Future[Tensor]:
        device = bucket.flat.device
        if device.type == "cuda":
            self._stream = self._stream or torch.cuda.Stream(device)
            self._stream.wait_stream(torch.cuda.current_stream(device))
            future: torch.futures.Future[Tensor] = torch.futures.Future(devices=[device])
            with torch.cuda.stream(self._stream):
                self.sum(bucket)
                future.set_result(bucket.flat)
            return future
        future = torch.futures.Future()
        self._thread.submit(self._run, bucket, future)
        return future

    def _run(self, bucket: Bucket, future: torch.futures.Future[Tensor]) -> None:
        try:
            with torch.no_grad():
                self.sum(bucket)
        except BaseException as error:
            # Otherwise whoever waits for the bucket would wait forever.
            future.set_exception(cast(Any, error))
        else:
            future.set_result(bucket.flat)

    def set_loss_scale(self, scale: Tensor) -> None:
        self.residual.scale = scale

    def state_dict(self) -> dict[str, Tensor]:
        return self.residual.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.residual.load_state_dict(state)

    def close(self) -> None:
        self._thread.shutdown()
        if self.group is not None and dist.is_initialized():
            dist.destroy_process_group(self.group)
            _closed.append(self.group)
            self.group = None


class Summed(Rounds):
    """A plain sum by one of our all-reduce algorithms, which take several rounds."""

    def __init__(
        self,
        make_reduce: Callable[[dist.ProcessGroup | None], Reduce],
        wire: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self._wire = wire
        if self.world > 1:
            self._reduce = make_reduce(self.group)

    def sum(self, bucket: Bucket) -> None:
        sent = bucket.flat if self._wire is None else bucket.flat.to(self._wire)
        self._reduce(sent)
        if sent is not bucket.flat:
            bucket.flat.copy_(sent)


def whole(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Return `group`, or the group of all ranks."""
    chosen = group or dist.group.WORLD
    assert chosen is not None
    return chosen
