"""Communication hooks for DDP: compression and all-reduce algorithms.

    state, hook = gradient_hook("int8", "default", model.named_parameters())
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(state, hook)

DDP's gradients are then the **sum** over ranks (DDP alone gives the mean): with each local loss
divided by the global number of samples, uneven parts are exact.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, get_args

import torch
import torch.distributed as dist

from thresher.distributed import allreduce as algorithms
from thresher.distributed.compression import Bf16, Fp16, Int8, PowerSGD, TopK
from thresher.distributed.exchange import Bucket, Exchange, Summed, names_of
from thresher.distributed.names import AllReduce, Compress
from thresher.errors import InvalidValueError, nearest

Hook = Callable[["HookState", dist.GradBucket], torch.futures.Future[torch.Tensor]]


def make_exchange(
    compress: str = "none",
    allreduce: str = "default",
    group: dist.ProcessGroup | None = None,
    *,
    node_size: int | None = None,
    share: float = 0.01,
    power_rank: int = 2,
    power_start: int = 2,
) -> Exchange:
    """Make the exchange that sums buckets; every rank must call it at the same point.

    Args:
        compress: none, fp16, bf16, int8, powersgd or topk.
        allreduce: default, ring, hierarchical or torus.
        group: The ranks; by default all.
        node_size: Ranks per node for hierarchical and torus; by default LOCAL_WORLD_SIZE.
        share: Share of the elements that top-k sends.
        power_rank, power_start: PowerSGD's rank and first step.
    """
    if compress not in get_args(Compress):
        raise InvalidValueError(
            f'compress cannot be "{compress}"', nearest(compress, get_args(Compress)), "compress"
        )
    if allreduce not in get_args(AllReduce):
        raise InvalidValueError(
            f'allreduce cannot be "{allreduce}"',
            nearest(allreduce, get_args(AllReduce)),
            "allreduce",
        )
    if allreduce != "default":
        wires = {"none": None, "fp16": torch.float16, "bf16": torch.bfloat16}
        if compress not in wires:
            raise InvalidValueError(
                f"`compress` {compress} does not work with `allreduce` {allreduce}",
                "use the default all-reduce, or compress none, fp16 or bf16",
            )
        make = partial(algorithms.make, allreduce, node_size=node_size)
        return Summed(make, group, wires[compress])
    if compress == "topk":
        return TopK(group, share)
    if compress == "powersgd":
        return PowerSGD(group, power_rank, power_start)
    simple = {"none": Exchange, "fp16": Fp16, "bf16": Bf16, "int8": Int8}
    return simple[compress](group)


class HookState:
    """The state of the hook: the exchange, and the names of the parameters."""

    def __init__(
        self, exchange: Exchange, parameters: Iterable[tuple[str, torch.nn.Parameter]]
    ) -> None:
        self.exchange = exchange
        self.names = names_of(parameters)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return this rank's state as tensors; call it between steps."""
        return self.exchange.state_dict()

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.exchange.load_state_dict(state)

    def close(self) -> None:
        """Free threads and process groups; call it before `destroy_process_group`."""
        self.exchange.close()


def _hook(state: HookState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    names = tuple(state.names[id(parameter)] for parameter in bucket.parameters())
    ours = Bucket(bucket.buffer(), names, bucket.gradients(), bucket.index(), bucket.is_last())
    return state.exchange.start(ours)


def gradient_hook(
    compress: str = "none",
    allreduce: str = "default",
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] = (),
    group: dist.ProcessGroup | None = None,
    **settings: Any,
) -> tuple[HookState, Hook]:
    """Return (state, hook) for `ddp.register_comm_hook`; gradients become the sum over ranks.

    `named_parameters` are those of the bare model, not of the wrapper; for the rest, `settings`
    included, see `make_exchange`. `state.state_dict()` belongs in a checkpoint, one per rank; see
    `exchange.redistribute` for another number of workers.
    """
    exchange = make_exchange(compress, allreduce, group, **settings)
    return HookState(exchange, named_parameters), _hook
