"""Communication hooks for DDP: compression and all-reduce algorithms.

    state, hook = gradient_hook("int8", "default", model.named_parameters())
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(state, hook)

DDP's gradients are then the **sum** over ranks (DDP alone gives the mean): with each local loss
divided by the global number of samples, uneven parts are exact.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import get_args

import torch
import torch.distributed as dist

from thresher.distributed import allreduce as algorithms
from thresher.distributed.compression import Bf16, Fp16, Int8, PowerSGD, TopK
from thresher.distributed.exchange import Bucket, Exchange, Summed
from thresher.distributed.names import AllReduce, check_compress
from thresher.errors import InvalidValueError, nearest

Hook = Callable[[Exchange, dist.GradBucket], torch.futures.Future[torch.Tensor]]
EXCHANGES: dict[str, type[Exchange]] = {
    "none": Exchange,
    "fp16": Fp16,
    "bf16": Bf16,
    "int8": Int8,
    "powersgd": PowerSGD,
    "topk": TopK,
}


def make_exchange(compress: str = "none", allreduce: str = "default") -> Exchange:
    """Make the exchange that sums buckets; every rank must call it at the same point.

    Args:
        compress: none, fp16, bf16, int8, powersgd or topk.
        allreduce: default, ring, hierarchical or torus.
    """
    for name, value, known in (
        ("compress", compress, EXCHANGES),
        ("allreduce", allreduce, get_args(AllReduce)),
    ):
        if value not in known:
            raise InvalidValueError(f'{name} cannot be "{value}"', nearest(value, known), name)
    check_compress(compress, allreduce)
    if allreduce != "default":
        wires = {"none": None, "fp16": torch.float16, "bf16": torch.bfloat16}
        return Summed(partial(algorithms.make, allreduce), wires[compress])
    return EXCHANGES[compress]()


def _hook(exchange: Exchange, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    names = tuple(exchange.names[id(parameter)] for parameter in bucket.parameters())
    ours = Bucket(bucket.buffer(), names, bucket.gradients(), bucket.index(), bucket.is_last())
    return exchange.start(ours)


def gradient_hook(
    compress: str = "none",
    allreduce: str = "default",
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] = (),
) -> tuple[Exchange, Hook]:
    """Return (state, hook) for `ddp.register_comm_hook`; see `make_exchange` for the parameters.

    `named_parameters` are those of the bare model, not of the wrapper. `state.state_dict()` belongs
    in a checkpoint, one per rank; see `exchange.redistribute` for another number of workers.
    """
    exchange = make_exchange(compress, allreduce)
    exchange.names = {id(parameter): name for name, parameter in named_parameters}
    return exchange, _hook
