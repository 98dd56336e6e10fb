"""Batch norm with statistics of different samples: `local`, `sync` or `ghost:N`.

local    the samples that pass through the network together on this worker: torch's layer
sync     the global batch, over all workers, including uneven and empty parts
ghost:N  groups of N consecutive samples of the global batch (Hoffer et al. 2017)

With `sync` and `ghost:N`, weights and running statistics depend neither on the number of workers
nor on accumulation, if the caller does three things:

- cut the global batch with `data.order.part(…, align=alignment(mode))`, and a part into pieces at
  multiples of `alignment(mode)` (see `batch_norm_mode`);
- with `sync`, pass a worker's part through the network in one piece (`in_one_piece(mode)`): the
  statistics of a layer need the output of the layer below for every sample, and their gradients
  need every sample again. To save GPU memory, run forward and backward in `offload_saved_tensors`:
  the GPU then holds only the tensors of the current layers (about three for the whole part);
- call `update_running_statistics(model)` after each optimiser step: `ghost:N` adds the statistics
  of all pieces and all workers there, with one small all-reduce.
"""

import contextlib
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeGuard, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from thresher.errors import InvalidValueError
from thresher.models import kernel_use
from thresher.models.batch_norm_mode import parse


def convert(model: nn.Module, mode: str, group: Any = None) -> nn.Module:
    """Replace the batch norm layers of a model in place, and return it.

    Parameters and buffers stay the same objects under the same names. The process group is by
    default that of all workers.

    Raises:
        InvalidValueError: A layer has a forward pass of its own, such as batch norm with an
            activation, which would be lost.
    """
    kind, size = parse(mode)
    if kind == "local":
        return model
    for name, layer in model.named_modules():
        if _convertible(layer) and type(layer).forward is not _BatchNorm.forward:
            raise InvalidValueError(
                f'`batch_norm` {mode} cannot replace layer "{name}" of class '
                f"{type(layer).__name__}, which has a forward pass of its own",
                "use `batch_norm` local, or torch's batch norm in the model",
            )
    if _convertible(model):
        return _converted(model, kind, size, group)
    new: dict[nn.Module, nn.Module] = {}
    for parent in list(model.modules()):
        # Not `named_children`, which names a layer that is used in two places only once.
        for name, child in list(parent._modules.items()):
            if child is not None and _convertible(child):
                if child not in new:
                    new[child] = _converted(child, kind, size, group)
                setattr(parent, name, new[child])
    return model


def update_running_statistics(model: nn.Module) -> None:
    """Update the running statistics of ghost layers, with one all-reduce for all of them."""
    ghosts = [m for m in model.modules() if isinstance(m, GhostBatchNorm)]
    layers = [layer for layer in ghosts if layer.track_running_stats]
    if not layers:
        return
    sums = torch.cat([layer.pending_sums() for layer in layers])
    if _world(layers[0].group) > 1:
        dist.all_reduce(sums, group=layers[0].group)
    sizes = [2 * layer.num_features + 1 for layer in layers]
    for layer, part in zip(layers, sums.split(sizes), strict=True):
        layer.apply_sums(part)


@contextlib.contextmanager
def standing_in(model: nn.Module) -> Iterator[None]:
    """Let sync layers take part in the exchange without a sample, whatever passes through.

    For networks that do not accept an empty batch.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, SyncBatchNorm)]
    for layer in layers:
        layer.stands_in = True
    try:
        yield
    finally:
        for layer in layers:
            layer.stands_in = False


def offload_saved_tensors(device: torch.device, enabled: bool) -> AbstractContextManager[Any]:
    """Keep the tensors that autograd saves in pinned host memory; does nothing on a CPU.

    Costs a copy over the bus each way, and cannot be captured in a CUDA graph.
    """
    if not enabled or device.type != "cuda":
        return contextlib.nullcontext()
    return torch.autograd.graph.save_on_cpu(pin_memory=True)


class _AnyBatchNorm(_BatchNorm):
    """Batch norm of inputs (n, channels, …) with any number of further dimensions."""

    group: Any = None

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"input must have at least 2 dimensions, got {input.dim()}")


class SyncBatchNorm(_AnyBatchNorm):
    """Batch norm with statistics over all workers' parts, weighted by their sizes.

    Forward takes one all-gather of 2 · channels + 1 numbers, backward one all-reduce of
    2 · channels. Unlike torch.nn.SyncBatchNorm it also runs on a CPU, and never waits for a GPU.
    """

    stands_in = False
    """Whether the input only stands in for an empty part (`standing_in`)."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or _world(self.group) == 1:
            return super().forward(input)
        self._check_input_dim(input)
        if self.stands_in:
            # Depends on the input through none of its samples: gradients of it are zero.
            return torch.zeros_like(input) + self._normalised(input[:0]).sum()
        return self._normalised(input)

    def _normalised(self, input: Tensor) -> Tensor:
        x = input.reshape(1, *input.shape[:2], math.prod(input.shape[2:]))
        y, mean, var, count = _Normalise.apply(
            x, self.weight, self.bias, self.eps, True, self.group
        )
        if self.track_running_stats:
            _move_running(self, mean[0], var[0] * (count / (count - 1).clamp(min=1)))
        return y.reshape(input.shape)


