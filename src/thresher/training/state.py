"""The whole state of a run, to and from a checkpoint, on the same or another number of workers."""

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from thresher.training.checkpoint import Checkpoint, pack_optimizer, unpack_optimizer
from thresher.training.dynamics import Dynamics
from thresher.training.result import TargetReached
from thresher.training.setup import Parts


@dataclass
class Progress:
    """How far a run is. All of it is JSON."""

    step: int = 0
    """Optimisation steps taken."""
    epoch: int = 0
    offset: int = 0
    """Samples of this epoch's order already trained on: the exact next sample."""
    samples: int = 0
    seconds: float = 0.0
    """Training time, evaluations not counted."""
    wall: float = 0.0
    epoch_loss: float = 0.0
    """Sum of the losses of this epoch's samples so far."""
    train_loss: float | None = None
    """Mean loss of the last whole epoch."""
    target: TargetReached | None = None
    """When the target was reached."""
    accuracy: float | None = None
    loss: float | None = None
    """Of the latest evaluation."""


def collect(
    progress: Progress,
    parts: Parts,
    dynamics: Dynamics | None,
    pruning: dict[str, Tensor],
) -> Checkpoint:
    """Every rank calls it; the result is whole on every rank (the first writes it).

    Costs one copy of every worker's own state (running statistics, error feedback) per rank.
    """
    step, group = parts.step, parts.step.group
    optimizer_tensors, plain = pack_optimizer(step.optimizer)
    tensors = {f"model.{name}": t for name, t in parts.model.state_dict().items()}
    tensors |= optimizer_tensors
    own = {f"buffer.{name}": buffer.cpu() for name, buffer in parts.model.named_buffers()}
    own |= {f"exchange.{name}": t.cpu() for name, t in step.parallel.state_dict().items()}
    for rank, theirs in enumerate(group.gather(own)):
        tensors |= {f"rank.{rank}.{name}": tensor for name, tensor in theirs.items()}
    if parts.table is not None:
        tensors["table"] = parts.table.summed()
    if dynamics is not None:
        for name, array in dynamics.state().items():
            tensors[f"dynamics.{name}"] = torch.from_numpy(array)
    tensors |= {f"pruner.{name}": tensor for name, tensor in pruning.items()}
    meta = {
        "progress": asdict(progress),
        "optimizer": plain,
        "workers": group.world,
        "noise": parts.noise.state() if parts.noise is not None else None,
        "scaler": step.scaler.state_dict(),
    }
    return Checkpoint(meta, tensors)


def restore(checkpoint: Checkpoint, parts: Parts, dynamics: Dynamics | None) -> Progress:
    """Put everything back but the pruner and the exchange, which are told apart (`mine`)."""
    step, group = parts.step, parts.step.group
    with torch.no_grad():
        state = checkpoint.part("model")
        for name, tensor in parts.model.state_dict().items():
            tensor.copy_(state[name])
        own = mine(checkpoint, group.rank, group.world)
        for name, buffer in parts.model.named_buffers():
            if f"buffer.{name}" in own:
                buffer.copy_(own[f"buffer.{name}"])
    unpack_optimizer(step.optimizer, checkpoint, checkpoint.meta["optimizer"])
    if parts.table is not None:
        parts.table.restore(checkpoint.tensors["table"])
    if dynamics is not None:
        arrays = checkpoint.part("dynamics")
        dynamics.restore({name: tensor.numpy() for name, tensor in arrays.items()})
    if parts.noise is not None and checkpoint.meta["noise"]:
        parts.noise.restore(checkpoint.meta["noise"])
    step.scaler.load_state_dict(checkpoint.meta["scaler"])
    progress = dict(checkpoint.meta["progress"])
    reached = progress.pop("target")
    return Progress(**progress, target=None if reached is None else TargetReached(**reached))


def mine(checkpoint: Checkpoint, rank: int, world: int) -> dict[str, Tensor]:
    """A worker's own tensors. On another number of workers: running statistics are the mean of
    what the workers had; the exchange's memory is dealt out by the exchange itself."""
    saved = checkpoint.meta["workers"]
    every = [checkpoint.part(f"rank.{r}") for r in range(saved)]
    if saved == world:
        return every[rank]
    names = [name for name in every[0] if not name.startswith("exchange.")]
    return {name: _mean([theirs[name] for theirs in every]) for name in names}


def exchange_states(checkpoint: Checkpoint) -> list[dict[str, Tensor]]:
    """What each worker's exchange (error feedback, PowerSGD) had saved, in rank order."""
    saved = checkpoint.meta["workers"]
    return [checkpoint.part(f"rank.{rank}.exchange") for rank in range(saved)]


def _mean(tensors: list[Tensor]) -> Tensor:
    if not tensors[0].is_floating_point():
        return tensors[0]
    return torch.stack(tensors).mean(0)
