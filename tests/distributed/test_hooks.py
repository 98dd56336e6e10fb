"""Gradient hooks over real ranks: sums, error feedback, convergence, checkpoints."""

import os
import threading
import time
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gloo_ranks import run_ranks
from thresher.distributed.compression import TopK
from thresher.distributed.exchange import redistribute
from thresher.distributed.hooks import gradient_hook, make_exchange
from thresher.errors import ThresherError

pytestmark = pytest.mark.xdist_group("ranks")

WITH_FEEDBACK = ("int8", "topk", "powersgd")


def _net(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(12, 40), nn.Tanh(), nn.Linear(40, 33), nn.Tanh(), nn.Linear(33, 1)
    ).to(dtype)


def _problem(rank: int, world: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Rank r's part of 60 samples; parts of different sizes."""
    torch.manual_seed(1)
    x = torch.randn(60, 12, dtype=dtype)
    y = torch.sin(x[:, :1]) + 0.5 * x[:, 1:2]
    cuts = {1: [60], 2: [41, 19], 3: [31, 17, 12]}[world]
    return x.split(cuts)[rank], y.split(cuts)[rank]


def _train(
    rank: int, world: int, compress: str, algorithm: str, steps: int, options: dict[str, Any]
) -> tuple[float, float, list[float], dict[str, Tensor]]:
    """First and last loss over all samples, the weights, and the hook's state."""
    dtype = torch.float64 if options.pop("double", False) else torch.float32
    if "node_size" in options:
        os.environ["LOCAL_WORLD_SIZE"] = options["node_size"]
    lr = options.pop("lr", 0.2)
    state = options.pop("state", None)
    weights = options.pop("weights", None)
    net = _net(dtype)
    if weights is not None:
        nn.utils.vector_to_parameters(torch.tensor(weights, dtype=dtype), net.parameters())
    # Buckets of a few kilobytes: several per step, as in a real network.
    ddp = DistributedDataParallel(net, bucket_cap_mb=4 / 1024)
    hook_state, hook = gradient_hook(compress, algorithm, net.named_parameters())
    if isinstance(hook_state, TopK):
        hook_state.share = options.pop("share", TopK.share)
    ddp.register_comm_hook(hook_state, hook)
    x, y = _problem(rank, world, dtype)
    if state is not None:
        # DDP regroups its buckets after the first backward pass, and blocks of int8 follow them.
        (ddp(x) - y).sum().backward()
        hook_state.load_state_dict(state[rank])
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (ddp(x) - y).square().sum() / 60
        loss.backward()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item())
        optimizer.step()
    kept = hook_state.state_dict()
    hook_state.close()
    vector = nn.utils.parameters_to_vector(net.parameters()).tolist()
    return losses[0], losses[-1], vector, kept


def _alone(steps: int, dtype: torch.dtype = torch.float64) -> list[float]:
    net = _net(dtype)
    x, y = _problem(0, 1, dtype)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
    for _ in range(steps):
        optimizer.zero_grad()
        ((net(x) - y).square().sum() / 60).backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(net.parameters()).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["default", "ring", "hierarchical", "torus"])
