"""Talk less often, or later: local SGD (`--average-every H`) and stale gradients (`--delay 1`).

Neither wants DDP around the model: both take the place of its reduction. torch has
`PeriodicModelAverager`; it points the parameters at new memory (which a captured CUDA graph and
channels-last weights do not survive), leaves momenta and running statistics apart, and knows only
equal parts, so the few lines here do it in place.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from thresher.distributed.exchange import Bucket, Exchange
from thresher.errors import ThresherError

BUCKET_BYTES = 25 * 1024 * 1024
"""As DDP cuts its buckets."""


class LocalSGD:
    """Each rank trains on its own; every `every` steps all take the average.

    How a training loop uses it:

        averager = LocalSGD(model, optimizer, every=8)
        for batch in …:
            (local loss, divided by the *local* number of samples).backward()
            optimizer.step()
            averager.step(samples=local number)     # True when this step averaged
        averager.finish()                           # before the weights are evaluated or saved

    The average is weighted by the samples each rank has seen since the last one, so that uneven
    parts count as they should. Parameters, float buffers (running statistics) and, with
    `momentum`, the optimiser's tensors of a parameter's shape are averaged, in place.
    Ranks are equal only while `synchronised`: take checkpoints then (or call `finish` first). There
    is no state beyond that, so nothing of it goes into a checkpoint. Every rank must call `step`
    equally often. For one process all is a no-op.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        every: int,
        momentum: bool = True,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        if every < 1:
            raise ThresherError(f"--average-every is {every}", "average every 1 or more steps")
        self.model, self.optimizer, self.every, self.momentum = model, optimizer, every, momentum
        self.group = group
        self.world = dist.get_world_size(group) if dist.is_initialized() else 1
        self._steps = 0
        self._samples = 0

    @property
    def synchronised(self) -> bool:
        """Whether all ranks hold the same weights now."""
        return self._steps == 0 or self.world == 1

    def step(self, samples: int = 1) -> bool:
        """Call after each optimiser step, with this rank's number of samples in it."""
        self._steps += 1
        self._samples += samples
        if self._steps < self.every:
            return False
        self.finish()
        return True

    @torch.no_grad()
    def finish(self) -> None:
        """Average now, unless nothing was trained since the last time."""
        if self.world > 1 and self._steps:
            kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
            for tensor in self._tensors():
                kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
            for tensors in kinds.values():
                self._average(tensors)
        self._steps = self._samples = 0

    def _average(self, tensors: list[Tensor]) -> None:
        """One collective per dtype; memory: a copy of the tensors. The weight travels with them."""
        weight = tensors[0].new_tensor([float(self._samples)])
        flat = torch.cat([*(tensor.reshape(-1) for tensor in tensors), weight.new_ones(1)])
        flat.mul_(weight)
        dist.all_reduce(flat, group=self.group)
        flat.div_(flat[-1].clone())
        pieces = flat[:-1].split([tensor.numel() for tensor in tensors])
        for tensor, piece in zip(tensors, pieces, strict=True):
            tensor.copy_(piece.view(tensor.shape))

    def _tensors(self) -> Iterable[Tensor]:
        yield from (p.data for p in self.model.parameters())
        yield from (b for b in self.model.buffers() if b.is_floating_point())
        if not self.momentum:
            return
        for parameter, state in self.optimizer.state.items():
            for value in state.values():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    yield value


