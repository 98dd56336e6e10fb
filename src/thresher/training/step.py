"""One training step: gather, augment, forward, backward, exchange, update.

The same code runs eagerly and captured in a CUDA graph; nothing in it waits for the device.
"""

import contextlib
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from thresher.distributed.group import Group
from thresher.errors import ThresherError
from thresher.models import batch_norm
from thresher.models.batch_norm_mode import alignment, for_batch, in_one_piece
from thresher.models.half_weights import half_forward, pays_off
from thresher.models.kernel_use import steps_are_captured
from thresher.training.batches import piece_count, slices
from thresher.training.config import TrainConfig
from thresher.training.device_data import DeviceData, Part
from thresher.training.dynamics import EpochTable
from thresher.training.exchange.base import ExchangeParts
from thresher.training.exchange.choose import make_gradient_exchange
from thresher.training.execution import autocast
from thresher.training.undo import buffers_kept, undone


class StepObserver(Protocol):
    """Measures gradients in the steps that it is attached to (`Step.observer`)."""

    def before_step(self, step: "Step", part: Part, count: int) -> None: ...

    def after_first_piece(self, step: "Step", samples: int, count: int) -> None:
        """Called when the parameters hold the gradient of the first of several pieces."""

    def after_gradients(self, step: "Step", count: int) -> None:
        """Called when the parameters hold the gradient of the global batch."""


