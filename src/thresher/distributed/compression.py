"""Gradient compression: half precision, 8 bits, low rank or top-k, with error feedback.

Each class sums a bucket over ranks (see `exchange`). Bytes sent per rank, for N bytes of float32
gradient on p ranks, where the plain ring sends 2N(p−1)/p:

    fp16, bf16   N(p−1)/p
    int8         N/2·(p−1)/p (and 4 bytes of scale per block of 1,024 elements)
    powersgd     the two factors of rank r of each matrix; vectors are sent whole
    topk         2N·share·(p−1): a value and an index for each element sent

fp16 and PowerSGD are torch's, rescaled from a mean to a sum; torch's bf16 hook asks for CUDA, so
that cast is ours, as are int8 and top-k.
"""

from dataclasses import replace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from thresher.distributed.exchange import Bucket, Exchange, Rounds, part, whole
from thresher.distributed.names import POWERSGD_RANK, TOPK_SHARE

BLOCK = 1024
"""Elements that share one scale in int8."""

# torch 2.13 renamed it; older ones know only the first name.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Fp16(Exchange):
    """torch's fp16 hook; the buffer is multiplied by the world size, because it takes the mean."""

    def _start(self, bucket: Bucket) -> torch.futures.Future[Tensor]:
        bucket.flat.mul_(self.world)
        # The hook uses only the bucket's buffer, which ours has too.
        return fp16_compress_hook(whole(self.group), cast(Any, bucket))


class Bf16(Exchange):
    """Cast to bfloat16, sum, cast back: the range of float32 with 8 bits of precision."""

    def _start(self, bucket: Bucket) -> torch.futures.Future[Tensor]:
        sent = bucket.flat.to(torch.bfloat16)
        work = dist.all_reduce(sent, group=self.group, async_op=True)
        return work.get_future().then(lambda future: bucket.flat.copy_(future.value()[0]))


