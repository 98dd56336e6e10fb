"""One training step, the same code whether it runs eagerly or is captured in a CUDA graph:
gather, augment, forward, backward, reduce, update. Nothing in it waits for the device."""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from thresher.data.augment import Augment
from thresher.data.loader import Loader
from thresher.distributed.group import Group
from thresher.errors import ThresherError
from thresher.models import batch_norm
from thresher.training import optimizers
from thresher.training.config import TrainConfig, ghost_size
from thresher.training.epoch_table import EpochTable
from thresher.training.noise_scale import NoiseScale, squared_norm
from thresher.training.objective import Objective
from thresher.training.parallel import Parallel
from thresher.training.parts import bounds

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class Part:
    """This worker's share of a global batch."""

    rows: Tensor
    """(n,) int64 on the device: where the samples stand in the loader."""
    images: Tensor | None = None
    """(n, height, width, channels) uint8 where they are streamed; None: resident."""


class Step:
    """Holds what a step needs; on a GPU `epoch` and the rate are tensors, set from outside."""

    def __init__(
        self,
        config: TrainConfig,
        group: Group,
        loader: Loader,
        augment: Augment,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        table: EpochTable | None,
        noise: NoiseScale | None,
    ) -> None:
        self.config, self.group, self.device = config, group, group.device
        self.loader, self.augment, self.model, self.optimizer = loader, augment, model, optimizer
        self.table, self.noise = table, noise
        self.objective = Objective(model, config.label_smoothing, per_sample=table is not None)
        inner: Any = torch.compile(self.objective) if config.compile else self.objective
        self.parallel = Parallel(inner, model, optimizer, config, group)
        if noise is not None and not group.alone and not self.parallel.by_ddp:
            raise ThresherError(
                "the noise scale is measured where DDP reduces",
                "leave out --noise-scale, or --average-every, --delay and --engine horovod",
            )
        self.weights: Tensor | None = None
        self.ghost = ghost_size(config.batch_norm)
        on_gpu = self.device.type == "cuda"
        self.epoch: Any = torch.zeros((), dtype=torch.int64, device=self.device) if on_gpu else 0
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=config.precision == "fp16")

    def set_epoch(self, epoch: int) -> None:
        if isinstance(self.epoch, Tensor):
            self.epoch.fill_(epoch)
        else:
            self.epoch = epoch

    def set_rate(self, rate: float | Tensor) -> None:
        """`rate` may be a tensor on the device where the optimiser's is: then nothing waits."""
        if not isinstance(rate, Tensor):
            optimizers.set_rate(self.optimizer, rate)
            return
        for group in self.optimizer.param_groups:
            group["lr"].copy_(rate)

    def __call__(self, part: Part, count: int, pieces: int, measure: bool = False) -> Tensor:
        """Train on a global batch of `count` samples; this worker's share of the mean loss (0-d).

        `measure`: take the norms for the noise scale as well.
        """
        if measure and self.noise is not None and not self.parallel.by_ddp and pieces == 1:
            self._measure_half(part)
        loss = self.gradients(part, count, pieces, measure)
        if measure and self.noise is not None:
            self.noise.big(squared_norm(self.model), count)
        self.update(len(part.rows))
        return loss

    def gradients(self, part: Part, count: int, pieces: int, measure: bool = False) -> Tensor:
        """Leave the gradient of the global mean loss in the parameters."""
        self.optimizer.zero_grad(set_to_none=True)
        listening = measure and self.noise is not None
        n = len(part.rows)
        loss = torch.zeros((), device=self.device, dtype=self.augment.dtype)
        offload = batch_norm.in_one_piece(self.config.batch_norm) and pieces > 1
        if offload:
            # Statistics of the whole batch at every layer need all pieces at that layer at once.
            pieces = 1
        unscaled = 1.0 / self.scaler.get_scale() ** 2 if listening else 1.0
        if listening and self.noise is not None and self.parallel.by_ddp:
            scale = (count / n) ** 2 * unscaled if n else 0.0
            self.parallel.listen(self.noise, scale, count / self.group.world)
        with batch_norm.spill(self.device) if offload else contextlib.nullcontext():
            for number, (begin, end) in enumerate(bounds(n, pieces, self.ghost)):
                last = number == pieces - 1
                with contextlib.nullcontext() if last else self.parallel.no_sync():
                    loss += self._piece(part, begin, end, count)
                if listening and self.noise is not None and self.group.alone and number == 0:
                    small = end - begin
                    if pieces > 1 and small:
                        scale = (count / small) ** 2 * unscaled
                        self.noise.small(squared_norm(self.model) * scale, small)
        self.parallel.after_backward()
        if self.scaler.is_enabled():
            self.scaler.unscale_(self.optimizer)
        return loss

    def update(self, samples: int) -> None:
        """Apply the gradients of a step that had `samples` on this worker."""
        if self.parallel.before_update():
            if self.scaler.is_enabled():
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                self.optimizer.step()
        self.parallel.after_update(samples)
        batch_norm.finish_step(self.model)

    def finish(self) -> None:
        """After the last step: apply what is still under way."""
        if self.parallel.flush():
            self.optimizer.step()

    def autocast(self) -> AbstractContextManager[Any]:
        dtype = _AUTOCAST.get(self.config.precision)
        if dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=dtype)

    def _piece(self, part: Part, begin: int, end: int, count: int) -> Tensor:
        rows = part.rows[begin:end]
        keys, labels = self.loader.keys[rows], self.loader.labels[rows]
        if part.images is None:
            assert self.loader.images is not None
            images = self.augment(self.loader.images, keys, self.epoch, self.config.seed, rows=rows)
        else:
            images = self.augment(part.images[begin:end], keys, self.epoch, self.config.seed)
        weights = None if self.weights is None else self.weights[rows]
        try:
            with self.autocast():
                total, losses, logits = self.parallel(images, labels, weights)
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise ThresherError(
                "batch norm got a part of one sample, which has no variance",
                "choose another --batch-size, or --batch-norm sync",
            ) from error
        shared = len(part.rows) if self.parallel.local else count
        self.scaler.scale(total / max(1, shared)).backward()
        if self.table is not None and len(losses):
            self.table.note(rows, labels, losses, logits)
        return total.detach() / count

    def _measure_half(self, part: Part) -> None:
        """One worker and one piece: the small batch is the first half, run once more beside the
        step; the step itself is not changed by it."""
        assert self.noise is not None
        half = bounds(len(part.rows), 2, self.ghost)[0][1]
        if half == 0 or half == len(part.rows):
            return
        table, self.table = self.table, None
        with buffers_kept(self.model):
            self.optimizer.zero_grad(set_to_none=True)
            self._piece(part, 0, half, half)
            self.noise.small(squared_norm(self.model) / self.scaler.get_scale() ** 2, half)
        self.table = table


