"""Time all-reduces, and whole data-parallel steps, on a group of processes."""

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from thresher.distributed.group import join
from thresher.distributed.local_group import run_local
from thresher.distributed.worker import call_in_group
from thresher.environment import core_count
from thresher.errors import InvalidValueError
from thresher.models.registry import build
from thresher.options import from_mapping, to_mapping
from thresher.scaling.costs import fit_ring
from thresher.scaling.profile import AllReducePoint, AllReduceTimes, OverlapTimes
from thresher.scaling.synthetic import SyntheticBatch, timed

SIZES = tuple(4**k for k in range(5, 13))
"""1 KiB to 16 MiB."""
TIMEOUT_S = 900.0
STEP_SECONDS = 1.5
"""How long DDP steps are timed, with communication and without."""


@dataclass(frozen=True)
class GroupTimes:
    """What a group of workers measured together."""

    allreduce: AllReduceTimes
    overlap: OverlapTimes | None


def time_allreduce(
    sizes: Sequence[int] = SIZES, seconds: float = 0.2, device: str = "cpu"
) -> list[tuple[float, float]]:
    """Time `dist.all_reduce` on the current group; all ranks must call it.

    Each size is repeated for about `seconds`. Returns (bytes, median seconds) of each size.
    """
    points = []
    for size in sizes:
        reduce = partial(dist.all_reduce, torch.zeros(max(1, size // 4), device=device))
        count = _repetitions(seconds / max(timed(reduce, device), 1e-6), 100, device)
        points.append((float(size), median(timed(reduce, device) for _ in range(count))))
    return points


def _repetitions(wanted: float, most: int, device: str) -> int:
    """Return how often to repeat, from 3 to `most`; rank 0 decides for all."""
    count = torch.tensor([max(3, min(most, int(wanted)))], device=device)
    dist.broadcast(count, 0)
    return int(count.item())


def time_step(
    model: nn.Module,
    batch: SyntheticBatch,
    device: str = "cpu",
    bucket_mb: float = 25,
    seconds: float = STEP_SECONDS,
) -> OverlapTimes:
    """Time a DDP step and the same step without communication on the current group.

    Steps with and without communication alternate, so that other load affects both alike. `batch`
    is that of each worker. All ranks must call it.
    """
    model = model.to(device=device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    wrapped = DistributedDataParallel(model, bucket_cap_mb=bucket_mb, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
    images, labels = batch.tensors(device)

    def step(communicate: bool) -> None:
        optimizer.zero_grad(set_to_none=False)
        with nullcontext() if communicate else wrapped.no_sync():
            nn.functional.cross_entropy(wrapped(images), labels).backward()
        optimizer.step()

    total = sum(p.numel() for p in model.parameters() if p.requires_grad)
    limit = max(1, int(bucket_mb * 2**20 / 4))
    pieces = [torch.zeros(min(limit, total - at), device=device) for at in range(0, total, limit)]

    def reduce_alone() -> None:
        for piece in pieces:
            dist.all_reduce(piece)

    for _ in range(2):
        step(True)
    actions: tuple[Callable[[], None], ...] = (
        partial(step, True),
        partial(step, False),
        reduce_alone,
    )
    count = _repetitions(seconds / max(3 * timed(actions[0], device), 1e-6), 40, device)
    times: list[list[float]] = [[], [], []]
    for _ in range(count):
        for measured, action in zip(times, actions, strict=True):
            dist.barrier()
            measured.append(timed(action, device))
    step_s, compute_s, communication_s = map(median, times)
    exposed_s = max(0.0, step_s - compute_s)
    return OverlapTimes(
        workers=dist.get_world_size(),
        batch_size=batch.batch_size * dist.get_world_size(),
        step_s=step_s,
        compute_s=compute_s,
        communication_s=communication_s,
        exposed_s=exposed_s,
        hidden=max(0.0, 1 - exposed_s / communication_s) if communication_s > 0 else 1.0,
    )


def measure_group(
    workers: int,
    model: str | None = None,
    batch: SyntheticBatch | None = None,
    step_seconds: float = STEP_SECONDS,
) -> GroupTimes:
    """Start `workers` processes on this machine and time their all-reduce (about ten seconds).

    With a `model`, a DDP step of it is timed too, for about `step_seconds`; `batch` is that of each
    worker.
    """
    if workers < 2:
        raise InvalidValueError(
            f"workers must be at least 2 to measure communication, got {workers}", "", "workers"
        )
    threads = max(1, core_count() // workers)
    environment = {"OMP_NUM_THREADS": str(threads)}
    run = partial(run_local, workers, environment=environment, timeout_s=TIMEOUT_S)
    order = to_mapping(_Order(model, batch, step_seconds))
    return from_mapping(
        GroupTimes, call_in_group("thresher.scaling.links:_measure_order", order, run)
    )


@dataclass(frozen=True)
class _Order:
    model: str | None
    batch: SyntheticBatch | None
    step_seconds: float


def _measure_order(values: Any) -> Any:
    order = from_mapping(_Order, values)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    device = str(join("auto").device)
    return to_mapping(measure_current_group(device, order.model, order.batch, order.step_seconds))


def measure_current_group(
    device: str,
    model: str | None = None,
    batch: SyntheticBatch | None = None,
    step_seconds: float = STEP_SECONDS,
) -> GroupTimes:
    """Measure the group that this process has joined; all ranks must call it."""
    torch.manual_seed(0)
    # Before any collective: an unknown model must fail on all ranks alike.
    network = None
    if model and batch:
        network = build(model, batch.classes, batch.shape[0], sides=batch.shape[1:])
    points = time_allreduce(device=device)
    workers = dist.get_world_size()
    link, error = fit_ring(points, workers)
    allreduce = AllReduceTimes(
        workers=workers,
        backend="nccl" if device.startswith("cuda") else "gloo",
        points=tuple(AllReducePoint(size, seconds) for size, seconds in points),
        **asdict(link),
        error=error,
    )
    overlap = None
    if network is not None and batch is not None:
        overlap = time_step(network, batch, device, seconds=step_seconds)
    dist.barrier()
    return GroupTimes(allreduce, overlap)
