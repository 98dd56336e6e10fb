"""Gradients applied one step late, so that their reduction overlaps the next step."""

from collections.abc import Iterator

import torch
from torch import Tensor

from thresher.distributed.exchange import Bucket, part, redistribute
from thresher.distributed.hooks import make_exchange
from thresher.training.exchange.base import GradientExchange

BUCKET_BYTES = 25 * 1024 * 1024
"""The size of DDP's buckets."""


class DelayedExchange(GradientExchange):
    """The sum of step t is exchanged while step t + 1 computes, and applied in that step.

    One worker takes the same path, so the weights do not depend on the number of workers. The state
    holds the gradient under way, equal on every worker, and what the exchange keeps, each worker's
    own. Memory: two copies of the gradients.
    """

    observable = False

    def prepare(self) -> None:
        config, named = self.parts.config, self.parts.model.named_parameters()
        self.parameters = {name: p for name, p in named if p.requires_grad}
        self._exchange = make_exchange(config.compress, config.allreduce)
        # Two sets of buffers take turns: one is exchanged while the other is filled.
        self._sets = [self._buckets(), self._buckets()]
        self._turn = 0
        self._under_way: list[torch.futures.Future[Tensor]] | None = None

    def _buckets(self) -> list[Bucket]:
        """Make flat buffers from the last parameter to the first, as gradients arrive."""
        groups: list[list[str]] = []
        size, kind = 0, None
        for name, parameter in reversed(self.parameters.items()):
            this = (parameter.dtype, parameter.device)
            if not groups or this != kind or size >= BUCKET_BYTES:
                groups.append([])
                size, kind = 0, this
            groups[-1].append(name)
            size += parameter.numel() * parameter.element_size()
        buckets = []
        for number, names in enumerate(groups):
            owners = [self.parameters[name] for name in names]
            counts = [parameter.numel() for parameter in owners]
            flat = owners[0].new_zeros(sum(counts), requires_grad=False)
            views = [v.view(p.shape) for v, p in zip(flat.split(counts), owners, strict=True)]
            buckets.append(Bucket(flat, tuple(names), views, number, number == len(groups) - 1))
        return buckets

    @torch.no_grad()
    def before_update(self) -> bool:
        """Send this step's gradients and set the last step's; return False if there are none."""
        arrived = self._take_buffers()
        filled = self._sets[self._turn]
        for name, view in _views(filled):
            gradient = self.parameters[name].grad
            view.zero_() if gradient is None else view.copy_(gradient)
        self._under_way = [self._exchange.start(bucket) for bucket in filled]
        self._turn = 1 - self._turn
        return self._give(arrived)

    @torch.no_grad()
    def flush(self) -> bool:
        """Set the last gradients; return False if none are under way."""
        return self._give(self._take_buffers())

    def _take_buffers(self) -> list[Bucket] | None:
        if self._under_way is None:
            return None
        torch.futures.wait_all(self._under_way)
        self._under_way = None
        return self._sets[1 - self._turn]

    def _give(self, arrived: list[Bucket] | None) -> bool:
        for name, view in _views(arrived or []):
            parameter = self.parameters[name]
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(view)
        return arrived is not None

    @torch.no_grad()
    def state_dict(self) -> dict[str, Tensor]:
        """Wait for the exchange under way; `pending.NAME` is its gradient, if there is one."""
        kept = {}
        if self._under_way is not None:
            torch.futures.wait_all(self._under_way)
            kept = {f"pending.{n}": v.clone() for n, v in _views(self._sets[1 - self._turn])}
        return kept | self._exchange.state_dict()

    @torch.no_grad()
    def load_state_dicts(self, states: list[dict[str, Tensor]]) -> None:
        state = redistribute(states, self.parts.group.rank, self.parts.group.world)
        self._exchange.load_state_dict(state)
        self._under_way = None
        if pending := part(state, "pending"):
            for name, view in _views(self._sets[1 - self._turn]):
                view.copy_(pending[name])
            # Already summed: nothing is under way, and the buffers can be used.
            self._under_way = []

    def close(self) -> None:
        self._take_buffers()
        self._exchange.close()


def _views(buckets: list[Bucket]) -> Iterator[tuple[str, Tensor]]:
    """Yield the name and the view of each gradient."""
    for bucket in buckets:
        yield from zip(bucket.names, bucket.views, strict=True)
