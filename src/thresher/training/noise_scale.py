"""The gradient noise scale in a training loop of one's own."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from thresher.device_check import wide
from thresher.errors import InvalidValueError, check_type, counted
from thresher.training.noise_estimate import NoiseEstimate, gradients_of, mean_small, squared_norm


class NoiseScale:
    """Measure the gradient noise scale, and with it the largest batch size that pays off.

    Call `backward(losses)` instead of `losses.mean().backward()`; the gradients are the same. Every
    `every` steps the gradient of a part of the batch is compared with that of the whole: under
    DistributedDataParallel that of this worker, which costs nothing, and otherwise those of both
    halves of the batch, which take a second backward pass. The last 100 measurements count.

    Batch norm makes a sample's gradient depend on the other samples of its forward pass. Without
    DistributedDataParallel both halves share one forward pass, so that the value is that of the
    network with statistics of the whole batch; with it, that of statistics of each worker's part.

    Up to about the noise scale, twice the batch size needs almost half the steps; far above it,
    hardly fewer (McCandlish et al. 2018, https://arxiv.org/abs/1812.06162).

    Args:
        model: The network, also in DistributedDataParallel.
        every: Steps between measurements.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(4, 1)
        >>> noise = NoiseScale(model, every=1)
        >>> for _ in range(50):
        ...     inputs = torch.randn(32, 4)
        ...     targets = inputs.sum(1) + torch.randn(32)
        ...     losses = (model(inputs)[:, 0] - targets) ** 2
        ...     noise.backward(losses)  # instead of losses.mean().backward()
        ...     model.zero_grad()
        >>> noise.value > 0
        True
    """

    def __init__(self, model: nn.Module, every: int = 10) -> None:
        check_type(model, nn.Module, "model", "a torch Module")
        if every < 1:
            raise InvalidValueError(f"every must be at least 1, got {every}", "", "every")
        self.model, self.every = model, every
        self._steps = 0
        self._estimate = NoiseEstimate()
        distributed = isinstance(model, nn.parallel.DistributedDataParallel)
        group: Any = model.process_group if distributed else None
        alone = not distributed or torch.distributed.get_world_size(group) == 1
        self._group = None if alone else group

    @property
    def value(self) -> float | None:
        """The noise scale: a batch size in samples; None before there is a sound estimate."""
        return self._estimate.value

    def backward(self, losses: Tensor) -> None:
        """Run the backward pass of `losses.mean()`, and measure if it is time to.

        Args:
            losses: (n,) losses of the samples of this worker's batch, such as those of
                `cross_entropy(…, reduction="none")`. A gradient scaler may have scaled them.

        Raises:
            InvalidValueError: The losses or the gradients of parts of a batch are not known.
        """
        if losses.ndim != 1 or len(losses) < 1:
            raise InvalidValueError(
                f"losses must have one value per sample, got the shape {tuple(losses.shape)}",
                'compute them with reduction="none"',
                "losses",
            )
        due = self._steps % self.every == 0
        self._steps += 1
        if not due:
            losses.mean().backward()
        elif self._group is not None:
            self._compare_workers(losses)
        elif len(losses) < 2:
            losses.mean().backward()
        else:
            self._compare_halves(losses)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold, as JSON values."""
        return {"steps": self._steps, **asdict(self._estimate)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set what `state_dict` returned."""
        self._steps = int(state["steps"])
        self._estimate = NoiseEstimate.restored(state)

    def _compare_halves(self, losses: Tensor) -> None:
        n, half = len(losses), len(losses) // 2
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        part = torch.autograd.grad(
            losses[:half].mean(), parameters, retain_graph=True, allow_unused=True
        )
        first = squared_norm([gradient for gradient in part if gradient is not None])
        rest: list[Tensor] = []
        hidden: list[int] = []

        def note(number: int, gradient: Tensor) -> None:
            # The gradient of the other half is what the whole has beyond the first.
            known = part[number]
            if known is None:
                hidden.append(number)
            else:
                rest.append(((gradient - known * (half / n)) * (n / (n - half))).norm())

        big = self._backward(losses, note)
        if hidden:
            raise InvalidValueError(
                f"the gradients of {counted(len(hidden), 'parameter')} cannot be computed for half "
                "of the batch, because a part of the network hides them, as checkpointing with "
                "`use_reentrant=True` does",
                "set `use_reentrant=False`",
            )
        second = wide(torch.stack(rest)).square().sum()
        norms = torch.stack([(first + second) / 2, big])
        self._add(norms, mean_small(half, n - half), n)

    def _compare_workers(self, losses: Tensor) -> None:
        if not self.model.require_backward_grad_sync:
            raise InvalidValueError(
                "within `no_sync` workers do not share gradients, so none can be compared",
                "call `backward` outside of it, on the whole batch of a step",
            )
        gradients = gradients_of(self.model)
        if gradients and squared_norm(gradients) > 0:
            raise InvalidValueError(
                "gradients must be zero before `backward` under DistributedDataParallel",
                "call optimizer.zero_grad() after each step",
            )
        own = self._backward(losses)
        # The workers' gradients count alike, however many samples each has: their mean is as noisy
        # as that of batches of the harmonic mean of the sizes.
        sums = torch.stack([own, own.new_tensor(1 / len(losses))])
        torch.distributed.all_reduce(sums, group=self._group)
        world = torch.distributed.get_world_size(self._group)
        norms = torch.stack([sums[0] / world, squared_norm(gradients_of(self.model))])
        small = world / sums[1].item()
        self._add(norms, small, world * small)

    def _backward(
        self, losses: Tensor, note: Callable[[int, Tensor], None] | None = None
    ) -> Tensor:
        """Run the backward pass; return the squared norm of its gradient on this worker.

        `note` is called with the number of each trained parameter and its gradient.
        """
        seen: list[Tensor] = []

        def observe(number: int, gradient: Tensor) -> None:
            seen.append(gradient.detach().norm())
            if note is not None:
                note(number, gradient.detach())

        # A hook sees the gradient of this pass alone, before it is accumulated and reduced.
        trained = [p for p in self.model.parameters() if p.requires_grad]
        hooks = [p.register_hook(partial(observe, n)) for n, p in enumerate(trained)]
        try:
            losses.mean().backward()
        finally:
            for hook in hooks:
                hook.remove()
        return wide(torch.stack(seen)).square().sum()

    def _add(self, norms: Tensor, small: float, big: float) -> None:
        g_small, g_big = norms.tolist()
        self._estimate.add(g_small, small, g_big, big)
