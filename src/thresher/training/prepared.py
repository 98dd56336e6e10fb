"""The step of a run with all that it works on: made anew, or taken over from the run before."""

import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from thresher.data.pack import Pack
from thresher.device_check import is_tested
from thresher.distributed.group import Group
from thresher.models import batch_norm
from thresher.models.batch_norm_mode import for_batch
from thresher.models.registry import MODELS
from thresher.paths import RunPaths
from thresher.training import checkpoint
from thresher.training.config import TrainConfig
from thresher.training.device_data import DeviceData
from thresher.training.dynamics import EpochTable
from thresher.training.execution import free_device_memory, weight_dtype
from thresher.training.graph import CapturedStep, capture
from thresher.training.optimizers import make_optimizer, set_rate
from thresher.training.pruners import DynamicPruner
from thresher.training.rehearsal import rehearse
from thresher.training.resolved import Resolved
from thresher.training.sharing import Slot, shares_steps
from thresher.training.split import TrainingSplit
from thresher.training.step import Step
from thresher.training.step_check import check_step
from thresher.training.undo import forget_ghost_sums, optimizer_tensors

MAY_DIFFER = frozenset(
    (
        *("data", "selection", "seed", "threads", "max_restarts", "out", "resume", "log"),
        *("epochs", "budget", "lr", "base_batch", "lr_rule", "warmup_epochs", "schedule"),
        *("step_epochs", "poly_power", "evaluate_every", "target_loss", "target_accuracy"),
        *("checkpoint_every", "keep_checkpoint", "sharpness", "tensorboard"),
    )
)
"""Options that no captured step depends on; the data and the batches are compared otherwise."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Workload:
    """What a run trains on: opened and checked before the workers join."""

    pack: Pack
    split: TrainingSplit
    resolved: Resolved
    model: nn.Module
    """On the CPU."""
    pruner: DynamicPruner | None


class Prepared:
    """A step, the losses that it writes, and its captured forms by batch size (none: eager)."""

    key: tuple[object, ...] = ()
    """What a run must share to take it over."""

    def __init__(self, config: TrainConfig, group: Group, work: Workload) -> None:
        pruned = work.pruner is not None
        data = DeviceData(config, work.pack, work.split, group, weighted=pruned)
        model = _placed(config, group, work.model)
        optimizer = make_optimizer(model, config, work.resolved.peak_lr)
        per_sample = pruned or config.record_dynamics
        table = EpochTable(len(work.split.train), group) if per_sample else None
        self.step = Step(config, group, data, model, optimizer, table)
        n = math.ceil(work.resolved.samples / min(work.resolved.batches))
        self.losses = torch.zeros(n, device=group.device, dtype=weight_dtype(config))
        """Losses of an epoch's steps."""
        self.captured: dict[int, CapturedStep] = {}
        self.random = False
        """Whether captured steps draw random numbers on the device, as dropout does."""
        self._captured_micro: int | None = None
        self._taken_over = False

    def rehearse(self, resolved: Resolved) -> None:
        """Find the micro-batch and prepare the exchange, unless an earlier run did."""
        if not self._taken_over:
            rehearse(self.step, resolved)
            check_step(self.step, max(resolved.batches))

    def capture(self, resolved: Resolved) -> None:
        """Capture the step for every batch size of the run, unless an earlier run did."""
        if self._taken_over:
            return
        before = _generator_state(self.step.group)
        self.captured = capture(self.step, resolved.batch_counts(), self.losses, resolved.passes)
        self.random = not torch.equal(before, _generator_state(self.step.group))
        self._captured_micro = self.step.micro

    @property
    def reusable(self) -> bool:
        """Whether another run can take over the captured steps and end with the same weights."""
        config, step = self.step.config, self.step
        # Random numbers go on from where the steps before left them, warm-up included.
        drawn = self.random or config.noise_scale or config.batch_schedule == "noise"
        changed = step.micro != self._captured_micro
        # A function of the user's may keep state of its own.
        own = config.model in MODELS.built_in
        simple = step.group.alone and step.data.resident
        return bool(self.captured) and simple and own and not (drawn or changed)

    def restart(self, config: TrainConfig, group: Group, work: Workload) -> bool:
        """Set everything as at the start of another run, in place; return whether that works."""
        step, fresh = self.step, _placed(config, group, work.model)
        pairs = list(_pairs(step.model, fresh))
        if any(old.shape != new.shape or old.dtype != new.dtype for old, new in pairs):
            return False
        step.config, step.group, step.observer = config, group, None
        step.data.restart(work.split, config.seed)
        step.model.train()
        with torch.no_grad():
            for old, new in pairs:
                old.copy_(new)
            for value in optimizer_tensors(step.optimizer):
                value.zero_()
        step.optimizer.zero_grad(set_to_none=True)
        set_rate(step.optimizer, work.resolved.peak_lr)
        forget_ghost_sums(step.model)
        if step.table is not None:
            step.table.values.zero_()
        self.losses.zero_()
        self._taken_over = True
        return True


