"""The workers of one run: who I am among them, and the few collectives that training needs.

One process alone is a group of one in which every collective is a no-op, so that nothing above
asks how many there are.
"""

import atexit
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from thresher.errors import ThresherError

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
TIMEOUT = timedelta(minutes=30)


@dataclass(frozen=True)
class Place:
    """Where this process stands, as torchrun, srun or nobody said."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1


def place() -> Place:
    """Read the environment (no torch, no connection): torchrun's names first, then SLURM's."""
    env = os.environ
    if "RANK" in env and "WORLD_SIZE" in env:
        world = int(env["WORLD_SIZE"])
        return Place(
            int(env["RANK"]),
            world,
            int(env.get("LOCAL_RANK", 0)),
            int(env.get("LOCAL_WORLD_SIZE", world)),
        )
    if int(env.get("SLURM_STEP_NUM_TASKS", 1)) > 1 and "SLURM_PROCID" in env:
        world = int(env["SLURM_STEP_NUM_TASKS"])
        per_node = re.match(r"\d+", env.get("SLURM_STEP_TASKS_PER_NODE", ""))
        return Place(
            int(env["SLURM_PROCID"]),
            world,
            int(env.get("SLURM_LOCALID", 0)),
            int(per_node.group()) if per_node else world,
        )
    return Place()


def first_host(nodes: str) -> str:
    """The first name of a SLURM node list: `n[3-5,9],m1` gives n3."""
    match = re.match(r"([^,\[]+)(?:\[(\d+))?", nodes)
    if match is None:
        raise ThresherError(f'the node list "{nodes}" has no first node', "set MASTER_ADDR")
    return match.group(1) + (match.group(2) or "")


class Group:
    """`rank` of `world` processes, with `device` the one that this process computes on."""

    def __init__(self, where: Place, device: "torch.device") -> None:
        self.rank, self.world = where.rank, where.world
        self.local_rank, self.local_world = where.local_rank, where.local_world
        self.device = device

    @property
    def alone(self) -> bool:
        return self.world == 1

    @property
    def first(self) -> bool:
        """Whether this process writes and prints for all."""
        return self.rank == 0

    def all_reduce_sum(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """Sum over the group, in place."""
        if not self.alone:
            import torch.distributed as dist

            dist.all_reduce(tensor)
        return tensor

    def all_reduce_max(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """Maximum over the group, in place."""
        if not self.alone:
            import torch.distributed as dist

            dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return tensor

    def broadcast(self, value: T, source: int = 0) -> T:
        """`source`'s picklable value, on every rank."""
        if self.alone:
            return value
        import torch.distributed as dist

        box = [value]
        dist.broadcast_object_list(box, src=source, device=_object_device())
        return box[0]

    def broadcast_tensors(self, tensors: list["torch.Tensor"], source: int = 0) -> None:
        """Overwrite each tensor with that of `source`."""
        if self.alone:
            return
        import torch.distributed as dist

        for tensor in tensors:
            dist.broadcast(tensor, source)

    def gather(self, value: T) -> list[T]:
        """Every rank's picklable value, in rank order, on every rank."""
        if self.alone:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        if not self.alone:
            import torch.distributed as dist

            dist.barrier()

    def on_first(self, work: Callable[[], T]) -> T:
        """Let rank 0 do `work`; all get its value, or all raise the ThresherError that it met.

        Without that a full disk on rank 0 would leave the others waiting for ever.
        """
        if self.alone:
            return work()
        value: Any = None
        trouble: tuple[str, str] | None = None
        if self.first:
            try:
                value = work()
            except ThresherError as error:
                trouble = (error.what, error.fix)
        value, trouble = self.broadcast((value, trouble))
        if trouble is not None:
            raise ThresherError(*trouble)
        return value


_joined: dict[str, Group] = {}


def join(device: str = "auto") -> Group:
    """Join the group that the environment names; the connection lasts as long as the process.

    `device`: cpu, cuda or auto (a GPU where there is one, each local rank its own).
    """
    import torch
    import torch.distributed as dist

    where = place()
    if dist.is_available() and dist.is_initialized():
        where = Place(dist.get_rank(), dist.get_world_size(), where.local_rank, where.local_world)
    if device == "cuda" and not torch.cuda.is_available():
        raise ThresherError("there is no GPU here", "use --device cpu")
    kind = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
    if where.world == 1:
        return Group(where, torch.device(kind))
    if kind == "cuda" and torch.cuda.device_count() < where.local_world:
        if device == "cuda":
            raise ThresherError(
                f"{where.local_world} workers need as many GPUs, there are "
                f"{torch.cuda.device_count()}",
                "use fewer workers",
            )
        kind = "cpu"
    if kind not in _joined:
        target = torch.device(kind, where.local_rank) if kind == "cuda" else torch.device("cpu")
        if kind == "cuda":
            torch.cuda.set_device(target)
        if not dist.is_initialized():
            _connect(where, kind)
        _joined[kind] = Group(where, target)
    return _joined[kind]


def _connect(where: Place, kind: str) -> None:
    import torch.distributed as dist

    env = os.environ
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
        timeout=TIMEOUT,
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
    import torch.distributed as dist

    _joined.clear()
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def end(code: int) -> NoReturn:
    """End this process, by the short way if it was one among several."""
    if not _joined:
        raise SystemExit(code)
    if "cuda" in _joined:
        leave()  # NCCL complains of connections that were left open
    end_at_once(code)


def end_at_once(code: int) -> NoReturn:
    """End a rank whose work is written, without the interpreter's teardown.

    That can meet a thread of torch or gloo which wants the lock once more, and C++ then aborts the
    process, after the last result: one in ten of those that had not closed their group (torch
    2.13), and once in some thousand runs of those that had.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _object_device() -> "torch.device":
    import torch

    # Objects travel over gloo; NCCL would stage them through the GPU.
    return torch.device("cpu")