class Int8(Rounds):
    """8 bits and a scale per block, in two rounds, so that no sum can overflow.

    Round one sends part r of every rank's buffer to rank r, which adds them in full precision.
    Round two sends the sums to all. The rounding errors of both rounds are added to the next
    step's gradient of the rank that rounded.
    """

    def sum(self, bucket: Bucket) -> None:
        count, world = bucket.flat.numel(), self.world
        blocks = max(1, -(-count // (BLOCK * world)))
        parts = bucket.flat.new_zeros(world, blocks, BLOCK)
        torch.add(bucket.flat, self.residual.of(bucket), out=parts.view(-1)[:count])

        codes, scales = _quantise(parts)
        left_out = parts.sub_(_dequantise(codes, scales))
        codes, scales = self._to_owners(codes), self._to_owners(scales)

        # One rank after the other, in rank order: the same sum whichever rank owns the part.
        mine = _dequantise(codes, scales).sum(0)
        codes, scales = _quantise(mine)
        left_out[self.rank] += mine - _dequantise(codes, scales)
        total = _dequantise(self._to_all(codes), self._to_all(scales))
        bucket.flat.copy_(total.view(-1)[:count])
        self.residual.keep(bucket, left_out.view(-1)[:count])

    def _to_owners(self, parts: Tensor) -> Tensor:
        """(p, …) by owner → (p, …) by sender."""
        received = torch.empty_like(parts)
        dist.all_to_all_single(received, parts.contiguous(), group=self.group)
        return received

    def _to_all(self, mine: Tensor) -> Tensor:
        """(…) → (p, …), every rank's."""
        return _gather(mine.flatten(), self).view(self.world, *mine.shape)


def _quantise(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 codes in [−127, 127] of (…, BLOCK) and a scale (…, 1)."""
    # NaN or infinity makes the scale one too: a diverged gradient stays visible, as 0·∞ is NaN.
    scales = blocks.abs().amax(-1, keepdim=True) / 127
    # Below the smallest normal number 1/scale overflows: such blocks wait in the residual.
    usable = scales > torch.finfo(scales.dtype).tiny
    inverse = torch.where(usable, scales.reciprocal(), torch.zeros_like(scales))
    return (blocks * inverse).round_().to(torch.int8), scales


def _dequantise(codes: Tensor, scales: Tensor) -> Tensor:
    return codes.to(scales.dtype) * scales


class TopK(Rounds):
    """Each rank sends the `share` of its bucket that is largest in absolute value.

    The rest stays in the residual until it has grown. The number sent depends only on the bucket's
    size, so ranks need not agree on it and nothing waits for the host.
    """

    share = TOPK_SHARE

    def sum(self, bucket: Bucket) -> None:
        left_out = bucket.flat + self.residual.of(bucket)
        k = max(1, round(self.share * left_out.numel()))
        indices = left_out.abs().topk(k, sorted=False).indices
        values = left_out[indices]
        left_out[indices] = 0
        narrow = left_out.numel() <= torch.iinfo(torch.int32).max
        sent = indices.to(torch.int32) if narrow else indices
        all_values, all_indices = _gather(values, self), _gather(sent, self)
        bucket.flat.zero_()
        # Rank by rank: no index occurs twice in one call, so the order of the additions is the
        # same on every rank and the replicas stay equal to the last bit.
        for value, index in zip(all_values.split(k), all_indices.split(k), strict=True):
            bucket.flat.index_add_(0, index.long(), value)
        self.residual.keep(bucket, left_out)


def _gather(mine: Tensor, exchange: Exchange) -> Tensor:
    """(n,) → (p·n,), rank after rank."""
    gathered = mine.new_empty(exchange.world * mine.numel())
    _all_gather(gathered, mine, group=exchange.group)
    return gathered


class PowerSGD(Rounds):
    """torch's PowerSGD hook, with its state kept by parameter instead of by bucket number.

    Errors and factors are set before each call and taken back after it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._factors: dict[str, Tensor] = {}
        self._power = PowerSGDState(
            self.group,
            matrix_approximation_rank=POWERSGD_RANK,
            start_powerSGD_iter=2,
            orthogonalization_epsilon=1e-8,
        )

    def sum(self, bucket: Bucket) -> None:
        bucket = _as_matrices(bucket)
        power, number = self._power, bucket.number
        if power.iter >= power.start_powerSGD_iter:
            power.error_dict[number] = self.residual.of(bucket)
            self._put_factors(bucket)
        powerSGD_hook(power, cast(Any, bucket)).wait()
        if number in power.error_dict:
            self.residual.keep(bucket, power.error_dict.pop(number))
            self._take_factors(bucket)
        # The hook returns the mean; the error is that of the mean on each rank.
        bucket.flat.mul_(self.world)

    def _matrices(self, bucket: Bucket) -> list[tuple[str, int, int, int]]:
        """Return (name, rows, columns, rank) of the matrices that torch compresses, in order."""
        by_shape: dict[tuple[int, int], list[str]] = {}
        for name, view in zip(bucket.names, bucket.views, strict=True):
            rows, columns = view.shape
            by_shape.setdefault((rows, columns), []).append(name)
        matrices = []
        for (rows, columns), names in by_shape.items():
            rank = min(rows, columns, self._power.matrix_approximation_rank)
            if (rows + columns) * rank * self._power.min_compression_rate < rows * columns:
                matrices += [(name, rows, columns, rank) for name in names]
        return matrices

    def _put_factors(self, bucket: Bucket) -> None:
        matrices = self._matrices(bucket)
        flat, power = bucket.flat, self._power
        power.p_memory_dict.pop(bucket.number, None)
        power.q_memory_dict.pop(bucket.number, None)
        if all(name in self._factors for name, *_ in matrices):
            known = [self._factors[name].to(flat) for name, *_ in matrices]
            power.q_memory_dict[bucket.number] = torch.cat([flat.new_empty(0), *known])
            rows = sum(rows * rank for _, rows, _, rank in matrices)
            power.p_memory_dict[bucket.number] = flat.new_empty(rows)

    def _take_factors(self, bucket: Bucket) -> None:
        memory, first = self._power.q_memory_dict.pop(bucket.number), 0
        if not memory.isfinite().all():
            return  # a gradient overflowed: the next step starts from the factors before it
        for name, _, columns, rank in self._matrices(bucket):
            self._factors[name] = memory[first : first + columns * rank]
            first += columns * rank

    def state_dict(self) -> dict[str, Tensor]:
        kept = self.residual.state_dict()
        kept |= {f"factor.{name}": factor.clone() for name, factor in self._factors.items()}
        return kept | {"steps": torch.tensor(self._power.iter)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.residual.load_state_dict(state)
        self._factors = part(state, "factor")
        self._power.iter = int(state["steps"]) if "steps" in state else 0


def _as_matrices(bucket: Bucket) -> Bucket:
    """Return gradients as matrices in memory order: torch's `view` fails on channels-last ones."""
    views = [
        bucket.flat[first : first + count].view(view.shape[0] if view.dim() else 1, -1)
        for (_, first, count), view in zip(bucket.slices(), bucket.views, strict=True)
    ]
    return replace(bucket, views=views)