def test_uneven_ranks_take_the_path_of_one(algorithm: str) -> None:
    """The hook gives the sum, so parts of 31, 17 and 12 samples equal one worker with 60."""
    ranks = run_ranks(3, _train, "none", algorithm, 10, {"double": True, "node_size": "2"})
    for _, _, weights, _ in ranks:
        assert weights == pytest.approx(_alone(10), abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("compress", ["fp16", "bf16", *WITH_FEEDBACK])
def test_compressed_training_converges(compress: str) -> None:
    ranks = run_ranks(3, _train, compress, "default", 40, {"share": 0.05})
    for first, last, weights, _ in ranks:
        assert last < 0.15 * first
        assert weights == ranks[0][2], "replicas differ"


@pytest.mark.slow
@pytest.mark.parametrize("compress", ["fp16", "bf16"])
def test_cast_through_our_algorithms(compress: str) -> None:
    (first, last, weights, _), other = run_ranks(2, _train, compress, "ring", 20, {})
    assert last < 0.5 * first
    assert weights == other[2]


@patch.object(TopK, "share", 0.02)
def _sums(
    rank: int, world: int, compress: str, scales: tuple[float, ...] = (1.0,) * 12
) -> tuple[Tensor, Tensor, Tensor, bool]:
    """The sum of the steps' own gradients, of what the hook gave, and what is left in the errors.

    The loss of each step is multiplied by a scale, which may overflow.
    """
    net = nn.Linear(50, 40, dtype=torch.float64)
    nn.init.zeros_(net.weight)
    nn.init.zeros_(net.bias)
    ddp = DistributedDataParallel(net, bucket_cap_mb=1 / 1024)
    state, hook = gradient_hook(compress, "default", net.named_parameters())
    ddp.register_comm_hook(state, hook)
    own = torch.zeros(50 * 40 + 40, dtype=torch.float64)
    given = torch.zeros_like(own)
    exact = True
    torch.manual_seed(100 + rank)
    for scale in scales:
        x = torch.randn(7 + 5 * rank, 50, dtype=torch.float64)
        target = torch.randn(7 + 5 * rank, 40, dtype=torch.float64)
        # The weights never change, so this rank's own gradient is known in closed form.
        net.zero_grad()
        state.set_loss_scale(torch.tensor(scale, dtype=torch.float64))
        (ddp(x) * target * scale).sum().backward()
        mine = torch.cat([(target.T @ x).flatten(), target.sum(0)])
        got = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
        if not got.isfinite().all():
            continue  # such a step is skipped
        got /= scale
        whole = mine.clone()
        dist.all_reduce(whole)
        exact &= torch.allclose(got, whole, rtol=1e-9)
        own += mine
        given += got
    kept = state.state_dict()
    left = torch.cat([kept[f"error.{name}"] for name in ("weight", "bias")])
    state.close()
    return own, given, left, exact


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("compress", WITH_FEEDBACK)
def test_error_feedback_sums_to_the_uncompressed_gradient(compress: str, world: int) -> None:
    ranks = run_ranks(world, _sums, compress)
    whole = torch.stack([own for own, *_ in ranks]).sum(0)
    left = torch.stack([left for _, _, left, _ in ranks]).sum(0)
    for _, given, _, exact in ranks:
        assert not exact, "nothing was compressed, so nothing is tested"
        torch.testing.assert_close(given + left, whole, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("compress", WITH_FEEDBACK)
def test_errors_do_not_depend_on_the_scale_of_the_loss(compress: str) -> None:
    """As fp16 changes it; the steps that overflow add nothing and take nothing away."""
    inf = float("inf")
    ranks = run_ranks(2, _sums, compress, (1024.0, 512.0, inf, 2.0, 4.0, inf, 2.0, 4096.0))
    whole, left = (torch.stack([r[i] for r in ranks]).sum(0) for i in (0, 2))
    for _, given, _, exact in ranks:
        assert not exact, "nothing was compressed, so nothing is tested"
        torch.testing.assert_close(given + left, whole, rtol=1e-9, atol=1e-9)


@patch.object(TopK, "share", 0.1)
def _channels_last(rank: int, world: int, compress: str) -> tuple[Tensor, Tensor, Tensor]:
    """Sums over 5 steps of a convolution's own gradient, the given one, and what is left, all in
    the order of a channels-last weight's memory."""
    torch.manual_seed(0)
    net = nn.Conv2d(6, 16, 3, bias=False).double()
    net.weight.data = net.weight.data.contiguous(memory_format=torch.channels_last)
    ddp = DistributedDataParallel(net, gradient_as_bucket_view=True)
    state, hook = gradient_hook(compress, "default", net.named_parameters())
    ddp.register_comm_hook(state, hook)
    own = torch.zeros(16, 3, 3, 6, dtype=torch.float64)
    given = torch.zeros_like(own)
    torch.manual_seed(rank)
    for _ in range(5):
        x = torch.randn(2, 6, 5, 5, dtype=torch.float64)
        net.zero_grad()
        (mine,) = torch.autograd.grad(net(x).square().sum(), [net.weight])
        ddp(x).square().sum().backward()
        assert net.weight.grad is not None
        own += mine.permute(0, 2, 3, 1)
        given += net.weight.grad.permute(0, 2, 3, 1)
    left = state.state_dict()["error.weight"]
    state.close()
    return own.flatten(), given.flatten(), left


@pytest.mark.parametrize("compress", WITH_FEEDBACK)
def test_channels_last_weights(compress: str) -> None:
    ranks = run_ranks(2, _channels_last, compress)
    whole, left = (torch.stack([r[i] for r in ranks]).sum(0) for i in (0, 2))
    for _, given, _ in ranks:
        torch.testing.assert_close(given + left, whole, rtol=1e-9, atol=1e-9)
        assert not torch.allclose(given, whole, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("compress", WITH_FEEDBACK)
def test_resumed_run_equals_the_unbroken_one(compress: str) -> None:
    """To the last bit, once a backward pass has settled the new DDP's buckets."""
    options = {"share": 0.1}
    unbroken = run_ranks(2, _train, compress, "default", 9, dict(options))
    half = run_ranks(2, _train, compress, "default", 5, dict(options))
    state = [kept for *_, kept in half]
    assert all(isinstance(value, Tensor) for value in state[0].values())
    again = {"state": state, "weights": half[0][2], **options}
    resumed = run_ranks(2, _train, compress, "default", 4, again)
    assert resumed[0][2] == unbroken[0][2]


def test_errors_survive_another_number_of_workers() -> None:
    states = [{"error.w": torch.full((3,), float(r)), "steps": torch.tensor(4)} for r in range(5)]
    for world in (1, 2, 3, 7):
        dealt = [redistribute(states, rank, world) for rank in range(world)]
        assert torch.stack([d["error.w"] for d in dealt]).sum(0).tolist() == [10.0] * 3
        assert all(d["steps"] == 4 for d in dealt)
    assert redistribute(states, 3, 5) is states[3]


def _overflow(rank: int, world: int, compress: str) -> tuple[bool, bool, bool, bool]:
    """Whether an infinite gradient is seen by all, whether the step after it is clean, and whether
    the errors change only in the latter."""
    net = nn.Linear(30, 20)
    # The gradient of the bias, in a bucket of its own, does not overflow.
    ddp = DistributedDataParallel(net, bucket_cap_mb=1 / 1024)
    state, hook = gradient_hook(compress, "default", net.named_parameters())
    ddp.register_comm_hook(state, hook)
    seen, errors = [], []
    torch.manual_seed(rank)
    for step in range(6):
        net.zero_grad()
        x = torch.randn(2, 30) * (float("inf") if step == 4 and rank == 1 else 1.0)
        (ddp(x) * torch.randn(2, 20)).sum().backward()
        grads = [p.grad for p in net.parameters() if p.grad is not None]
        seen.append(all(bool(g.isfinite().all()) for g in grads))
        errors.append({k: v for k, v in state.state_dict().items() if k.startswith("error.")})
    state.close()
    unchanged = all(torch.equal(errors[3][name], errors[4][name]) for name in errors[3])
    changed = any(not torch.equal(errors[4][name], errors[5][name]) for name in errors[4])
    return not seen[4], seen[5], unchanged, changed


@pytest.mark.parametrize("compress", WITH_FEEDBACK)
def test_divergence_is_seen_and_does_not_poison_the_errors(compress: str) -> None:
    assert run_ranks(2, _overflow, compress) == [(True, True, True, True)] * 2


def test_refusals() -> None:
    with pytest.raises(ThresherError, match=r'compress cannot be "int9"; did you mean "int8"'):
        make_exchange("int9")
    with pytest.raises(ThresherError, match='allreduce cannot be "rings"; did you mean "ring"'):
        make_exchange("none", "rings")
    with pytest.raises(ThresherError, match="int8 does not work with `allreduce` ring"):
        make_exchange("int8", "ring")


def _close_during_a_callback(rank: int, world: int) -> bool:
    """Close an exchange while a thread of its group still runs a callback that holds the group."""
    exchange = make_exchange("topk")
    go_on = threading.Event()

    def callback(future: torch.futures.Future[list[Tensor]], group: object) -> Tensor:
        if threading.current_thread() is not threading.main_thread():
            go_on.wait(3)
        return future.value()[0]

    time.sleep(0.5 * rank)  # so that on rank 0 a thread of the group runs the callback
    work = dist.all_reduce(torch.ones(3), group=exchange.group, async_op=True)
    done = work.get_future().then(partial(callback, group=exchange.group))
    exchange.close()
    del exchange, work
    go_on.set()
    return bool((done.wait() == world).all())


def test_a_callback_may_outlive_its_exchange() -> None:
    """Otherwise the group's thread drops the last reference to the group and joins itself."""
    assert run_ranks(2, _close_during_a_callback) == [True, True]
