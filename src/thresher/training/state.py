"""The state of a run, to and from a checkpoint, on the same or another number of workers."""

from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor

from thresher.training.checkpoint import Checkpoint, pack_optimizer, unpack_optimizer
from thresher.training.dynamics import Dynamics
from thresher.training.epoch_samples import EpochSamples
from thresher.training.noise_scale import NoiseScale
from thresher.training.step import Step
from thresher.training.target import TargetReached


@dataclass
class Progress:
    """How far a run is."""

    step: int = 0
    """Optimizer steps taken."""
    epoch: int = 0
    offset: int = 0
    """Samples of this epoch's order that were trained on: the exact next sample."""
    samples: int = 0
    seconds: float = 0.0
    """Training time, evaluations not counted."""
    wall: float = 0.0
    epoch_loss: float = 0.0
    """Sum of the losses of this epoch's samples so far."""
    train_loss: float | None = None
    """Mean loss of the last whole epoch."""
    target: TargetReached | None = None
    accuracy: float | None = None
    loss: float | None = None
    """Of the latest evaluation."""


@dataclass
class RunState:
    """Everything that a checkpoint holds."""

    step: Step
    """Model, optimizer, exchange, and the table of this epoch's samples."""
    samples: EpochSamples
    dynamics: Dynamics | None
    noise: NoiseScale | None
    progress: Progress = field(default_factory=Progress)

    def to_checkpoint(self) -> Checkpoint:
        """Collect the state; every rank calls it and gets all of it.

        Costs a copy of every worker's own state (running statistics, error feedback) per rank.
        """
        step, model = self.step, self.step.model
        optimizer_tensors, plain = pack_optimizer(step.optimizer)
        tensors = {f"model.{name}": t for name, t in model.state_dict().items()}
        tensors |= optimizer_tensors
        own = {f"buffer.{name}": buffer.cpu() for name, buffer in model.named_buffers()}
        own |= {f"exchange.{name}": t.cpu() for name, t in step.exchange.state_dict().items()}
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
            "noise": self.noise.state() if self.noise is not None else None,
            "scaler": step.scaler.state_dict(),
        }
        return Checkpoint(meta, tensors)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Set everything from a checkpoint, in place."""
        step, group = self.step, self.step.group
        with torch.no_grad():
            saved = checkpoint.part("model")
            for name, tensor in step.model.state_dict().items():
                tensor.copy_(saved[name])
            own = _own_tensors(checkpoint, group.rank, group.world)
            for name, buffer in step.model.named_buffers():
                if f"buffer.{name}" in own:
                    buffer.copy_(own[f"buffer.{name}"])
        unpack_optimizer(step.optimizer, checkpoint, checkpoint.meta["optimizer"])
        workers = range(checkpoint.meta["workers"])
        step.exchange.load_state_dicts([checkpoint.part(f"rank.{r}.exchange") for r in workers])
        step.scaler.load_state_dict(checkpoint.meta["scaler"])
        if step.table is not None:
            step.table.restore(checkpoint.tensors["table"])
        if self.dynamics is not None:
            arrays = checkpoint.part("dynamics")
            self.dynamics.restore({name: tensor.numpy() for name, tensor in arrays.items()})
        if self.noise is not None and checkpoint.meta["noise"]:
            self.noise.restore(checkpoint.meta["noise"])
        self.samples.restore({n: t.numpy() for n, t in checkpoint.part("pruner").items()})
        values = dict(checkpoint.meta["progress"])
        reached = values.pop("target")
        target = None if reached is None else TargetReached(**reached)
        self.progress = Progress(**values, target=target)


def _own_tensors(checkpoint: Checkpoint, rank: int, world: int) -> dict[str, Tensor]:
    """Return a worker's own tensors.

    On another number of workers the running statistics are the mean of the saved ones.
    """
    saved = checkpoint.meta["workers"]
    every = [checkpoint.part(f"rank.{r}") for r in range(saved)]
    if saved == world:
        return every[rank]
    names = [name for name in every[0] if not name.startswith("exchange.")]
    return {name: _mean([theirs[name] for theirs in every]) for name in names}


def _mean(tensors: list[Tensor]) -> Tensor:
    if not tensors[0].is_floating_point():
        return tensors[0]
    return torch.stack(tensors).mean(0)