class GhostBatchNorm(_AnyBatchNorm):
    """Batch norm with separate statistics for each `size` consecutive samples.

    The last group may be smaller. Nothing is exchanged in the passes: the statistics of the groups
    are summed (Σ n·mean, Σ n·variance, Σ n over the groups' sample counts n) until
    `update_running_statistics`.
    """

    size: int = 0
    _sums: Tensor | None = None  # not a buffer: DDP would overwrite it with that of rank 0

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        self._check_input_dim(input)
        if kernel_use.kernel_works(input):
            return self.by_kernel(input)
        n = input.shape[0]
        whole = n - n % self.size
        if n == whole:
            return self._normalised(input, self.size)
        rest = self._normalised(input[whole:], n - whole)
        return torch.cat([self._normalised(input[:whole], self.size), rest]) if whole else rest

    def _normalised(self, input: Tensor, size: int) -> Tensor:
        channels = input.shape[1]
        x = input.reshape(-1 if len(input) else 0, size, channels, math.prod(input.shape[2:]))
        y, mean, var, _ = _Normalise.apply(x, self.weight, self.bias, self.eps, False, None)
        if self.track_running_stats:
            self._add(mean, var, size, x.shape[3])
        return y.reshape(input.shape)

    def by_kernel(self, input: Tensor, added: Tensor | None = None, relu: bool = False) -> Tensor:
        """Normalise on a GPU, and do what follows in a ResNet; see `normalise`."""
        from thresher.models.norm_kernel import Norm, Normalise

        norm = Norm(self.size, self.eps, relu)
        y, mean, var = Normalise.apply(input, self.weight, self.bias, added, norm)
        if self.track_running_stats:
            groups, rest = divmod(len(input), self.size)
            pixels = math.prod(input.shape[2:])
            if groups:
                self._add(mean[:groups], var[:groups], self.size, pixels)
            if rest:
                self._add(mean[groups:], var[groups:], rest, pixels)
        return y

    @torch.no_grad()
    def _add(self, mean: Tensor, var: Tensor, size: int, pixels: int) -> None:
        """Add (groups, channels) means and variances to the sums; the variance is unbiased."""
        unbiased = size * pixels / max(1, size * pixels - 1)
        # In place, because a captured graph adds to the same tensor.
        means, variances, samples = self.pending_sums(mean).split([*(self.num_features,) * 2, 1])
        means.add_(mean.sum(0), alpha=size)
        variances.add_(var.sum(0), alpha=size * unbiased)
        samples.add_(size * len(mean))

    def forget_sums(self) -> None:
        """Drop the sums since the last `update_running_statistics`."""
        if self._sums is not None:
            self._sums.zero_()

    def pending_sums(self, like: Tensor | None = None) -> Tensor:
        """Return the sums since the last `update_running_statistics`, (2 · channels + 1,)."""
        like = self.running_mean if like is None else like
        assert like is not None
        if self._sums is None or self._sums.device != like.device:
            self._sums = like.new_zeros(2 * self.num_features + 1)
        return self._sums

    @torch.no_grad()
    def apply_sums(self, sums: Tensor) -> None:
        """Update the running statistics from the sums of a step, and reset the sums."""
        mean, var, samples = sums.split([self.num_features, self.num_features, 1])
        some = samples.clamp(min=1)
        _move_running(self, mean / some, var / some, (samples > 0).to(mean.dtype))
        self.pending_sums().zero_()


def normalise(
    layer: nn.Module, x: Tensor, added: Tensor | None = None, relu: nn.ReLU | None = None
) -> Tensor:
    """Return relu(layer(x) + added), `added` and the ReLU if wanted.

    Large batches of bfloat16 on a GPU, and in captured steps all, are trained with kernels that do
    all of it in few passes. For other types torch has those of cuDNN.
    """
    if _fuses(layer, x, added, relu):
        if isinstance(layer, GhostBatchNorm):
            return layer.by_kernel(x, added, relu is not None)
        from thresher.models.norm_kernel import Norm, Normalise

        norm = Norm(len(x), layer.eps, relu is not None, layer)
        return Normalise.apply(x, layer.weight, layer.bias, added, norm)[0]
    y = layer(x)
    y = y if added is None else y + added
    return y if relu is None else cast(Tensor, relu(y))


def _fuses(
    layer: nn.Module, x: Tensor, added: Tensor | None, relu: nn.Module | None
) -> TypeGuard[_BatchNorm]:
    """Whether there are kernels for the layers with these inputs, and nobody watches the layers."""
    if type(layer) not in (nn.BatchNorm2d, GhostBatchNorm) or not layer.training:
        return False
    if any(
        m._forward_hooks or m._forward_pre_hooks or m._backward_hooks
        for m in (layer, relu or layer)
    ):
        return False
    if layer.momentum is None or not layer.track_running_stats:
        return False
    return (
        kernel_use.runs_by_kernel(x)
        and x.dtype == torch.bfloat16
        and x.numel() > x.shape[1]
        and (added is None or (added.dtype, added.shape) == (x.dtype, x.shape))
    )


