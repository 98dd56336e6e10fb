"""Gradients summed by Horovod as the backward pass makes them."""

import contextlib
from contextlib import AbstractContextManager
from typing import Any

from thresher.distributed.horovod import HorovodReducer
from thresher.training.exchange.base import GradientExchange


class HorovodExchange(GradientExchange):
    """Horovod's dynamic queue instead of DDP's fixed buckets."""

    observable = False
    _reducer: HorovodReducer | None = None

    def prepare(self) -> None:
        named = self.parts.model.named_parameters()
        self._reducer = HorovodReducer(named, self.parts.config.compress)

    def no_sync(self) -> AbstractContextManager[Any]:
        return contextlib.nullcontext() if self._reducer is None else self._reducer.no_sync()

    def after_backward(self) -> None:
        if self._reducer is not None:
            self._reducer.synchronize()

    def close(self) -> None:
        if self._reducer is not None:
            self._reducer.close()
