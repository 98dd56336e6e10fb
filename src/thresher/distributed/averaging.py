"""Communicate less often, or later: local SGD and delayed gradients.

Both replace DDP's reduction. torch's `PeriodicModelAverager` gives the parameters new memory (which
breaks captured CUDA graphs and channels-last weights), leaves out momenta and running statistics,
and assumes equal parts, so averaging is done in place here.
"""

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from thresher.distributed.exchange import Bucket, Exchange
from thresher.errors import InvalidValueError

BUCKET_BYTES = 25 * 1024 * 1024
"""The size of DDP's buckets."""


class LocalSGD:
    """Each rank trains on its own; every `every` steps all ranks take the average.

    In a training loop:

        averager = LocalSGD(model, optimizer, every=8)
        for batch in …:
            (local loss, divided by the *local* number of samples).backward()
            optimizer.step()
            averager.step(samples=local number)     # True when this step averaged
        averager.finish()                           # before the weights are evaluated or saved

    The average is weighted by the samples that each rank has seen since the last one. Parameters,
    float buffers (running statistics) and the optimizer's tensors of a parameter's shape are
    averaged in place. Ranks are equal only while `synchronised`: take checkpoints then (or call
    `finish` first); there is no other state. Every rank must call `step` equally often.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, every: int) -> None:
        if every < 1:
            raise InvalidValueError(f"every must be at least 1, got {every}", "", "every")
        self.model, self.optimizer, self.every = model, optimizer, every
        self.world = dist.get_world_size() if dist.is_initialized() else 1
        self._steps = 0
        self.samples = 0
        """Samples of this rank since the last average."""

    @property
    def synchronised(self) -> bool:
        """Whether all ranks hold the same weights now."""
        return self._steps == 0 or self.world == 1

    def step(self, samples: int = 1) -> bool:
        """Call after each optimizer step with this rank's samples; return whether it averaged."""
        self._steps += 1
        self.samples += samples
        if self._steps < self.every:
            return False
        self.finish()
        return True

    @torch.no_grad()
    def finish(self) -> None:
        """Average now, unless nothing was trained since the last average."""
        if self.world > 1 and self._steps:
            kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
            for tensor in self._tensors():
                kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
            for tensors in kinds.values():
                self._average(tensors)
        self._steps = self.samples = 0

    def _average(self, tensors: list[Tensor]) -> None:
        weight = tensors[0].new_tensor([float(self.samples)])
        flat = torch.cat([*(tensor.reshape(-1) for tensor in tensors), weight.new_ones(1)])
        flat.mul_(weight)
        dist.all_reduce(flat)
        flat.div_(flat[-1].clone())
        pieces = flat[:-1].split([tensor.numel() for tensor in tensors])
        for tensor, piece in zip(tensors, pieces, strict=True):
            tensor.copy_(piece.view(tensor.shape))

    def _tensors(self) -> Iterable[Tensor]:
        yield from (p.data for p in self.model.parameters())
        yield from (b for b in self.model.buffers() if b.is_floating_point())
        for parameter, state in self.optimizer.state.items():
            for value in state.values():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    yield value


class Delayed:
    """Gradients one step late: the sum of step t is exchanged while step t+1 computes.

    In a training loop (no DDP; the loss divided by the global number of samples):

        delayed = Delayed(model.named_parameters(), exchange)   # exchange: hooks.make_exchange
        for batch in …:
            optimizer.zero_grad()
            loss.backward()
            if delayed.exchange():        # False in the first step: nothing to apply yet
                optimizer.step()
        if delayed.flush():               # the last step's gradient
            optimizer.step()
        delayed.close()

    `exchange` sends the gradients of the backward pass and replaces them by those of the step
    before. One process takes the same path, so the weights do not depend on the number of workers.
    `state_dict` waits for the exchange under way and holds its result, equal on every rank, and the
    exchange's own state, which is each rank's. Memory: two copies of the gradients.
    """

    def __init__(
        self, named_parameters: Iterable[tuple[str, nn.Parameter]], exchange: Exchange
    ) -> None:
        self.parameters = {n: p for n, p in named_parameters if p.requires_grad}
        self._exchange = exchange
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
    def exchange(self) -> bool:
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
        """Return tensors only; `pending.NAME` is the gradient under way, if there is one."""
        kept = {}
        if self._under_way is not None:
            torch.futures.wait_all(self._under_way)
            kept = {f"pending.{n}": v.clone() for n, v in _views(self._sets[1 - self._turn])}
        return kept | self._exchange.state_dict()

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._exchange.load_state_dict(
            {key: value for key, value in state.items() if not key.startswith("pending.")}
        )
        self._under_way = None
        if any(key.startswith("pending.") for key in state):
            for name, view in _views(self._sets[1 - self._turn]):
                view.copy_(state[f"pending.{name}"])
            # Already summed: nothing is under way, and the buffers can be used.
            self._under_way = []

    def close(self) -> None:
        """Wait for the exchange under way and free its thread and process group."""
        self._take_buffers()
        self._exchange.close()


def _views(buckets: list[Bucket]) -> Iterator[tuple[str, Tensor]]:
    """Yield the name and the view of each gradient."""
    for bucket in buckets:
        yield from zip(bucket.names, bucket.views, strict=True)
