"""The workers of one run: this process's rank, and the collectives that training needs.

A single process is a group of one in which every collective is a no-op, so that callers need not
distinguish the two.
"""

import atexit
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from thresher.device_check import is_tested
from thresher.environment import choose_device
from thresher.errors import InvalidValueError, ThresherError

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
TIMEOUT = timedelta(minutes=30)
"""How long a collective may take: rank 0 may be packing or writing meanwhile."""
CONNECT_TIMEOUT = timedelta(minutes=5)
"""How long ranks wait for each other when they connect."""


@dataclass(frozen=True)
class Placement:
    """Rank and world size of this process, on this machine and in all."""

    rank: int = 0
    world: int = 1
    local_rank: int | None = 0
    """None if nobody has said it."""
    local_world: int = 1


def placement() -> Placement:
    """Return the placement: that of the torch.distributed group if there is one, else `launched`.

    A program may have made the group without the variables of a launcher.
    """
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        rank, world, known = dist.get_rank(), dist.get_world_size(), launched()
        local = known.local_rank if known.world == world else None
        return replace(known, rank=rank, world=world, local_rank=local)
    return launched()


def launched() -> Placement:
    """Read the placement from the environment: torchrun's variables first, then SLURM's."""
    env = os.environ
    if "RANK" in env and "WORLD_SIZE" in env:
        world = env["WORLD_SIZE"]
        local = int(env["LOCAL_RANK"]) if "LOCAL_RANK" in env else None
        local_world = int(env.get("LOCAL_WORLD_SIZE", world))
        return Placement(int(env["RANK"]), int(world), local, local_world)
    if int(env.get("SLURM_STEP_NUM_TASKS", 1)) > 1 and "SLURM_PROCID" in env:
        world = env["SLURM_STEP_NUM_TASKS"]
        per_node = re.match(r"\d+", env.get("SLURM_STEP_TASKS_PER_NODE", ""))
        local_world = int(per_node.group() if per_node else world)
        local_rank = int(env.get("SLURM_LOCALID", 0))
        return Placement(int(env["SLURM_PROCID"]), int(world), local_rank, local_world)
    return Placement()


def gpu_number(where: Placement, gpus: int) -> int:
    """Return which of the GPUs of this machine a worker computes on.

    Without a local rank, ranks are taken to follow each other on a machine, as launchers number
    them; no two of up to `gpus` such workers share one.
    """
    return where.rank % gpus if where.local_rank is None else where.local_rank


def first_host(nodes: str) -> str:
    """Return the first name of a SLURM node list: `n[3-5,9],m1` gives n3."""
    match = re.match(r"([^,\[]+)(?:\[(\d+))?", nodes)
    if match is None:
        raise InvalidValueError(f'cannot parse the node list "{nodes}"', "set MASTER_ADDR")
    return match.group(1) + (match.group(2) or "")


