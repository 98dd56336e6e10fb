"""Local SGD: each worker takes its own steps, and all average their weights every N steps."""

from thresher.distributed.averaging import LocalSGD
from thresher.training.exchange.base import ExchangeParts, GradientExchange


class LocalSGDExchange(GradientExchange):
    """No gradients are exchanged; weights, momenta and running statistics are averaged."""

    local_loss = True
    observable = False

    def __init__(self, parts: ExchangeParts) -> None:
        super().__init__(parts)
        self._averager = LocalSGD(parts.model, parts.optimizer, parts.config.average_every)

    def after_update(self, samples: int) -> None:
        self._averager.step(samples)

    def flush(self) -> bool:
        self._averager.finish()
        return False

    @property
    def synchronised(self) -> bool:
        return self._averager.synchronised

    @property
    def samples_apart(self) -> int | None:
        return None if self.synchronised else self._averager.samples
