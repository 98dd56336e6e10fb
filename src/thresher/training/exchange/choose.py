"""Choose the gradient exchange of a run."""

from thresher.training.exchange.base import ExchangeParts, GradientExchange
from thresher.training.exchange.ddp import DDPExchange
from thresher.training.exchange.delayed import DelayedExchange
from thresher.training.exchange.horovod import HorovodExchange
from thresher.training.exchange.local_sgd import LocalSGDExchange


def make_gradient_exchange(parts: ExchangeParts) -> GradientExchange:
    """Return the exchange that the configuration and the size of the group ask for."""
    config, alone = parts.config, parts.group.alone
    kind: type[GradientExchange] = DDPExchange
    if config.average_every > 1 and not alone:
        kind = LocalSGDExchange
    elif config.delay:
        kind = DelayedExchange
    elif alone:
        kind = GradientExchange
    elif config.engine == "horovod":
        kind = HorovodExchange
    return kind(parts)
