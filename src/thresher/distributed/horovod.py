"""Horovod as a second engine, for comparison with DDP.

The workers are started as for DDP and keep their torch group for everything but gradients; Horovod
joins the same ranks over its own Gloo. Its queue is dynamic: each gradient is announced when it is
computed, ranks negotiate once per cycle which ones all of them have, and those are packed into the
fusion buffer and summed. DDP's buckets are fixed beforehand. `tools/build_horovod.sh` installs it.
"""

import contextlib
import os
import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from thresher.distributed.group import Group, Placement
from thresher.distributed.names import check_compress
from thresher.errors import MissingDependencyError

_servers: list[Any] = []
"""Rank 0's rendezvous server, which must live as long as the process."""


def require() -> Any:
    """Return the module `horovod.torch`; raise MissingDependencyError if it is not installed."""
    try:
        import horovod.torch as hvd
    except ImportError as error:
        raise MissingDependencyError(
            "`engine` horovod needs Horovod, which is not installed",
            "build it with tools/build_horovod.sh (make horovod)",
        ) from error
    return hvd


def join(fusion_mb: float | None = None, cycle_ms: float | None = None) -> Any:
    """Join Horovod with the ranks of the current torch group; return the module `horovod.torch`.

    `fusion_mb`, the size of the fusion buffer (default 128; 0 sends each gradient alone), and
    `cycle_ms` between negotiations (default 1) hold until `leave`. HOROVOD_TIMELINE names a file
    for its timeline.
    """
    hvd = require()
    if hvd.is_initialized():
        return hvd
    if fusion_mb is not None:
        os.environ["HOROVOD_FUSION_THRESHOLD"] = str(int(fusion_mb * 1024 * 1024))
    if cycle_ms is not None:
        os.environ["HOROVOD_CYCLE_TIME"] = str(cycle_ms)
    joined = dist.is_initialized()
    where = Placement(dist.get_rank(), dist.get_world_size()) if joined else Placement()
    rank, group = where.rank, Group(where, torch.device("cpu"))
    hosts = group.gather(os.environ.get("THRESHER_HOST", socket.gethostname()))
    local = [r for r, host in enumerate(hosts) if host == hosts[rank]]
    order = list(dict.fromkeys(hosts))
    interface = os.environ.get("GLOO_SOCKET_IFNAME") or ("lo" if len(order) == 1 else "")
    wanted = {
        "HOROVOD_HOSTNAME": hosts[rank],
        "HOROVOD_RANK": rank,
        "HOROVOD_SIZE": len(hosts),
        "HOROVOD_LOCAL_RANK": local.index(rank),
        "HOROVOD_LOCAL_SIZE": len(local),
        "HOROVOD_CROSS_RANK": order.index(hosts[rank]),
        "HOROVOD_CROSS_SIZE": len(order),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": interface,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": socket.gethostbyname(
            os.environ.get("MASTER_ADDR", "127.0.0.1")
        ),
        "HOROVOD_GLOO_RENDEZVOUS_PORT": group.gather(_serve(hosts) if rank == 0 else 0)[0],
    }
    os.environ.update({name: str(value) for name, value in wanted.items() if value != ""})
    hvd.init()
    return hvd


def leave() -> None:
    """Leave Horovod on all ranks, which completes its timeline.

    Joining again in the same process crashed Horovod 0.28.1: other settings need new processes.
    """
    require().shutdown()


def _serve(hosts: list[str]) -> int:
    """Start Horovod's rendezvous server on this rank; return its port."""
    from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer()
    port = int(server.start())
    slots = [HostInfo(host, count) for host, count in Counter(hosts).items()]
    server.init(get_host_assignments(slots, len(hosts)))
    _servers.append(server)
    return port


class HorovodReducer:
    """Sum each gradient over ranks as soon as the backward pass has computed it.

    In a training loop (no DDP; the loss divided by the *global* number of samples):

        reducer = HorovodReducer(model.named_parameters())
        for batch in …:
            with reducer.no_sync():           # all pieces of an accumulated batch but the last
                …backward()
            loss.backward()                   # the sums begin here
            reducer.synchronize()             # now p.grad is the sum over ranks
            optimizer.step()
        reducer.close()

    Every rank must make it at the same point. A parameter without a gradient takes part with
    zeros. `compress` is none or fp16 (Horovod's own cast).
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, nn.Parameter]],
        compress: str = "none",
        fusion_mb: float | None = None,
        cycle_ms: float | None = None,
    ) -> None:
        check_compress(compress, engine="horovod")
        self._hvd = join(fusion_mb, cycle_ms)
        kinds = self._hvd.Compression
        self._cast = kinds.fp16 if compress == "fp16" else kinds.none
        self.parameters = {n: p for n, p in named_parameters if p.requires_grad}
        self._under_way: dict[str, tuple[Any, Any]] = {}
        self._enabled = True
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._computed, name))
            for name, parameter in self.parameters.items()
        ]

    def _computed(self, name: str, parameter: nn.Parameter) -> None:
        if self._enabled:
            self._start(name, parameter)

    def _start(self, name: str, parameter: nn.Parameter) -> None:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        sent, how = self._cast.compress(_flat(parameter.grad))
        handle = self._hvd.allreduce_async_(sent, name=f"gradient.{name}", op=self._hvd.Sum)
        self._under_way[name] = (handle, how)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Return a context in which gradients only accumulate, as in DDP."""
        self._enabled = False
        try:
            yield
        finally:
            self._enabled = True

    @torch.no_grad()
    def synchronize(self) -> None:
        """Wait until every gradient is the sum over ranks."""
        for name, parameter in self.parameters.items():
            if name not in self._under_way:
                self._start(name, parameter)
        for name, (handle, how) in self._under_way.items():
            summed = self._cast.decompress(self._hvd.synchronize(handle), how)
            gradient = self.parameters[name].grad
            assert gradient is not None
            if gradient.data_ptr() != summed.data_ptr():
                _flat(gradient).copy_(summed)
        self._under_way.clear()

    def close(self) -> None:
        """Remove the hooks; Horovod itself stays joined until the process ends."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


def _flat(gradient: torch.Tensor) -> torch.Tensor:
    """Return the gradient's memory as one row: Horovod refuses layouts such as channels last."""
    return gradient.as_strided((gradient.numel(),), (1,))