class Objective(nn.Module):
    """The network and its loss as one module, for DDP and torch.compile."""

    def __init__(
        self, model: nn.Module, label_smoothing: float, per_sample: bool, alone: bool = False
    ) -> None:
        super().__init__()
        self.model, self.label_smoothing, self.per_sample = model, label_smoothing, per_sample
        # Gradients that are cast together cannot be exchanged while others are computed.
        self.casts_together = alone and pays_off(model)
        # Torch's batch norm and reshape(n, -1) do not accept an empty batch, but statistics of all
        # workers need every worker.
        synced = (isinstance(module, batch_norm.SyncBatchNorm) for module in model.modules())
        self.runs_empty = any(synced)
        self._accepts_empty: bool | None = None

    def forward(
        self, images: Tensor, labels: Tensor, weights: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the sum of the weighted losses, the losses (n,) and the logits (n, classes).

        Without `per_sample` the last two are empty. An empty batch gives a zero that depends on
        every parameter, so that each has a gradient.
        """
        if len(images) == 0 and not self.runs_empty:
            zero = torch.stack([p.sum() * 0 for p in self.parameters()]).sum()
            return zero, images.new_empty(0), images.new_empty(0)
        if len(images) == 0 and not self.accepts_empty(images):
            with batch_norm.standing_in(self.model):
                logits = self.model(images.new_zeros(1, *images.shape[1:]))
            return logits.sum() * 0, images.new_empty(0), images.new_empty(0)
        logits = self._logits(images)
        reduction, smoothing = "none" if self.per_sample else "sum", self.label_smoothing
        losses = F.cross_entropy(logits, labels, reduction=reduction, label_smoothing=smoothing)
        if not self.per_sample:
            return losses, losses.new_empty(0), losses.new_empty(0)
        weighted = losses if weights is None else losses * weights
        return weighted.sum(), losses.detach(), logits.detach()

    def _logits(self, images: Tensor) -> Tensor:
        """Return the logits (n, classes), in float32 at least."""
        half = torch.is_autocast_enabled(images.device.type)
        if self.casts_together and half and steps_are_captured():
            return half_forward(self.model, images).float()
        logits: Tensor = self.model(images)
        return logits if images.dtype == torch.float64 else logits.float()

    def accepts_empty(self, images: Tensor) -> bool:
        """Return whether the network runs on an empty batch: tried once, in evaluation mode."""
        if self._accepts_empty is None:
            modes = {module: module.training for module in self.model.modules()}
            try:
                self.model.eval()(images)
                self._accepts_empty = True
            except Exception:  # whatever a network of the user's raises
                self._accepts_empty = False
            finally:
                for module, mode in modes.items():
                    module.training = mode
        return self._accepts_empty


class Step:
    """Trains on one global batch when called; `table` receives the loss of each sample."""

    def __init__(
        self,
        config: TrainConfig,
        group: Group,
        data: DeviceData,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        table: EpochTable | None,
    ) -> None:
        self.config, self.group, self.data = config, group, data
        self.model, self.optimizer, self.table = model, optimizer, table
        alone = group.alone and not config.compile
        objective = Objective(model, config.label_smoothing, table is not None, alone)
        compiled: Any = torch.compile(objective) if config.compile else objective
        self.exchange = make_gradient_exchange(
            ExchangeParts(compiled, model, optimizer, config, group, config.graph == "on")
        )
        self.align = alignment(for_batch(config.batch_norm, config.batch_size))
        self.scaler = torch.amp.GradScaler(group.device.type, enabled=config.precision == "fp16")
        self.micro: int | None = None
        """Most samples on the device at once: gradients of the pieces of a part are accumulated."""
        self.observer: StepObserver | None = None

    def __call__(self, part: Part, count: int) -> Tensor:
        """Train on this worker's part of `count` samples; return its share of the mean loss."""
        if self.observer is not None:
            self.observer.before_step(self, part, count)
        loss = self.gradients(part, count)
        if self.scaler.is_enabled():
            self.scaler.unscale_(self.optimizer)
        if self.observer is not None:
            self.observer.after_gradients(self, count)
        self.update(len(part.rows))
        return loss

    def pieces(self, count: int) -> int:
        """Return how many pieces each worker cuts its part of a batch into."""
        return piece_count(count, self.group.world, self.micro, self.align)

    def gradients(self, part: Part, count: int) -> Tensor:
        """Leave the gradient of the global mean loss in the parameters; return the loss.

        In fp16 it is multiplied by the loss scale. A rehearsal, which no update follows, calls this
        several times, but gradients are unscaled once for each update.
        """
        self.optimizer.zero_grad(set_to_none=True)
        if self.scaler.is_enabled():
            one = torch.ones((), device=self.group.device)
            self.exchange.set_loss_scale(self.scaler.scale(one))
        loss = self._pieces(part, slice(0, len(part.rows)), count, self.pieces(count))
        self.exchange.after_backward()
        return loss

    def update(self, samples: int) -> None:
        """Apply the gradients of a step in which this worker had `samples` samples."""
        if self.exchange.before_update():
            if self.scaler.is_enabled():
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                self.optimizer.step()
        self.exchange.after_update(samples)
        batch_norm.update_running_statistics(self.model)

    def finish(self) -> None:
        """Apply what is still under way after the last step."""
        if self.exchange.flush():
            self.optimizer.step()

    def probe(self, part: Part, rows: slice, count: int, pieces: int) -> None:
        """Leave this worker's gradient of some rows of a part in the parameters, and only that.

        Nothing is exchanged. If `count` is the number of such rows on all workers, the sum over
        the workers is their mean gradient.
        """
        table, observer = self.table, self.observer
        self.table = self.observer = None
        try:
            with buffers_kept(self.model), self.exchange.no_sync():
                self.optimizer.zero_grad(set_to_none=True)
                self._pieces(part, rows, count, pieces)
        finally:
            self.table, self.observer = table, observer

    def undone(self) -> AbstractContextManager[None]:
        """Return a context after which model, optimizer and table are as before."""
        others = [] if self.table is None else [self.table.values]
        return undone(self.model, self.optimizer, *others)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context of forward passes."""
        return autocast(self.config, self.group.device)

    def _pieces(self, part: Part, rows: slice, count: int, pieces: int) -> Tensor:
        """Add up the gradients of some rows of a part, piece by piece; return the loss."""
        loss = torch.zeros((), device=self.group.device, dtype=self.data.augment.dtype)
        offload = in_one_piece(self.config.batch_norm) and pieces > 1
        if offload:
            # Statistics of the whole batch at every layer need all pieces at that layer at once.
            pieces = 1
        with batch_norm.offload_saved_tensors(self.group.device, enabled=offload):
            cuts = slices(rows.stop - rows.start, pieces, self.align)
            for number, (begin, end) in enumerate(cuts):
                last = number == pieces - 1
                with contextlib.nullcontext() if last else self.exchange.no_sync():
                    loss += self._piece(part, rows.start + begin, rows.start + end, count)
                if self.observer is not None and number == 0 and not last:
                    self.observer.after_first_piece(self, end - begin, count)
        return loss

    def _piece(self, part: Part, begin: int, end: int, count: int) -> Tensor:
        images, labels, weights = self.data.inputs(part, slice(begin, end))
        try:
            with self.autocast():
                total, losses, logits = self.exchange(images, labels, weights)
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise ThresherError(
                "batch norm received a single sample, which has no variance",
                "choose another `batch_size`, or `batch_norm` sync",
            ) from error
        divisor = len(part.rows) if self.exchange.local_loss else count
        self.scaler.scale(total / max(1, divisor)).backward()
        if self.table is not None and len(losses):
            self.table.note(part.rows[begin:end], labels, losses, logits)
        return total.detach() / count