_prepared: Slot[Prepared] = Slot()


def prepare(config: TrainConfig, group: Group, work: Workload) -> Prepared:
    """Take over the step of the run before if it does the same; otherwise make one.

    Weights, state of the optimizer, labels, seed and rates are then set in place.
    """
    key, dropping = _key(config, group, work), bool(_prepared)
    kept = _prepared.take(key)
    # A checkpoint replaces the tensors of the optimizer, which a captured step refers to.
    resumes = any(RunPaths(Path(config.out)).checkpoints.glob(checkpoint.PATTERN))
    continues = resumes or config.branch_from is not None
    if kept is not None and not continues and kept.restart(config, group, work):
        logger.debug("reusing the captured steps of the previous run")
        return kept
    kept = None
    if dropping:
        free_device_memory(config)
    made = Prepared(config, group, work)
    made.key = key
    return made


def keep(prepared: Prepared) -> None:
    """Leave the step of a run that ended to the next one, inside `sharing(steps=True)`."""
    if shares_steps() and prepared.reusable:
        _prepared.put(prepared.key, prepared)


def _key(config: TrainConfig, group: Group, work: Workload) -> tuple[object, ...]:
    """Return what must be equal for a captured step to be the same."""
    options = config.to_dict()
    fixed = {name: value for name, value in options.items() if name not in MAY_DIFFER}
    counts, batches = work.resolved.batch_counts(), work.resolved.batches
    shapes = (work.resolved.samples, *counts.items(), *batches, work.pruner is not None)
    return (work.pack.identity, str(group.device), group.world, repr(fixed), shapes)


def _placed(config: TrainConfig, group: Group, model: nn.Module) -> nn.Module:
    """Convert the batch norm layers and move the network to the device, channels last."""
    if weight_dtype(config) == torch.float64:
        model = model.double()
    # A single worker that sees the whole batch at once needs no synchronisation.
    mode = for_batch(config.batch_norm, config.batch_size)
    if mode != "local" and not (mode == "sync" and group.alone):
        model = batch_norm.convert(model, mode)
    # Channels last is the layout of cuDNN's and oneDNN's kernels, and of the images in a pack.
    layout = torch.channels_last if is_tested(group.device) else torch.contiguous_format
    return model.to(device=group.device, memory_format=layout).train()  # type: ignore[call-overload]


def _pairs(old: nn.Module, new: nn.Module) -> "zip[tuple[Tensor, Tensor]]":
    """Return the parameters and buffers of two networks of one kind, side by side."""
    both = [[*model.parameters(), *model.buffers()] for model in (old, new)]
    return zip(*both, strict=True)


def _generator_state(group: Group) -> Tensor:
    if group.device.type != "cuda":
        return torch.empty(0)
    state: Any = torch.cuda.get_rng_state(group.device)
    return state
