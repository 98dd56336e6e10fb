"""Gradients summed by torch's DistributedDataParallel during the backward pass."""

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from thresher.distributed.exchange import Exchange, redistribute
from thresher.distributed.hooks import gradient_hook
from thresher.training.exchange.base import ExchangeParts, GradientExchange
from thresher.training.gpu_streams import side_stream


class DDPExchange(GradientExchange):
    """DDP with our communication hook, which sums and compresses."""

    # DDP lays out its buckets anew when its second step begins, in the order in which gradients
    # came. With that behind it a resumed run has the buckets of an unbroken one, and sums in the
    # same order.
    rehearsals = 2

    def __init__(self, parts: ExchangeParts) -> None:
        super().__init__(parts)
        device = parts.group.device
        with side_stream(device) if parts.captured else contextlib.nullcontext():
            self.module = DistributedDataParallel(
                parts.objective,
                device_ids=[device] if device.type == "cuda" else None,
                bucket_cap_mb=parts.config.bucket_mb,
                broadcast_buffers=False,
                gradient_as_bucket_view=True,
            )
        self._hook: Exchange | None = None
        self._listener: Callable[[Tensor], None] | None = None
        self._norms: list[Tensor] = []

    def prepare(self) -> None:
        config, named = self.parts.config, list(self.parts.model.named_parameters())
        self._hook, hook = gradient_hook(config.compress, config.allreduce, named)

        def observed(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
            if self._listener is not None:
                self._norms.append(bucket.buffer().double().square().sum())
                if bucket.is_last():
                    self._listener(torch.stack(self._norms).sum())
                    self._listener = None
            return hook(state, bucket)

        self.module.register_comm_hook(self._hook, observed)

    def no_sync(self) -> AbstractContextManager[Any]:
        return self.module.no_sync()

    def observe(self, listener: Callable[[Tensor], None]) -> None:
        self._listener, self._norms = listener, []

    def set_loss_scale(self, scale: Tensor) -> None:
        if self._hook is not None:
            self._hook.set_loss_scale(scale)

    def state_dict(self) -> dict[str, Tensor]:
        return {} if self._hook is None else self._hook.state_dict()

    def load_state_dicts(self, states: list[dict[str, Tensor]]) -> None:
        assert self._hook is not None
        group = self.parts.group
        self._hook.load_state_dict(redistribute(states, group.rank, group.world))

    def close(self) -> None:
        if self._hook is not None:
            self._hook.close()
