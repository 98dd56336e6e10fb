"""The state of a run, to and from a checkpoint, on the same or another number of workers."""

import time
from dataclasses import asdict, dataclass, field, replace

import torch
from torch import Tensor

from thresher.distributed.exchange import part
from thresher.distributed.group import Group
from thresher.paths import RunPaths
from thresher.training import checkpoint
from thresher.training.checkpoint import Checkpoint, pack_optimizer, unpack_optimizer
from thresher.training.dynamics import Dynamics
from thresher.training.epochs import EpochSamples, Progress
from thresher.training.noise_estimate import NoiseEstimate
from thresher.training.noise_observer import NoiseObserver
from thresher.training.optimizers import set_rate
from thresher.training.result import TargetReached
from thresher.training.step import Step

SAVE_EVERY_S = 60.0
FP16 = "fp16"
SCALER = ("scale", "_growth_tracker")
"""What changes in the state of a gradient scaler."""


@dataclass
class RunState:
    """Everything that a checkpoint holds."""

    step: Step
    """Model, optimizer, exchange, and the table of this epoch's samples."""
    samples: EpochSamples
    dynamics: Dynamics | None
    noise: NoiseObserver | None
    progress: Progress = field(default_factory=Progress)

    def end_epoch(self, epoch_size: int) -> None:
        """Give the losses of the samples to the pruner and the dynamics, and count the epoch."""
        done, table, seen = self.progress, self.step.table, None
        if table is not None:
            seen = table.summed().numpy()
            table.values.zero_()
        if self.dynamics is not None and seen is not None:
            self.dynamics.end_epoch(done.epoch, seen)
        self.samples.end_epoch(seen)
        if self.noise is not None:
            self.noise.settle()
        done.train_loss = done.epoch_loss / max(1, min(epoch_size, done.offset))
        done.epoch, done.offset, done.epoch_loss = done.epoch + 1, 0, 0.0

    def to_checkpoint(self) -> Checkpoint:
        """Collect the state; every rank calls it and gets that of all workers."""
        step, model = self.step, self.step.model
        optimizer_tensors, plain = pack_optimizer(step.optimizer)
        tensors = {f"model.{name}": t for name, t in model.state_dict().items()}
        tensors |= optimizer_tensors
        own = {f"buffer.{name}": buffer.cpu() for name, buffer in model.named_buffers()}
        own |= {f"exchange.{name}": t.cpu() for name, t in step.exchange.state_dict().items()}
        own |= {f"{FP16}.{name}": t for name, t in _fp16_state(step, optimizer_tensors).items()}
        for rank, theirs in enumerate(step.group.gather(own)):
            tensors |= {f"rank.{rank}.{name}": tensor for name, tensor in theirs.items()}
        if step.table is not None:
            tensors["table"] = step.table.summed()
        if self.dynamics is not None:
            for name, array in self.dynamics.state().items():
                tensors[f"dynamics.{name}"] = torch.from_numpy(array)
        for name, array in self.samples.state().items():
            tensors[f"pruner.{name}"] = torch.from_numpy(array)
        meta = {
            "progress": asdict(self.progress),
            "optimizer": plain,
            "workers": step.group.world,
            "noise": asdict(self.noise.estimate) if self.noise is not None else None,
            "scaler": step.scaler.state_dict(),
            "pruned": self.samples.pruner is not None,
        }
        return Checkpoint(meta, tensors)

    def restore(self, saved: Checkpoint) -> None:
        """Set everything from a checkpoint, in place."""
        step, group = self.step, self.step.group
        with torch.no_grad():
            weights = saved.part("model")
            for name, tensor in step.model.state_dict().items():
                tensor.copy_(weights[name])
            own = _own_tensors(saved, group.rank, group.world)
            for name, buffer in step.model.named_buffers():
                if f"buffer.{name}" in own:
                    buffer.copy_(own[f"buffer.{name}"])
        skipped = part(own, FP16)
        scaler = {key: skipped.pop(key).item() for key in SCALER if key in skipped}
        saved = replace(saved, tensors={**saved.tensors, **skipped})
        unpack_optimizer(step.optimizer, saved, saved.meta["optimizer"])
        workers = range(saved.meta["workers"])
        step.exchange.load_state_dicts([saved.part(f"rank.{r}.exchange") for r in workers])
        step.scaler.load_state_dict({**saved.meta["scaler"], **scaler})
        if step.table is not None:
            step.table.restore(saved.tensors["table"])
        if self.dynamics is not None:
            arrays = saved.part("dynamics")
            self.dynamics.restore({name: tensor.numpy() for name, tensor in arrays.items()})
        if self.noise is not None and saved.meta["noise"]:
            self.noise.estimate = NoiseEstimate.restored(saved.meta["noise"])
        self.samples.restore({n: t.numpy() for n, t in saved.part("pruner").items()})
        self.progress = Progress(**saved.meta["progress"])
        if self.progress.target is not None:
            self.progress.target = TargetReached(**saved.meta["progress"]["target"])
        if self.progress.rate is not None:
            set_rate(step.optimizer, self.progress.rate)


class Saver:
    """Writes checkpoints every `every` steps, or by default once a minute."""

    def __init__(self, paths: RunPaths, group: Group, every: int | None) -> None:
        self.folder, self.group, self.every = paths.checkpoints, group, every
        self._saved_at = time.monotonic()

    def falls_on(self, step: int) -> bool:
        return self.every is not None and step % self.every == 0

    def is_due(self, step: int) -> bool:
        """Return whether this worker wants a checkpoint now."""
        late = self.group.first and time.monotonic() - self._saved_at > SAVE_EVERY_S
        return self.falls_on(step) or (self.every is None and late)

    def save(self, state: RunState) -> None:
        """Write a checkpoint; every rank calls it, rank 0 writes."""
        if state.noise is not None:
            state.noise.settle()
        taken = state.to_checkpoint()
        step = state.progress.step
        self.group.on_first(lambda: str(checkpoint.write(self.folder, step, taken)))
        self._saved_at = time.monotonic()

    def resume(self, state: RunState) -> bool:
        """Restore the newest checkpoint of the folder; return whether there is one."""
        if not self.group.on_first(lambda: any(self.folder.glob(checkpoint.PATTERN))):
            return False
        taken = checkpoint.newest(self.folder)
        assert taken is not None
        state.restore(taken)
        return True


def _own_tensors(saved: Checkpoint, rank: int, world: int) -> dict[str, Tensor]:
    """Return a worker's own tensors; for another number of workers, means of running statistics."""
    every = [saved.part(f"rank.{r}") for r in range(saved.meta["workers"])]
    if len(every) == world:
        return every[rank]
    return {
        name: torch.stack([t[name] for t in every]).mean(0) if first.is_floating_point() else first
        for name, first in every[0].items()
        if not name.startswith(("exchange.", f"{FP16}."))
    }


def _fp16_state(step: Step, optimizer: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the loss scale and the optimizer's counts of steps, which are this worker's own.

    With local SGD a worker skips the steps whose gradients overflow on it, and the others do not.
    """
    if not step.scaler.is_enabled() or step.group.alone:
        return {}
    state = step.scaler.state_dict()
    scaler = {key: torch.tensor(state[key], dtype=torch.float64) for key in SCALER}
    return scaler | {name: t.cpu() for name, t in optimizer.items() if not t.ndim}
