"""Ring, hierarchical and 2-D torus all-reduce on torch's groups.

N bytes, p ranks, α seconds per message, β seconds per byte:

    ring          2(p−1)α + 2(p−1)/p·Nβ: 2(p−1) neighbour messages of N/p bytes
    hierarchical  scatter-reduce among the g ranks of a node, all-reduce of N/g bytes across the
                  nodes, gather within the node: only N/g bytes per rank cross the slow links
    torus         ranks on an X×Y grid: the same three steps with rings along rows, then columns;
                  2(X−1) + 2(Y−1) messages instead of 2(XY−1)

Each works in place on any dtype that torch can add, and on any size (parts are cut by
`tensor_split`); an empty part is neither sent nor awaited.
"""

import math
import os

import torch
import torch.distributed as dist
from torch import Tensor

from thresher.distributed.exchange import Reduce, whole
from thresher.distributed.group import launched
from thresher.errors import InvalidValueError, nearest


def make(name: str, group: dist.ProcessGroup | None = None) -> Reduce:
    """Make an all-reduce (ring, hierarchical or torus) that sums a tensor over `group` in place.

    Every rank must call it at the same point: it makes process groups of rows and columns.
    """
    ranks = dist.get_process_group_ranks(whole(group))
    world = len(ranks)
    if name == "ring":
        return _whole(lambda tensor: ring_all_reduce(tensor, group))
    if name not in ("torus", "hierarchical"):
        known = ("ring", "hierarchical", "torus")
        raise InvalidValueError(f'unknown all-reduce "{name}"', nearest(name, known))
    width = torus_width(world) if name == "torus" else _node_size(group, world)
    rows = [ranks[first : first + width] for first in range(0, world, width)]
    return _whole(_Leaders(rows) if world % width else _Grid(rows, rings=name == "torus"))


def torus_width(world: int) -> int:
    """Return the largest divisor up to √world: 8 → 2 (2×4), 9 → 3, a prime → 1 (one ring)."""
    return max(d for d in range(1, math.isqrt(world) + 1) if world % d == 0)


def _node_size(group: dist.ProcessGroup | None, world: int) -> int:
    """Return the ranks of the largest node by torchrun or SLURM; all ranks without those."""
    where = launched()
    own = where.local_world if where.world > 1 else world
    # Nodes may differ in size, but every rank must make the same groups.
    sizes: list[int] = [0] * world
    dist.all_gather_object(sizes, int(os.environ.get("LOCAL_WORLD_SIZE", own)), group=group)
    if max(sizes) < 1:
        raise InvalidValueError(f"LOCAL_WORLD_SIZE must be at least 1, got {max(sizes)}")
    return min(max(sizes), world)


def _whole(reduce: Reduce) -> Reduce:
    """Handle tensors that are not contiguous, through a copy."""

    def run(tensor: Tensor) -> None:
        if tensor.numel():
            flat = tensor.contiguous().view(-1)
            reduce(flat)
            if not tensor.is_contiguous():
                tensor.copy_(flat.view(tensor.shape))

    return run


def ring_all_reduce(flat: Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Sum `flat` (n,) over the group in 2(p−1) neighbour messages."""
    parts = list(flat.tensor_split(dist.get_world_size(group)))
    _ring_reduce_scatter(parts, group)
    _ring_all_gather(parts, group)


def _ring_reduce_scatter(parts: list[Tensor], group: dist.ProcessGroup | None) -> None:
    """After p−1 messages, rank r holds the sum of part r; the other parts are undefined."""
    world, rank = len(parts), dist.get_rank(group)
    if world == 1:
        return
    received = torch.empty_like(max(parts, key=Tensor.numel))
    for step in range(world - 1):
        out, into = parts[(rank - step - 1) % world], parts[(rank - step - 2) % world]
        arriving = received[: into.numel()]
        _shift(out, arriving, group)
        into += arriving


def _ring_all_gather(parts: list[Tensor], group: dist.ProcessGroup | None) -> None:
    """After p−1 messages every rank holds part r as rank r had it."""
    world, rank = len(parts), dist.get_rank(group)
    for step in range(world - 1):
        _shift(parts[(rank - step) % world], parts[(rank - step - 1) % world], group)


def _shift(out: Tensor, into: Tensor, group: dist.ProcessGroup | None) -> None:
    """Send to the next rank of the ring while receiving from the one before."""
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    after = dist.get_global_rank(whole(group), (rank + 1) % world)
    before = dist.get_global_rank(whole(group), (rank - 1) % world)
    ends = ((dist.isend, out, after), (dist.irecv, into, before))
    moves = [dist.P2POp(kind, data, peer, group) for kind, data, peer in ends if data.numel()]
    for work in dist.batch_isend_irecv(moves) if moves else ():
        work.wait()


class _Grid:
    """Rows of consecutive ranks, columns across them; rows, then columns, then rows."""

    def __init__(self, rows: list[list[int]], rings: bool) -> None:
        self.row = _mine(rows)
        self.column = _mine([list(column) for column in zip(*rows, strict=True)])
        self.width, self.rings = len(rows[0]), rings

    def __call__(self, flat: Tensor) -> None:
        parts = list(flat.tensor_split(self.width))
        mine = parts[dist.get_rank(self.row)]
        _ring_reduce_scatter(parts, self.row)
        if mine.numel():
            if self.rings:
                ring_all_reduce(mine, self.column)
            else:
                dist.all_reduce(mine, group=self.column)
        _ring_all_gather(parts, self.row)


class _Leaders:
    """Nodes of unequal size: reduce to the first rank of each, all-reduce those, broadcast."""

    def __init__(self, rows: list[list[int]]) -> None:
        self.row = _mine(rows)
        self.leaders = dist.new_group([row[0] for row in rows])
        self.leader = next(row[0] for row in rows if dist.get_rank() in row)

    def __call__(self, flat: Tensor) -> None:
        dist.reduce(flat, self.leader, group=self.row)
        if dist.get_rank() == self.leader:
            dist.all_reduce(flat, group=self.leaders)
        dist.broadcast(flat, self.leader, group=self.row)


def _mine(rows: list[list[int]]) -> dist.ProcessGroup:
    """Make a group of each row, with all ranks taking part; return this rank's own."""
    groups = [dist.new_group(row) for row in rows]
    return next(g for g, row in zip(groups, rows, strict=True) if dist.get_rank() in row)
