"""Whole training steps captured in CUDA graphs, replayed without any work on the host.

The rows of an epoch's batches, their rates and the number of the step are tensors on the device;
the graph looks up its own inputs, writes its loss and counts. Streamed images are copied to a
buffer of the graph before each step. Shapes are fixed in a graph, so there
is one for full batches and one for an epoch's last, smaller batch.
"""

import logging
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thresher.distributed.group import Group
from thresher.errors import InvalidValueError, first_line
from thresher.models.kernel_use import in_captured_steps
from thresher.training.config import TrainConfig
from thresher.training.device_data import DeviceData, Part
from thresher.training.epochs import EpochPlan
from thresher.training.execution import kernel_search
from thresher.training.gpu_streams import kept_stream, side_stream
from thresher.training.optimizers import set_rate
from thresher.training.step import Step

WARM_UP = 3
DDP_WARM_UP = 11
"""Steps that DDP needs before it can be captured."""
logger = logging.getLogger(__name__)


class DrawsOnHost(RuntimeError):
    """A step draws random numbers that are not part of a graph."""


class Batches:
    """This worker's parts of an epoch's batches of one size, on the device; `at` is the next one.

    `capacity` is the number of batches of this size in an epoch, at most.
    """

    def __init__(self, data: DeviceData, batch: int, capacity: int, align: int = 1) -> None:
        device = data.group.device
        self.data, self.batch, self.align = data, batch, align
        first = data.first_part(batch, align)
        self.rows = first.rows.repeat(capacity, 1)
        self.rates = torch.zeros(capacity, dtype=torch.float32, device=device)
        self.numbers = torch.zeros(capacity, dtype=torch.int64, device=device)
        self.at = torch.zeros(1, dtype=torch.int64, device=device)
        self.images = first.images
        """(samples, height, width, channels) uint8: where streamed images are copied to."""

    def begin(self, plan: EpochPlan) -> None:
        """Set the batches of this size that are still to come in an epoch."""
        numbers = [i for i, (begin, end) in enumerate(plan.cuts) if end - begin == self.batch]
        if numbers:
            spans = [self.data.span(plan.cuts[i], self.align) for i in numbers]
            n, rows = len(numbers), np.stack([plan.order[slice(*span)] for span in spans])
            self.rows[:n].copy_(torch.from_numpy(rows))
            self.rates[:n].copy_(torch.tensor([plan.rates[i] for i in numbers]))
            self.numbers[:n].copy_(torch.tensor(numbers))
            self.at.zero_()

    # index_select, since indexing by a 0-d tensor would fetch it to the host.

    def part(self) -> Part:
        """Return this worker's part of the next batch."""
        return Part(self.rows.index_select(0, self.at).view(-1), self.images)

    def rate(self) -> Tensor:
        """Return the rate of the next batch, 0-d."""
        return self.rates.index_select(0, self.at).view(())

    def number(self) -> Tensor:
        """Return the number of the next batch in the epoch, (1,)."""
        return self.numbers.index_select(0, self.at)


class CapturedStep:
    """A step on batches of one size: `batches.begin` an epoch, then call it once per batch.

    The losses of an epoch's steps are written to `losses`, (steps,). `capacity` is the number of
    batches of this size in an epoch, `pool` the memory of another graph to share, or None.
    """

    def __init__(self, step: Step, batch: int, capacity: int, losses: Tensor, pool: Any) -> None:
        device = step.group.device
        self.step, self.batch, self.losses = step, batch, losses
        self.batches = Batches(step.data, batch, capacity, step.align)
        with step.undone(), in_captured_steps():
            with side_stream(device):
                for _ in range(WARM_UP if step.group.alone else DDP_WARM_UP):
                    before = host_random_state()
                    self.batches.at.zero_()
                    self._body()
            if host_random_state() != before:
                what = "the network draws random numbers on the CPU, which a graph would repeat"
                raise DrawsOnHost(what)
            self.batches.at.zero_()
            step.optimizer.zero_grad(set_to_none=True)
            self.graph = torch.cuda.CUDAGraph()
            # NCCL looks at its own events in another thread meanwhile.
            mode = "global" if step.group.alone else "thread_local"
            # Captured kernels keep the priority of their stream; None: torch's own stream.
            priority = torch.cuda.current_stream(device).priority
            stream = kept_stream(device, "capture", priority) if priority else None
            with torch.cuda.graph(self.graph, pool, stream, mode):
                self._body()
        self.batches.at.zero_()

    def _body(self) -> None:
        set_rate(self.step.optimizer, self.batches.rate())
        loss = self.step(self.batches.part(), self.batch)
        self.losses.index_copy_(0, self.batches.number(), loss.view(1).to(self.losses.dtype))
        self.batches.at += 1

    def __call__(self, part: Part) -> None:
        if self.batches.images is not None:
            assert part.images is not None
            self.batches.images.copy_(part.images)
        self.graph.replay()

    def skip(self) -> None:
        """Leave out the next batch, which runs eagerly."""
        self.batches.at += 1


def host_random_state() -> tuple[object, ...]:
    """Return what changes whenever torch, numpy or Python draws a number on the host.

    A graph holds what the host did while it was captured: a layer that was skipped then by a draw
    on the host would be skipped in every step.
    """
    _, words, at, *gauss = np.random.get_state()
    drawn = torch.get_rng_state().numpy().tobytes()
    return drawn, random.getstate(), np.asarray(words).tobytes(), at, *gauss


def capture(
    step: Step, counts: dict[int, int], losses: Tensor, epochs: float
) -> dict[int, CapturedStep]:
    """Capture a step for each batch size in `counts`, with the batches of an epoch; by size.

    Returns none if steps cannot be captured, unless `graph` is on.
    """
    captured: dict[int, CapturedStep] = {}
    pool = None
    if step.config.graph == "off" or why_not(step.config, step.group):
        return captured
    try:
        for batch, capacity in counts.items():
            with kernel_search(capacity * epochs):
                captured[batch] = CapturedStep(step, batch, capacity, losses, pool)
            pool = captured[batch].graph.pool()
        return captured
    except RuntimeError as error:
        # Out of memory is one of the reasons: a graph holds its memory beside what is cached.
        if step.config.graph == "on":
            if isinstance(error, DrawsOnHost):
                raise graph_refused(str(error)) from None
            raise
        captured.clear()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        what = "steps run eagerly, they cannot be captured in a CUDA graph: %s"
        logger.warning(what, first_line(error))
        return {}


def graph_refused(reason: str) -> InvalidValueError:
    """Return the error for `graph` on where steps cannot be captured."""
    return InvalidValueError(f"graph cannot be on: {reason}", "use auto or off", "graph")


def why_not(config: TrainConfig, group: Group) -> str | None:
    """Return the reason why steps cannot be captured; None if they can."""
    if group.device.type != "cuda":
        return "there is no GPU"
    if not group.alone and not (config.graph == "on" and _only_sums(config)):
        return "several workers exchange gradients within a step"
    if config.delay:
        return "gradients are applied a step late"
    if config.precision == "fp16":
        return "fp16 inspects the gradients before each update"
    if config.batch_norm == "sync" and config.micro_batch is not None:
        return "activations are moved to the host"
    return None


def _only_sums(config: TrainConfig) -> bool:
    """Return whether workers do nothing within a step but sum their gradients with DDP and NCCL."""
    plain = config.engine == "ddp" and config.average_every == 1 and config.batch_norm != "sync"
    if not plain or config.compress != "none" or config.allreduce != "default":
        return False
    world: Any = torch.distributed.group.WORLD
    return bool(world._get_backend(torch.device("cuda")).name() == "nccl")