class Delayed:
    """Gradients one step late: the sum of step t travels while step t+1 computes.

    How a training loop uses it (no DDP; a loss divided by the global number of samples):

        delayed = Delayed(model.named_parameters(), exchange)   # exchange: hooks.make_exchange
        for batch in …:
            optimizer.zero_grad()
            loss.backward()
            if delayed.exchange():        # False in the first step: there is nothing to apply yet
                optimizer.step()
        if delayed.flush():               # the last step's gradient
            optimizer.step()
        delayed.close()

    `exchange` sends the gradients that the backward pass left and puts those of the step before in
    their place. One process takes the same path (its sum is its own gradient), so the weights do
    not depend on the number of workers. `state_dict` waits for what is under way and holds it, the
    same on every rank, along with the exchange's own memory, which is each rank's.
    Memory: two copies of the gradients.
    """

    def __init__(
        self, named_parameters: Iterable[tuple[str, nn.Parameter]], exchange: Exchange
    ) -> None:
        self.parameters = {n: p for n, p in named_parameters if p.requires_grad}
        self._exchange = exchange
        # Two sets of buffers take turns: one travels while the other is filled.
        self._sets = [self._buckets(), self._buckets()]
        self._turn = 0
        self._under_way: list[torch.futures.Future[Tensor]] | None = None

    def _buckets(self) -> list[Bucket]:
        """Flat buffers of about 25 MB, from the last parameter to the first, as gradients come."""
        groups: list[list[str]] = []
        size, kind = 0, None
        for name, parameter in reversed(self.parameters.items()):
            this = (parameter.dtype, parameter.device)
            if not groups or this != kind or size >= BUCKET_BYTES:
                groups.append([])
                size, kind = 0, this
            groups[-1].append(name)
            size += parameter.numel() * parameter.element_size()
        made = []
        for number, names in enumerate(groups):
            owners = [self.parameters[name] for name in names]
            counts = [parameter.numel() for parameter in owners]
            flat = owners[0].new_zeros(sum(counts), requires_grad=False)
            views = [v.view(p.shape) for v, p in zip(flat.split(counts), owners, strict=True)]
            made.append(Bucket(flat, tuple(names), views, number, number == len(groups) - 1))
        return made

    @torch.no_grad()
    def exchange(self) -> bool:
        """Send this step's gradients, take the last step's; False when there are none yet."""
        arrived = self._take_buffers()
        filled = self._sets[self._turn]
        for bucket in filled:
            for name, view in zip(bucket.names, bucket.views, strict=True):
                gradient = self.parameters[name].grad
                view.zero_() if gradient is None else view.copy_(gradient)
        self._under_way = [self._exchange.start(bucket) for bucket in filled]
        self._turn = 1 - self._turn
        return self._give(arrived)

    @torch.no_grad()
    def flush(self) -> bool:
        """Put the last gradients in place; False when none are under way."""
        return self._give(self._take_buffers())

    def _take_buffers(self) -> list[Bucket] | None:
        if self._under_way is None:
            return None
        torch.futures.wait_all(self._under_way)
        self._under_way = None
        return self._sets[1 - self._turn]

    def _give(self, arrived: list[Bucket] | None) -> bool:
        for bucket in arrived or ():
            for name, view in zip(bucket.names, bucket.views, strict=True):
                parameter = self.parameters[name]
                if parameter.grad is None:
                    parameter.grad = torch.empty_like(parameter)
                parameter.grad.copy_(view)
        return arrived is not None

    @torch.no_grad()
    def state_dict(self) -> dict[str, Tensor]:
        """Tensors only; `pending.NAME` is the gradient under way (absent: none)."""
        kept = {}
        if self._under_way is not None:
            torch.futures.wait_all(self._under_way)
            for bucket in self._sets[1 - self._turn]:
                for name, view in zip(bucket.names, bucket.views, strict=True):
                    kept[f"pending.{name}"] = view.clone()
        return kept | self._exchange.state_dict()

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._exchange.load_state_dict(
            {key: value for key, value in state.items() if not key.startswith("pending.")}
        )
        self._under_way = None
        if not any(key.startswith("pending.") for key in state):
            return
        for bucket in self._sets[1 - self._turn]:
            for name, view in zip(bucket.names, bucket.views, strict=True):
                view.copy_(state[f"pending.{name}"])
        # Already summed: nothing is under way, and the buffers are ready to be taken.
        self._under_way = []

    def close(self) -> None:
        """Wait for what is under way and give back the exchange's thread and group."""
        self._take_buffers()
        self._exchange.close()