@contextlib.contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """Undo, in place, what the block does to the model's buffers (running statistics)."""
    before = [buffer.clone() for buffer in model.buffers()]
    try:
        yield
    finally:
        _put_back(model, before)


@contextlib.contextmanager
def buffers_kept_on_error(model: nn.Module) -> Iterator[None]:
    """The same, only where the block fails."""
    before = [buffer.clone() for buffer in model.buffers()]
    try:
        yield
    except BaseException:
        _put_back(model, before)
        raise


def _put_back(model: nn.Module, before: list[Tensor]) -> None:
    with torch.no_grad():
        for buffer, value in zip(model.buffers(), before, strict=True):
            buffer.copy_(value)
    _forget(model)


@contextlib.contextmanager
def unchanged(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """A rehearsal: parameters, buffers and the optimiser's state are put back, in place, after it.

    State that the optimiser made meanwhile is set to zero, which is where momenta and counters
    begin; their memory stays, so a captured graph may refer to it.
    """
    tensors = [*model.parameters(), *model.buffers()]
    before = [tensor.detach().clone() for tensor in tensors]
    state = {id(value): value.clone() for value in _held(optimizer)}
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)
            for value in _held(optimizer):
                if id(value) in state:
                    value.copy_(state[id(value)])
                else:
                    value.zero_()
        optimizer.zero_grad(set_to_none=True)
        _forget(model)


def _forget(model: nn.Module) -> None:
    """Ghost batch norm sums up what a step saw until its end; here a step did not come to it."""
    for module in model.modules():
        if isinstance(module, batch_norm.GhostBatchNorm):
            module.seen_here().zero_()


def _held(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Every tensor of the optimiser's state; LAMB counts its steps in the groups."""
    owners = [*optimizer.state.values(), *optimizer.param_groups]
    return [v for owner in owners for v in owner.values() if isinstance(v, Tensor)]
