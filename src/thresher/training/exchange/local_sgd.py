"""Local SGD: each worker takes its own steps, and all average their weights every N steps.

torch's `PeriodicModelAverager` gives the parameters new memory (which breaks captured CUDA graphs
and channels-last weights), leaves out momenta and running statistics, and assumes equal parts, so
averaging is done in place here.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from thresher.training.exchange.base import ExchangeParts, GradientExchange


class LocalSGDExchange(GradientExchange):
    """No gradients are exchanged; weights, momenta and running statistics are averaged.

    The average is weighted by the samples that each worker has seen since the last one.
    """

    local_loss = True
    observable = False

    def __init__(self, parts: ExchangeParts) -> None:
        super().__init__(parts)
        self._steps = self._samples = 0
        """Of this worker since the last average."""

    def after_update(self, samples: int) -> None:
        self._steps += 1
        self._samples += samples
        if self._steps >= self.parts.config.average_every:
            self.flush()

    def flush(self) -> bool:
        """Average now, unless nothing was trained since the last average."""
        if self._steps:
            kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
            for tensor in self._tensors():
                kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
            for tensors in kinds.values():
                self.parts.group.set_to_mean(tensors, self._samples)
        self._steps = self._samples = 0
        return False

    def _tensors(self) -> Iterator[Tensor]:
        yield from (p.data for p in self.parts.model.parameters())
        yield from (b for b in self.parts.model.buffers() if b.is_floating_point())
        # In the same order after a resumption, which fills the state in another one: where a value
        # lies in the buffer that is sent decides in which order the workers' ones are added.
        optimizer = self.parts.optimizer
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            state = optimizer.state.get(parameter, {})
            for value in (state[name] for name in sorted(state)):
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    yield value

    @property
    def samples_apart(self) -> int | None:
        return self._samples if self._steps else None
