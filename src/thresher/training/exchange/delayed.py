"""Gradients applied one step late, so that their reduction overlaps the next step."""

from torch import Tensor

from thresher.distributed.averaging import Delayed
from thresher.distributed.exchange import redistribute
from thresher.distributed.hooks import make_exchange
from thresher.training.exchange.base import GradientExchange


class DelayedExchange(GradientExchange):
    """The gradient of step t is applied in step t + 1; one worker takes the same path."""

    observable = False

    def prepare(self) -> None:
        config = self.parts.config
        exchange = make_exchange(config.compress, config.allreduce)
        self._delayed = Delayed(self.parts.model.named_parameters(), exchange)

    def before_update(self) -> bool:
        return self._delayed.exchange()

    def flush(self) -> bool:
        return self._delayed.flush()

    def state_dict(self) -> dict[str, Tensor]:
        return self._delayed.state_dict()

    def load_state_dicts(self, states: list[dict[str, Tensor]]) -> None:
        group = self.parts.group
        self._delayed.load_state_dict(redistribute(states, group.rank, group.world))

    def close(self) -> None:
        self._delayed.close()
