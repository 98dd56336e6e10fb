"""The objective among workers, by what moves the gradients: DDP, Horovod, stale or local SGD.

Each worker's loss is already divided by the global number of samples, so the *sum* of the
gradients is the gradient of the global mean, however unevenly the batch was cut. (Local SGD
exchanges no gradients: there the loss is divided by the worker's own number.)
"""

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from thresher.distributed.group import Group
from thresher.training.config import TrainConfig
from thresher.training.noise_scale import NoiseScale


class Parallel:
    """Call it like the objective. `ready` must be called once, after a rehearsed step."""

    def __init__(
        self,
        objective: Any,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        config: TrainConfig,
        group: Group,
    ) -> None:
        self.config, self.group, self.model, self.optimizer = config, group, model, optimizer
        self.module = objective
        self.hook: Any = None
        self.averager: Any = None
        self.delayed: Any = None
        self.horovod: Any = None
        self._noise: NoiseScale | None = None
        self._noise_scale, self._noise_batch = 0.0, 0.0
        self._heard: list[Tensor] = []
        if self.by_ddp:
            self.module = torch.nn.parallel.DistributedDataParallel(
                objective,
                device_ids=[group.device] if group.device.type == "cuda" else None,
                bucket_cap_mb=config.bucket_mb,
                broadcast_buffers=False,
                gradient_as_bucket_view=True,
            )

    @property
    def local(self) -> bool:
        """Local SGD: a worker's own steps, averaged now and then."""
        return not self.group.alone and self.config.average_every > 1

    @property
    def by_ddp(self) -> bool:
        own = self.local or self.config.delay or self.config.engine == "horovod"
        return not self.group.alone and not own

    def __call__(self, images: Tensor, labels: Tensor, weights: Tensor | None) -> Any:
        return self.module(images, labels, weights)

    def no_sync(self) -> AbstractContextManager[Any]:
        """Backward passes within keep their gradients here."""
        if self.by_ddp:
            return self.module.no_sync()
        return contextlib.nullcontext() if self.horovod is None else self.horovod.no_sync()

    def ready(self) -> None:
        """Make what exchanges gradients. DDP has laid out its buckets anew after the rehearsed
        step, in the order in which gradients came: a resumed run then has the same buckets as an
        unbroken one, and sums in the same order."""
        named = list(self.model.named_parameters())
        if self.local:
            from thresher.distributed.averaging import LocalSGD

            self.averager = LocalSGD(self.model, self.optimizer, self.config.average_every)
        elif self.config.delay:
            from thresher.distributed.averaging import Delayed
            from thresher.distributed.hooks import make_exchange

            exchange = make_exchange(self.config.compress, self.config.allreduce)
            self.delayed = Delayed(named, exchange)
        elif self.config.engine == "horovod" and not self.group.alone:
            from thresher.distributed.horovod import HorovodReducer

            self.horovod = HorovodReducer(named, self.config.compress)
        elif self.by_ddp:
            self._register(named)

    def _register(self, named: list[tuple[str, nn.Parameter]]) -> None:
        from thresher.distributed.hooks import gradient_hook

        self.hook, hook = gradient_hook(self.config.compress, self.config.allreduce, named)

        def listening(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
            if self._noise is not None:
                self._heard.append(bucket.buffer().double().square().sum())
                if bucket.is_last():
                    self._tell()
            return hook(state, bucket)

        self.module.register_comm_hook(self.hook, listening)

    def listen(self, noise: NoiseScale, scale: float, batch: float) -> None:
        """Give `noise` the squared norm of this worker's own gradient, times `scale`, in the next
        backward pass; `batch` is the workers' mean number of samples."""
        self._noise, self._noise_scale, self._noise_batch, self._heard = noise, scale, batch, []

    def _tell(self) -> None:
        assert self._noise is not None
        self._noise.small(torch.stack(self._heard).sum() * self._noise_scale, self._noise_batch)
        self._noise = None

    def after_backward(self) -> None:
        """After the last piece: the parameters' gradients are those of all workers."""
        if self.horovod is not None:
            self.horovod.synchronize()

    def before_update(self) -> bool:
        """Whether there is a gradient to apply: a stale one is not there in the first step."""
        return self.delayed is None or self.delayed.exchange()

    def after_update(self, samples: int) -> None:
        """`samples`: this worker's own in the step."""
        if self.averager is not None:
            self.averager.step(samples)

    def flush(self) -> bool:
        """At the end of the run; True where one more gradient came that must be applied."""
        if self.averager is not None:
            self.averager.finish()
        return self.delayed is not None and self.delayed.flush()

    @property
    def equal(self) -> bool:
        """Whether all workers hold the same weights now: only then is a checkpoint taken."""
        return self.averager is None or self.averager.synchronised

    def state_dict(self) -> dict[str, Tensor]:
        """This worker's own memory: error feedback, a stale gradient; empty where there is none."""
        owner = self.delayed if self.delayed is not None else self.hook
        return {} if owner is None else owner.state_dict()

    def restore(self, states: list[dict[str, Tensor]]) -> None:
        """From what every worker had saved, perhaps another number of them."""
        owner = self.delayed if self.delayed is not None else self.hook
        if owner is None or not states:
            return
        from thresher.distributed.exchange import redistribute

        owner.load_state_dict(redistribute(states, self.group.rank, self.group.world))

    def close(self) -> None:
        for owner in (self.hook, self.delayed, self.horovod):
            if owner is not None:
                owner.close()
