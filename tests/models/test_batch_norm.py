"""Sync and ghost batch norm: the same weights and statistics on any number of workers."""

import functools
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from gloo_ranks import run_ranks
from quick_network import narrow
from thresher.data.order import bounds
from thresher.errors import InvalidValueError, ThresherError
from thresher.models.batch_norm import (
    GhostBatchNorm,
    SyncBatchNorm,
    _Normalise,
    convert,
    update_running_statistics,
)
from thresher.models.batch_norm_mode import alignment, in_one_piece, parse
from thresher.models.registry import build
from thresher.training.undo import forget_ghost_sums

pytestmark = pytest.mark.xdist_group("ranks")

SIZES = (22, 22, 9, 2)
"""Global batches: the last ones are uneven, and the very last leaves workers without a sample."""


def data(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    n = SIZES[step]
    x = torch.randn(n, 3, 8, 8, generator=generator, dtype=torch.float64) * 3 + 1
    return x, torch.randint(0, 5, (n,), generator=generator)


def train(
    mode: str, rank: int = 0, world: int = 1, pieces: int = 1, group: Any = None
) -> dict[str, Tensor]:
    """A few steps of SGD on this rank's parts, gradients summed over ranks by hand."""
    torch.manual_seed(0)
    model = convert(narrow(5).double(), mode, group)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    for step, n in enumerate(SIZES):
        x, y = data(step)
        begin, end = bounds(n, rank, world, alignment(mode))
        optimizer.zero_grad(set_to_none=False)
        count = 1 if in_one_piece(mode) else pieces
        for piece in range(count):
            a, b = bounds(end - begin, piece, count, alignment(mode))
            part = slice(begin + a, begin + b)
            logits = model(x[part])
            loss = nn.functional.cross_entropy(logits, y[part], reduction="sum") / n
            loss.backward()
        if world > 1:
            parameters = list(model.parameters())
            for parameter in parameters:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            gradients = [parameter.grad for parameter in parameters]
            total = torch._utils._flatten_dense_tensors(gradients)
            dist.all_reduce(total, group=group)
            parts = torch._utils._unflatten_dense_tensors(total, gradients)
            for parameter, part in zip(parameters, parts, strict=True):
                parameter.grad = part
        optimizer.step()
        update_running_statistics(model)
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


CASES = [
    ("local", 2, 1),
    *itertools.product(("sync", "ghost:4"), (2, 3, 4), (1,)),
    *(("ghost:4", 2, pieces) for pieces in (2, 5)),
]


def _worker(rank: int, world: int, folder: str) -> None:
    """All cases in one start of four processes; those of fewer workers in a group of their own."""
    groups = {world: dist.new_group(list(range(world))) for world in (2, 3, 4)}
    for mode, world, pieces in CASES:
        if rank < world:
            state = train(mode, rank, world, pieces, groups[world])
            torch.save(state, f"{folder}/{mode}-{world}-{pieces}-{rank}.pt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where each worker left its state at the end of each case."""
    path = tmp_path_factory.mktemp("states")
    run_ranks(4, _worker, str(path))
    return path


alone_once = functools.cache(train)
"""A case on one rank, in one piece; its state must not be changed."""


def spread(folder: Path, mode: str, world: int, pieces: int = 1) -> list[dict[str, Tensor]]:
    """The states of all workers of one case."""
    return [torch.load(folder / f"{mode}-{world}-{pieces}-{rank}.pt") for rank in range(world)]


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    return max((a[key].double() - b[key].double()).abs().max().item() for key in a)


@pytest.mark.slow  # trains on four processes
@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("mode", ["sync", "ghost:4"])
def test_any_number_of_workers_gives_the_same_weights(folder: Path, mode: str, world: int) -> None:
    """Weights, running statistics and batch counts; also on the workers that had no samples."""
    alone = alone_once(mode)
    for state in spread(folder, mode, world):
        assert distance(state, alone) < 1e-10
    assert alone["bn1.num_batches_tracked"] == len(SIZES)


@pytest.mark.slow  # trains on four processes
@pytest.mark.parametrize("pieces", [2, 5])
def test_accumulation_does_not_change_ghost(folder: Path, pieces: int) -> None:
    alone = alone_once("ghost:4")
    assert distance(train("ghost:4", pieces=pieces), alone) < 1e-10
    for state in spread(folder, "ghost:4", 2, pieces):
        assert distance(state, alone) < 1e-10


@pytest.mark.slow  # trains on four processes
def test_local_differs_between_worker_counts(folder: Path) -> None:
    """The comparison above can fail: with local statistics it does."""
    assert distance(spread(folder, "local", 2)[0], train("local")) > 1e-4


def _layer(rank: int, world: int, empty: int, dtype: torch.dtype) -> list[list[Tensor]]:
    """Outputs and input gradients, then summed gradients and statistics, of two steps of a layer.

    Rank `empty` has none of the samples.
    """
    torch.manual_seed(0)
    plain = nn.BatchNorm2d(4, dtype=torch.float64 if dtype == torch.float64 else None)
    nn.init.normal_(plain.weight)
    layer = convert(plain, "sync")
    part = slice(0, 0) if rank == empty else slice(None)
    own = []
    for _ in range(2):
        x, slope = ((2 * torch.randn(6, 4, 3, 3) + 1).to(dtype)[part] for _ in range(2))
        x.requires_grad_()
        y = layer(x)
        y.backward(slope)
        assert x.grad is not None
        own += [y.detach(), x.grad]
    shared = [p.grad for p in layer.parameters() if p.grad is not None]
    if world > 1:
        for gradient in shared:
            dist.all_reduce(gradient)
    return [own, [*shared, *layer.buffers()]]


@pytest.mark.parametrize("empty", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_worker_without_samples_changes_nothing(empty: int, dtype: torch.dtype) -> None:
    alone = _layer(0, 1, -1, dtype)
    ranks = run_ranks(2, _layer, empty, dtype)
    near = 1e-12 if dtype == torch.float64 else 0.03
    for rank, (own, shared) in enumerate(ranks):
        if rank == empty:
            assert all(tensor.shape == (0, 4, 3, 3) for tensor in own)
        else:
            torch.testing.assert_close(own, alone[0], rtol=near, atol=near)
        torch.testing.assert_close(shared, alone[1], rtol=near, atol=near)
    assert len(alone[1]) == 5


def test_sync_on_one_worker_is_torchs_batch_norm() -> None:
    assert distance(train("sync"), train("local")) == 0


def test_a_ghost_group_as_large_as_the_batch_is_torchs_batch_norm() -> None:
    assert distance(train("ghost:64"), train("local")) < 1e-12


@pytest.mark.parametrize("shape", [(12, 6), (12, 6, 5), (12, 6, 3, 4), (12, 6, 2, 3, 2)])
@pytest.mark.parametrize("size", [3, 5])
def test_ghost_equals_batch_norm_group_by_group(shape: tuple[int, ...], size: int) -> None:
    torch.manual_seed(1)
    kind: Any = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
    layer = kind[len(shape)](6).double()
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    reference = kind[len(shape)](6).double()
    reference.load_state_dict(layer.state_dict())
    ghost = convert(layer, f"ghost:{size}")
    x = torch.randn(shape, dtype=torch.float64) + 2
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    ours = ghost(a)
    theirs = torch.cat([reference(group) for group in b.split(size)])
    assert torch.allclose(ours, theirs, atol=1e-12)
    gradient = torch.randn_like(ours)
    ours.backward(gradient)
    theirs.backward(gradient)
    assert a.grad is not None
    assert b.grad is not None
    assert torch.allclose(a.grad, b.grad, atol=1e-12)
    for one, two in zip(ghost.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(one.grad, two.grad, atol=1e-12)  # type: ignore[arg-type]


def test_gradients_agree_with_finite_differences() -> None:
    torch.manual_seed(2)
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda *args: _Normalise.apply(*args, 1e-5, False, None)[0], (x, weight, bias)
    )


def test_channels_last_stays_and_half_precision_is_summed_in_float32() -> None:
    torch.manual_seed(3)
    layer = convert(nn.BatchNorm2d(8), "ghost:4")
    x = (torch.randn(8, 8, 6, 6) + 30).to(memory_format=torch.channels_last)
    assert layer(x).is_contiguous(memory_format=torch.channels_last)
    low = layer(x.bfloat16())
    assert low.dtype == torch.bfloat16
    assert (low.float() - layer(x.bfloat16().float())).abs().max() < 0.05


def test_evaluation_uses_running_statistics() -> None:
    for mode in ("sync", "ghost:4"):
        torch.manual_seed(4)
        plain = nn.BatchNorm2d(4)
        nn.init.uniform_(plain.running_mean)  # type: ignore[arg-type]
        twin = nn.BatchNorm2d(4)
        twin.load_state_dict(plain.state_dict())
        x = torch.randn(6, 4, 3, 3)
        assert torch.equal(convert(twin, mode).eval()(x), plain.eval()(x))


def test_convert_keeps_parameters_names_and_mode() -> None:
    model = build("resnet20", 10).eval()
    before = dict(model.named_parameters())
    names = list(model.state_dict())
    assert convert(model, "sync") is model
    assert all(before[name] is parameter for name, parameter in model.named_parameters())
    assert list(model.state_dict()) == names
    assert not any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    assert not any(m.training for m in model.modules())


@pytest.mark.parametrize("mode", ["sync", "ghost:2"])
def test_a_layer_that_is_used_twice_is_replaced_in_both_places(mode: str) -> None:
    """The second use went on with the statistics of each worker's part."""
    layer = nn.BatchNorm2d(4)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), layer, nn.ReLU(), layer)
    assert convert(model, mode) is model
    assert not any(isinstance(m, nn.BatchNorm2d) for m in model)
    assert model[1] is model[3]


def test_update_running_statistics_without_a_step_changes_nothing() -> None:
    model = convert(build("tiny", 5), "ghost:4")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    update_running_statistics(model)
    update_running_statistics(model)
    assert distance(before, model.state_dict()) == 0


class WithActivation(nn.BatchNorm2d):
    """As timm has it."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).relu()


class Renamed(nn.BatchNorm2d):
    """With another name, and the forward pass of torch."""


@pytest.mark.parametrize("mode", ["sync", "ghost:4"])
def test_layers_with_a_forward_pass_of_their_own_are_refused(mode: str) -> None:
    """A copy under our class would lose the activation."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), WithActivation(4))
    with pytest.raises(
        InvalidValueError, match=r'cannot replace layer "1" of class WithAct.*local'
    ):
        convert(model, mode)
    convert(model, "local")
    assert isinstance(model[1], WithActivation)
    assert not isinstance(convert(Renamed(4), mode), Renamed)


def test_sums_of_a_layer_without_running_statistics_can_be_forgotten() -> None:
    layer = convert(nn.BatchNorm2d(2, track_running_stats=False), "ghost:4")
    layer(torch.randn(8, 2, 3, 3))
    forget_ghost_sums(layer)
    update_running_statistics(layer)


def test_modes() -> None:
    assert parse("ghost:32") == ("ghost", 32)
    assert [alignment(m) for m in ("local", "sync", "ghost:16")] == [1, 1, 16]
    assert [in_one_piece(m) for m in ("local", "sync", "ghost:16")] == [False, True, False]
    for bad in ("ghost", "ghost:", "ghost:0", "ghost:-3", "ghost:x", "syncc", "sync:3"):
        with pytest.raises(ThresherError, match=f'batch_norm cannot be "{bad}"; use local'):
            parse(bad)


def _on_gpu(rank: int, world: int, folder: str) -> None:
    """Ours and torch's SyncBatchNorm side by side, both workers on the one GPU, through gloo."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/s", rank=rank, world_size=world)
    torch.manual_seed(5)
    ours = convert(nn.BatchNorm2d(16), "sync").cuda()
    assert isinstance(ours, SyncBatchNorm)
    theirs = nn.SyncBatchNorm(16).cuda()
    for _ in range(3):
        x = torch.randn(11, 16, 9, 9, generator=torch.Generator().manual_seed(6))[rank::3] * 2 + 5
        a, b = x.cuda().requires_grad_(), x.cuda().requires_grad_()
        gradient = torch.randn(x.shape, generator=torch.Generator().manual_seed(7)).cuda()
        one, two = ours(a), theirs(b)
        one.backward(gradient)
        two.backward(gradient)
        assert a.grad is not None
        assert b.grad is not None
        assert torch.allclose(one, two, atol=1e-5)
        assert torch.allclose(a.grad, b.grad, atol=1e-5)
    mine, peers = ours.state_dict(), theirs.state_dict()
    for key in mine:
        assert torch.allclose(mine[key].float(), peers[key].float(), rtol=1e-5, atol=1e-5), key
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(p.grad, q.grad, rtol=1e-4, atol=1e-4)  # type: ignore[arg-type]
    Path(folder, f"ok{rank}").touch()
    dist.destroy_process_group()


@pytest.mark.gpu
def test_sync_agrees_with_torchs_on_a_gpu(tmp_path: Path) -> None:
    mp.spawn(_on_gpu, (2, str(tmp_path)), nprocs=2)
    assert {p.name for p in tmp_path.glob("ok*")} == {"ok0", "ok1"}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("shape", "size"),
    [((64, 16, 32, 32), 8), ((100, 70, 7, 7), 32), ((40, 512, 1, 1), 64), ((12, 6), 5)],
)
def test_the_kernel_equals_torchs_operations(
    dtype: torch.dtype, shape: tuple[int, ...], size: int
) -> None:
    """On a GPU ghost batch norm has kernels of its own; in float64 it has none.

    What follows may change its output in place, as the ReLU of a ResNet does.
    """
    torch.manual_seed(0)
    x = (3 + 2 * torch.randn(shape)).to(dtype)
    slope = torch.randn(shape).to(dtype)
    results = []
    for device, kind in (("cuda", dtype), ("cpu", torch.float64)):
        layer = convert(nn.BatchNorm2d(shape[1]), f"ghost:{size}").to(device)
        assert isinstance(layer, GhostBatchNorm)
        layer.weight.data = torch.linspace(-1, 2, shape[1], device=device)
        given = x.to(device, kind)
        if len(shape) == 4:
            given = given.contiguous(memory_format=torch.channels_last)
        given.requires_grad_()
        out = layer.train()(given).mul_(0.5)
        assert out.dtype == kind
        wanted = torch.autograd.grad(out, (given, layer.weight, layer.bias), slope.to(device, kind))
        sums = layer.pending_sums().clone()
        results.append([t.detach().double().cpu() for t in (out, *wanted, sums)])
    near = 1e-4 if dtype == torch.float32 else 2e-2
    for ours, right in zip(*results, strict=True):
        scale = max(1.0, float(right.abs().max()))
        torch.testing.assert_close(ours / scale, right / scale, rtol=near, atol=near)


@pytest.mark.gpu
def test_a_group_has_the_same_bits_alone_and_among_others() -> None:
    torch.manual_seed(0)
    layer = convert(nn.BatchNorm2d(24), "ghost:16").cuda().train()
    x = torch.randn(80, 24, 9, 9, device="cuda").contiguous(memory_format=torch.channels_last)
    assert torch.equal(layer(x)[16:48], layer(x[16:48]))
