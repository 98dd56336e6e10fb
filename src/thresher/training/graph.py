"""A whole training step in a CUDA graph: replayed without any work on the host.

The rows of an epoch's batches, their rates and the number of the step are tensors on the device;
the graph looks up its own inputs, writes its loss and counts on. Shapes are fixed in a graph, so
there is one for full batches and one for an epoch's last, smaller batch.
"""

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thresher.distributed.group import Group
from thresher.progress import say
from thresher.training.config import TrainConfig
from thresher.training.step import Part, Step, unchanged

WARM_UP = 3


class CapturedStep:
    """`begin` an epoch, then call it once per batch of this size."""

    def __init__(
        self, step: Step, batch: int, pieces: int, capacity: int, losses: Tensor, pool: Any
    ) -> None:
        """`capacity`: most batches of this size in an epoch; `losses`: where theirs are written;
        `pool`: the memory of another graph, to be shared."""
        device = step.device
        self.step, self.losses = step, losses
        self.rows = torch.arange(batch, device=device).repeat(capacity, 1)
        self.rates = torch.zeros(capacity, dtype=torch.float32, device=device)
        self.numbers = torch.zeros(capacity, dtype=torch.int64, device=device)
        self.at = torch.zeros(1, dtype=torch.int64, device=device)
        table = None if step.table is None else step.table.values.clone()
        with unchanged(step.model, step.optimizer):
            side = _side_stream(device)
            side.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(side):
                for _ in range(WARM_UP):
                    self.at.zero_()
                    self._body(batch, pieces)
            torch.cuda.current_stream(device).wait_stream(side)
            self.at.zero_()
            step.optimizer.zero_grad(set_to_none=True)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, pool=pool):
                self._body(batch, pieces)
        self.at.zero_()
        if table is not None and step.table is not None:
            step.table.values.copy_(table)

    def _body(self, count: int, pieces: int) -> None:
        # index_select, since indexing by a 0-d tensor would fetch it to the host.
        rows = self.rows.index_select(0, self.at).view(-1)
        self.step.set_rate(self.rates.index_select(0, self.at).view(()))
        loss = self.step(Part(rows), count, pieces)
        number = self.numbers.index_select(0, self.at)
        self.losses.index_copy_(0, number, loss.view(1).to(self.losses.dtype))
        self.at += 1

    def begin(self, rows: np.ndarray, rates: list[float], numbers: list[int]) -> None:
        """Of this epoch's batches still to come: (steps, batch) rows, a rate for each, and its
        number among the epoch's steps, which is the place of its loss."""
        n = len(rows)
        self.rows[:n].copy_(torch.from_numpy(rows))
        self.rates[:n].copy_(torch.tensor(rates, dtype=torch.float32))
        self.numbers[:n].copy_(torch.tensor(numbers))
        self.at.zero_()

    def __call__(self) -> None:
        self.graph.replay()

    def skip(self) -> None:
        """The next batch is run eagerly."""
        self.at += 1


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """For warming up. One for all runs of the process: cuBLAS keeps 65 MB for every stream that it
    ever saw, so a new one each time would look like a leak."""
    return torch.cuda.Stream(device)


def capture(
    step: Step, sizes: dict[int, int], pieces: dict[int, int], losses: Tensor, must: bool
) -> dict[int, CapturedStep]:
    """A captured step for each batch size, of which an epoch has so many (`sizes`), cut into so
    many `pieces`; none, and a word about it, where the step cannot be captured."""
    captured: dict[int, CapturedStep] = {}
    pool = None
    try:
        for batch, capacity in sizes.items():
            captured[batch] = CapturedStep(step, batch, pieces[batch], capacity, losses, pool)
            pool = captured[batch].graph.pool()
        return captured
    except RuntimeError as error:
        # Out of memory is one of the reasons: a graph holds its memory beside what is cached.
        if must:
            raise
        captured.clear()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        say(f"this step cannot be captured in a CUDA graph, it runs eagerly ({_first(error)})")
        return {}


def ruled_out(config: TrainConfig, group: Group) -> str:
    """Why steps cannot be captured, in a few words; empty where they can."""
    if group.device.type != "cuda":
        return "there is no GPU"
    if not group.alone:
        return "several workers reduce between backward pass and update"
    if config.delay:
        return "gradients are applied a step late"
    if config.precision == "fp16":
        return "fp16 looks at its gradients before each update"
    if config.batch_norm == "sync" and config.micro_batch:
        return "activations move to the host"
    return ""


def _first(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
