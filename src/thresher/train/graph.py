"""A whole training step in a CUDA graph: replayed without any work on the host.

The rows of an epoch's batches, their rates and the number of the step are tensors on the device;
the graph looks up its own inputs, writes its loss and counts on. Only full batches are replayed:
an epoch's last, smaller one runs eagerly.
"""

import numpy as np
import torch
from torch import Tensor

from thresher.progress import say
from thresher.train.step import Part, Step, unchanged

WARM_UP = 3


class CapturedStep:
    """`begin` an epoch, then call it once per full batch."""

    def __init__(self, step: Step, batch: int, pieces: int, losses: Tensor) -> None:
        """`losses`: (most steps in an epoch,), where each step writes its own."""
        device = step.device
        self.step, self.losses = step, losses
        self.rows = torch.zeros((len(losses), batch), dtype=torch.int64, device=device)
        self.rates = torch.zeros(len(losses), dtype=torch.float32, device=device)
        self.at = torch.zeros(1, dtype=torch.int64, device=device)
        self.rows[:] = torch.arange(batch, device=device)
        table = None if step.table is None else step.table.values.clone()
        with unchanged(step.model, step.optimizer):
            side = torch.cuda.Stream(device)
            side.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(side):
                for _ in range(WARM_UP):
                    self.at.zero_()
                    self._body(batch, pieces)
            torch.cuda.current_stream(device).wait_stream(side)
            self.at.zero_()
            step.optimizer.zero_grad(set_to_none=True)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self._body(batch, pieces)
        self.at.zero_()
        if table is not None and step.table is not None:
            step.table.values.copy_(table)

    def _body(self, count: int, pieces: int) -> None:
        rows = self.rows.index_select(0, self.at).view(-1)
        self.step.set_rate(self.rates.index_select(0, self.at).view(()))
        loss = self.step(Part(rows), count, pieces)
        self.losses.index_copy_(0, self.at, loss.view(1).to(self.losses.dtype))
        self.at += 1

    def begin(self, rows: np.ndarray, rates: list[float]) -> None:
        """(steps, batch) rows of this epoch's full batches still to come, and a rate for each."""
        n = len(rows)
        self.rows[:n].copy_(torch.from_numpy(np.ascontiguousarray(rows)))
        self.rates[:n].copy_(torch.tensor(rates, dtype=torch.float32))
        self.at.zero_()

    def __call__(self) -> None:
        self.graph.replay()

    def skip(self) -> None:
        """The next batch was run eagerly."""
        self.at += 1


def capture(step: Step, batch: int, pieces: int, losses: Tensor, must: bool) -> CapturedStep | None:
    """The captured step; None, and a word about it, where the step cannot be captured."""
    try:
        return CapturedStep(step, batch, pieces, losses)
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if must:
            raise
        torch.cuda.synchronize()
        say(f"this step cannot be captured in a CUDA graph, it runs eagerly ({_first(error)})")
        return None


def possible(step: Step) -> str:
    """Why the step cannot be captured, in a few words; empty where it can."""
    if step.device.type != "cuda":
        return "there is no GPU"
    if not step.group.alone:
        return "several workers reduce between backward pass and update"
    if step.loader.images is None:
        return "the data does not fit on the device"
    if step.scaler.is_enabled():
        return "fp16 looks at its gradients before each update"
    if step.config.batch_norm == "sync" and step.config.micro_batch:
        return "activations move to the host"
    return ""


def _first(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
