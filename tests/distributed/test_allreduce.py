"""Our all-reduce algorithms give what torch's own gives."""

import functools
import os

import pytest
import torch
import torch.distributed as dist

from gloo_ranks import run_ranks
from thresher.distributed import allreduce

pytestmark = pytest.mark.xdist_group("ranks")

INTEGERS = (torch.int64, torch.int32, torch.int8, torch.uint8)
FLOATS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def _cases(rank: int) -> list[tuple[str, torch.Tensor]]:
    """Every dtype at an odd size, every size and layout in float32."""
    torch.manual_seed(rank)
    cases = [
        (f"13 of {dtype}", (torch.rand(13).double() * 9).to(dtype))
        for dtype in (*FLOATS, *INTEGERS)
    ]
    cases += [(f"{n} elements", torch.rand(n)) for n in (0, 1, 2, 7, 1001)]
    cases += [
        ("a matrix", torch.rand(3, 5)),
        ("a transposed matrix", torch.rand(6, 11).t()),
        ("every other element", torch.rand(30)[::2]),
    ]
    return cases


def _agrees(rank: int, world: int, name: str, node_size: int | None) -> list[float]:
    """Compare with torch; the results as one list, which the test compares between ranks."""
    if node_size is not None:
        os.environ["LOCAL_WORLD_SIZE"] = str(node_size)
    reduce = allreduce.make(name)
    results: list[float] = []
    for what, ours in _cases(rank):
        theirs = ours.clone(memory_format=torch.contiguous_format)
        reduce(ours)
        dist.all_reduce(theirs)
        if ours.dtype in INTEGERS:
            assert torch.equal(ours, theirs), f"{name}, {what}: {ours} is not {theirs}"
        else:
            tolerance = FLOATS[ours.dtype]
            said = functools.partial("{}, {}: {}".format, name, what)
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance, msg=said)
        results += ours.double().flatten().tolist()
    return results


CASES: dict[str, list[tuple[int, int | None]]] = {
    "ring": [(world, None) for world in range(1, 9)],
    "torus": [(world, None) for world in (1, 3, 4, 6, 8)],
    "hierarchical": [(1, 1), (2, 1), (4, 2), (6, 3), (8, 4), (5, 2), (7, 3), (3, 9)],
}
"""Number of ranks, and ranks of a node, of each algorithm."""


def _all_agree(rank: int, world: int) -> dict[tuple[str, int | None], list[float]]:
    """Every algorithm that is tested on this number of ranks, in one start of the processes."""
    cases = [(name, size) for name, tested in CASES.items() for n, size in tested if n == world]
    return {(name, size): _agrees(rank, world, name, size) for name, size in cases}


@functools.cache
def _ranks(world: int) -> list[dict[tuple[str, int | None], list[float]]]:
    return run_ranks(world, _all_agree)


def _check(world: int, name: str, node_size: int | None = None) -> None:
    first, *others = (found[name, node_size] for found in _ranks(world))
    assert len(first) == 8 * 13 + 1011 + 15 + 66 + 15
    # Replicas must stay equal to the last bit, whatever the order of the additions was.
    assert all(other == first for other in others)


@pytest.mark.parametrize(
    "world",
    [pytest.param(n, marks=[pytest.mark.slow] if n > 3 else []) for n, _ in CASES["ring"]],
)
def test_ring(world: int) -> None:
    _check(world, "ring")


@pytest.mark.slow
@pytest.mark.parametrize("world", [n for n, _ in CASES["torus"]])
def test_torus(world: int) -> None:
    _check(world, "torus")


@pytest.mark.slow
@pytest.mark.parametrize(("world", "node_size"), CASES["hierarchical"])
def test_hierarchical(world: int, node_size: int) -> None:
    _check(world, "hierarchical", node_size)


def _from_environment(rank: int, world: int) -> list[int]:
    """Return the ranks per node by torchrun on nodes of 2 + 2 and of 3 + 1, and by SLURM."""
    slurm = {"STEP_NUM_TASKS": world, "PROCID": rank, "LOCALID": rank % 2}
    variables: list[dict[str, object]] = [
        {"LOCAL_WORLD_SIZE": 2},
        {"LOCAL_WORLD_SIZE": 3 if rank < 3 else 1},
        {f"SLURM_{k}": v for k, v in {**slurm, "STEP_TASKS_PER_NODE": "2(x2)"}.items()},
    ]
    found = []
    for names in variables:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in names.items():
                patch.setenv(name, str(value))
            tensor = torch.arange(9.0) * (rank + 1)
            allreduce.make("hierarchical")(tensor)
            assert torch.equal(tensor, torch.arange(9.0) * sum(range(1, world + 1)))
            found.append(allreduce._node_size(None, world))
    return found


def test_node_size_comes_from_the_environment() -> None:
    assert run_ranks(4, _from_environment) == [[2, 3, 2]] * 4


def test_torus_is_as_square_as_it_can_be() -> None:
    widths = {1: 1, 2: 1, 4: 2, 6: 2, 7: 1, 8: 2, 9: 3, 12: 3, 16: 4, 1536: 32}
    assert {world: allreduce.torus_width(world) for world in widths} == widths