class _Normalise(torch.autograd.Function):
    """Normalise x, (groups, n, channels, pixels), per group and channel.

    With `merge` there is one group, whose samples are distributed over the workers. Returns y, the
    biased mean and variance, (groups, channels), and the count behind each. Saves x.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        merge: bool,
        group: Any,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        exact = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
        n, pixels = x.shape[1], x.shape[3]
        wide = x.to(exact)
        mean = wide.sum((1, 3)) / max(1, n * pixels)
        # A second pass around the mean, because a sum of squares loses precision.
        var = (wide - mean[:, None, :, None]).square_().sum((1, 3)) / max(1, n * pixels)
        count = torch.full((), n * pixels, dtype=exact, device=x.device)
        if merge:
            mean, var, count = _merged(mean[0], var[0], count, group)
        invstd = torch.rsqrt(var + eps)
        scale = invstd if weight is None else invstd * weight.to(exact)
        shift = -mean * scale if bias is None else bias.to(exact) - mean * scale
        y = torch.addcmul(shift[:, None, :, None], wide, scale[:, None, :, None])
        ctx.save_for_backward(x, weight, mean, invstd, count)
        ctx.merge, ctx.group, ctx.has_bias = merge, group, bias is not None
        ctx.mark_non_differentiable(mean, var, count)
        return y.to(x.dtype), mean, var, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, invstd, count = ctx.saved_tensors
        dy, wide = gradients[0].to(mean.dtype), x.to(mean.dtype)
        sum_dy = dy.sum((1, 3))
        sum_dy_x = (dy * (wide - mean[:, None, :, None])).sum((1, 3))
        # The gradients of weight and bias are local: DDP adds them to those of other workers.
        d_weight = None if weight is None else (sum_dy_x * invstd).sum(0).to(weight.dtype)
        d_bias = sum_dy.sum(0).to(x.dtype if weight is None else weight.dtype)
        if ctx.merge:
            both = torch.cat([sum_dy, sum_dy_x])
            dist.all_reduce(both, group=ctx.group)
            sum_dy, sum_dy_x = both[:1], both[1:]
        scale = invstd if weight is None else invstd * weight.to(mean.dtype)
        # dx = scale · (dy - Σdy/m - (x - mean) · invstd² · Σ(dy·(x - mean))/m) = scale·dy + b·x + c
        b = -scale * invstd.square() * sum_dy_x / count
        c = -scale * sum_dy / count - mean * b
        dx = torch.addcmul(c[:, None, :, None], wide, b[:, None, :, None])
        dx.addcmul_(dy, scale[:, None, :, None])
        return dx.to(x.dtype), d_weight, d_bias if ctx.has_bias else None, None, None, None


def _merged(mean: Tensor, var: Tensor, count: Tensor, group: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Merge all workers' statistics (Chan et al. 1979); bitwise equal on every worker."""
    mine = torch.cat([mean, var, count[None]])
    theirs = [torch.empty_like(mine) for _ in range(_world(group))]
    dist.all_gather(theirs, mine, group=group)
    every = torch.stack(theirs)
    means, variances, counts = every.split([len(mean), len(var), 1], dim=1)
    total = counts.sum()
    mean = (means * counts).sum(0) / total
    var = ((variances + (means - mean).square()) * counts).sum(0) / total
    return mean[None], var[None], total


@torch.no_grad()
def _move_running(layer: _BatchNorm, mean: Tensor, var: Tensor, any_seen: Any = 1.0) -> None:
    """Set running = (1 - momentum) · running + momentum · new, as in torch's layer.

    `any_seen`, 0 or 1, may be a tensor; with 0 nothing changes.
    """
    assert layer.running_mean is not None
    assert layer.running_var is not None
    assert layer.num_batches_tracked is not None
    layer.num_batches_tracked += 1 if isinstance(any_seen, float) else any_seen[0].long()
    if layer.momentum is None:
        weight = any_seen / layer.num_batches_tracked.to(mean.dtype)
    else:
        weight = any_seen * layer.momentum
    for running, seen in ((layer.running_mean, mean), (layer.running_var, var)):
        running += weight * (seen.to(running.dtype) - running)


def _convertible(module: nn.Module) -> bool:
    return isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d)


def _converted(old: Any, kind: str, size: int, group: Any) -> nn.Module:
    new: Any = SyncBatchNorm(1) if kind == "sync" else GhostBatchNorm(1)
    # The old layer's hooks, parameters, buffers and mode, under another class.
    new.__dict__.update(old.__dict__)
    new.group, new.size = group, size
    return new


def _world(group: Any) -> int:
    if not dist.is_available() or not dist.is_initialized():
        return 1
    return dist.get_world_size(group)
