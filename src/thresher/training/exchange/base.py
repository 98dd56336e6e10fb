"""The contract between a training step and the way workers exchange what they learned."""

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thresher.distributed.names import AllReduce, Compress, Engine
from thresher.effect import MANY
from thresher.options import option

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from thresher.distributed.group import Group


@dataclass(frozen=True, kw_only=True)
class ExchangeConfig:
    """What workers send each other, and how."""

    engine: Engine = option("ddp", only_with={"workers": MANY})
    """What reduces the gradients."""
    compress: Compress = option("none", only_with={"workers": MANY})
    """Compression of the gradients that are sent to other workers."""
    allreduce: AllReduce = option("default", changes_result=False, only_with={"workers": MANY})
    """Algorithm of the all-reduce."""
    bucket_mb: float = option(
        25.0,
        gt=0,
        changes_result=False,
        only_with={"workers": MANY, "engine": ("ddp",), "average_every": (1,), "delay": False},
    )
    """Size of DDP's gradient buckets in MiB."""
    average_every: int = option(1, ge=1, only_with={"workers": MANY})
    """Local SGD: average weights every N steps instead of gradients in every step."""
    delay: int = option(0, ge=0, le=1)
    """1: apply gradients one step late, so that their reduction overlaps the next step."""


@dataclass(frozen=True)
class ExchangeParts:
    """What an exchange works on."""

    objective: Any
    """Callable of (images, labels, weights): the network and its loss, perhaps compiled."""
    model: "nn.Module"
    optimizer: "torch.optim.Optimizer"
    config: ExchangeConfig
    group: "Group"
    captured: bool = False
    """Whether steps will be captured in a CUDA graph, which DDP has to be built for."""


class GradientExchange:
    """How workers combine their gradients (or weights); this base class is for one worker.

    A training step calls, in this order:

        for each piece of the batch:
            with exchange.no_sync():      # not for the last piece
                exchange(images, labels, weights)…backward()
        exchange.after_backward()         # parameters now hold the gradient of the global batch
        if exchange.before_update():      # False if no gradient has arrived yet
            optimizer.step()
        exchange.after_update(samples)

    and after the last step of the run `flush`. Each worker's loss is divided by the global number
    of samples, so the sum of the gradients is the gradient of the global mean, however unevenly
    the batch was cut (see `local_loss`).
    """

    rehearsals = 0
    """Backward passes to run and undo before `prepare`."""
    local_loss = False
    """Divide the loss by the worker's own number of samples: gradients are not summed."""
    observable = True
    """Whether the gradient before the exchange can be observed (`observe`, or one worker)."""

    def __init__(self, parts: ExchangeParts) -> None:
        self.parts = parts
        self.module = parts.objective

    def __call__(self, images: "Tensor", labels: "Tensor", weights: "Tensor | None") -> Any:
        return self.module(images, labels, weights)

    def prepare(self) -> None:
        """Set up the exchange; called once, after the rehearsals and before the first step."""

    def no_sync(self) -> AbstractContextManager[Any]:
        """Return a context in which backward passes accumulate gradients without exchanging."""
        return contextlib.nullcontext()

    def observe(self, listener: "Callable[[Tensor], None]") -> None:
        """Give `listener` the squared norm (0-d) of this worker's gradient in the next exchange."""
        raise NotImplementedError

    def set_loss_scale(self, scale: "Tensor") -> None:
        """Say what the loss of the next backward passes is multiplied by, 0-d."""

    def after_backward(self) -> None:
        """Wait until the parameters hold the exchanged gradients."""

    def before_update(self) -> bool:
        """Return whether there is a gradient to apply."""
        return True

    def after_update(self, samples: int) -> None:
        """Called after the update of a step in which this worker had `samples` samples."""

    def flush(self) -> bool:
        """Finish at the end of the run; return whether one more gradient is to be applied."""
        return False

    @property
    def synchronised(self) -> bool:
        """Whether all workers hold the same weights now; checkpoints are taken only then."""
        return self.samples_apart is None

    @property
    def samples_apart(self) -> int | None:
        """Samples of this worker since all had the same weights; None while they have."""
        return None

    def state_dict(self) -> "dict[str, Tensor]":
        """Return this worker's own state, such as error feedback or a gradient under way."""
        return {}

    def load_state_dicts(self, states: "list[dict[str, Tensor]]") -> None:
        """Restore from the states of all workers of the saved run, in rank order."""

    def close(self) -> None:
        """Free threads and process groups."""