class Group:
    """The workers of a run, seen from one of them, which computes on `device`."""

    def __init__(self, where: Placement, device: "torch.device") -> None:
        self.rank, self.world, self.local_world = where.rank, where.world, where.local_world
        self.device = device

    @property
    def alone(self) -> bool:
        return self.world == 1

    @property
    def first(self) -> bool:
        """Whether this process writes and prints for the group."""
        return self.rank == 0

    def all_reduce_sum(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """Sum over the group, in place."""
        if not self.alone:
            _dist().all_reduce(tensor)
        return tensor

    def set_to_mean(self, tensors: "list[torch.Tensor]", weight: float) -> None:
        """Set tensors to their mean over the group, in which this rank has `weight`, in place."""
        import torch

        if self.alone:
            return
        with torch.no_grad():
            flat = torch.cat([*(tensor.reshape(-1) for tensor in tensors), tensors[0].new_ones(1)])
            flat.mul_(weight)
            self.all_reduce_sum(flat)
            flat.div_(flat[-1].clone())
            pieces = flat[:-1].split([tensor.numel() for tensor in tensors])
            for tensor, piece in zip(tensors, pieces, strict=True):
                tensor.copy_(piece.view(tensor.shape))

    def broadcast(self, value: T, source: int = 0) -> T:
        """Return the picklable value of rank `source` on every rank."""
        if self.alone:
            return value
        import torch

        box = [value]
        # Objects travel over gloo; NCCL would stage them through the GPU.
        _dist().broadcast_object_list(box, src=source, device=torch.device("cpu"))
        return box[0]

    def gather(self, value: T) -> list[T]:
        """Return every rank's picklable value, in rank order, on every rank."""
        if self.alone:
            return [value]
        values: list[Any] = [None] * self.world
        _dist().all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if not self.alone:
            _dist().barrier()

    def on_first(self, work: Callable[[], T]) -> T:
        """Call `work` on rank 0; every rank returns its value, or raises its ThresherError."""
        value: Any = None
        failure: ThresherError | None = None
        if self.first:
            try:
                value = work()
            except ThresherError as error:
                failure = error
        # Without the error, a full disk on rank 0 would leave the other ranks waiting.
        value, failure = self.broadcast((value, failure))
        if failure is not None:
            raise failure
        return value


_joined: dict[str, Group] = {}


def _dist() -> Any:
    import torch.distributed

    return torch.distributed


def join(device: str = "auto") -> Group:
    """Join the group that the environment names; the connection lasts as long as the process.

    Args:
        device: "cpu", "cuda" or "auto" (a GPU per local rank if there are enough).
    """
    import torch

    where, dist = placement(), _dist()
    chosen = choose_device(device)
    if where.world == 1:
        return Group(where, chosen)
    if not is_tested(chosen):
        raise InvalidValueError(
            f"{where.world} workers cannot share {chosen.type}", "use one, or device cpu", "device"
        )
    if chosen.type == "cuda" and torch.cuda.device_count() < where.local_world:
        if device == "cuda":
            raise InvalidValueError(
                f"{where.local_world} workers need as many GPUs, this machine has "
                f"{torch.cuda.device_count()}",
                "use fewer workers",
            )
        chosen = torch.device("cpu")
    if chosen.type not in _joined:
        if chosen.type == "cuda":
            chosen = torch.device("cuda", gpu_number(where, torch.cuda.device_count()))
            torch.cuda.set_device(chosen)
        if not dist.is_initialized():
            _connect(where, chosen.type)
        _joined[chosen.type] = Group(where, chosen)
    return _joined[chosen.type]


def _connect(where: Placement, kind: str) -> None:
    dist, env = _dist(), os.environ
    if "MASTER_ADDR" not in env:
        nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST", "127.0.0.1")
        one = int(env.get("SLURM_STEP_NUM_NODES", env.get("SLURM_NNODES", 1))) == 1
        env["MASTER_ADDR"] = "127.0.0.1" if one else first_host(nodes)
        # Two steps of one job, or two jobs on one node, must not meet at the same port.
        job, step = int(env.get("SLURM_JOB_ID", 0)), int(env.get("SLURM_STEP_ID", 0) or 0)
        env.setdefault("MASTER_PORT", str(20000 + (job * 31 + step) % 20000))
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    # torch's agent keeps one store over restarts: without a prefix of its own a restarted group
    # reads the addresses of the dead one, and waits for them.
    attempt = env.get("TORCHELASTIC_RESTART_COUNT", "0")
    served = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    base = dist.TCPStore(
        env["MASTER_ADDR"],
        int(env["MASTER_PORT"]),
        where.world,
        is_master=where.rank == 0 and not served,
        timeout=CONNECT_TIMEOUT,
    )
    dist.init_process_group(
        backend,
        store=dist.PrefixStore(f"thresher/{attempt}/{where.world}", base),
        rank=where.rank,
        world_size=where.world,
        timeout=TIMEOUT,
    )
    atexit.register(leave)


def leave() -> None:
    """Close the connection; `join` may be called again only in a new group."""
    _joined.clear()
    dist = _dist()
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def end(code: int) -> NoReturn:
    """End this process; the only way out of a worker."""
    if placement().world == 1 and not _joined:
        raise SystemExit(code)
    # Skip the interpreter's teardown: a thread of gloo that completes a future with a Python
    # callback would take the interpreter's lock during it, and C++ then aborts the process.
    if "cuda" in _joined and code == 0:
        leave()  # NCCL complains about open connections
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
