"""`gradient_hook`: how `--compress` and `--allreduce` reach DDP.

    state, hook = gradient_hook("int8", "default", model.named_parameters())
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(state, hook)

The gradients that DDP then holds are the **sum** over ranks (DDP alone would give the mean): with
each local loss divided by the global number of samples, uneven parts are exact.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import get_args

import torch
import torch.distributed as dist

from thresher.distributed import allreduce as algorithms
from thresher.distributed.compression import Bf16, Fp16, Int8, PowerSGD, TopK
from thresher.distributed.exchange import Bucket, Exchange, Summed, names_of
from thresher.distributed.names import AllReduce, Compress
from thresher.errors import ThresherError, nearest

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
    """How to sum a bucket. Every rank calls it at the same place (it may make process groups).

    `node_size`: ranks per node for hierarchical and torus; None reads LOCAL_WORLD_SIZE.
    `share`: of top-k. `power_rank`, `power_start`: PowerSGD's rank and its first step.
    """
    if compress not in get_args(Compress):
        raise ThresherError(
            f'there is no compression "{compress}"', nearest(compress, get_args(Compress))
        )
    if allreduce not in get_args(AllReduce):
        raise ThresherError(
            f'there is no all-reduce "{allreduce}"', nearest(allreduce, get_args(AllReduce))
        )
    if allreduce != "default":
        wires = {"none": None, "fp16": torch.float16, "bf16": torch.bfloat16}
        if compress not in wires:
            raise ThresherError(
                f"--compress {compress} brings its own exchange and cannot use "
                f"--allreduce {allreduce}",
                "use --allreduce default, or --compress none, fp16 or bf16",
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
    """What `register_comm_hook` keeps: the exchange, and the names of the parameters."""

    def __init__(
        self, exchange: Exchange, parameters: Iterable[tuple[str, torch.nn.Parameter]]
    ) -> None:
        self.exchange = exchange
        self.names = names_of(parameters)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """This rank's memory, as tensors only; call it between steps."""
        return self.exchange.state_dict()

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.exchange.load_state_dict(state)

    def close(self) -> None:
        """Give back threads and process groups; before `destroy_process_group`."""
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
    *,
    node_size: int | None = None,
    share: float = 0.01,
    power_rank: int = 2,
    power_start: int = 2,
) -> tuple[HookState, Hook]:
    """(state, hook) for `ddp.register_comm_hook`; the gradients become the sum over ranks.

    `named_parameters` are the bare model's (`model.named_parameters()`, not the wrapper's); the
    rest as in `make_exchange`. `state.state_dict()` goes into the checkpoint, one per rank; see
    `exchange.redistribute` for another number of workers.
    """
    exchange = make_exchange(
        compress,
        allreduce,
        group,
        node_size=node_size,
        share=share,
        power_rank=power_rank,
        power_start=power_start,
    )
    return HookState(exchange, named_parameters), _hook
