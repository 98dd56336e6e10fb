"""Local SGD and delayed gradients over real ranks."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from gloo_ranks import run_ranks
from thresher.distributed.compression import TopK
from thresher.distributed.group import Group, Placement
from thresher.distributed.names import Compress
from thresher.errors import ThresherError
from thresher.options import validate
from thresher.training import checkpoint
from thresher.training.checkpoint import Checkpoint, pack_optimizer, unpack_optimizer
from thresher.training.exchange.base import ExchangeConfig, ExchangeParts
from thresher.training.exchange.delayed import DelayedExchange
from thresher.training.exchange.local_sgd import LocalSGDExchange

pytestmark = pytest.mark.xdist_group("ranks")

PARTS = {1: [60], 2: [41, 19], 3: [31, 17, 12]}


def _net() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(12, 20), nn.BatchNorm1d(20), nn.Tanh(), nn.Linear(20, 1)]
    return nn.Sequential(*layers).double()


def _problem(rank: int, world: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    x = torch.randn(60, 12, dtype=torch.float64)
    y = torch.sin(x[:, :1]) + 0.5 * x[:, 1:2]
    return x.split(PARTS[world])[rank], y.split(PARTS[world])[rank]


def _parts(
    net: nn.Module, optimizer: torch.optim.Optimizer, where: tuple[int, int], config: ExchangeConfig
) -> ExchangeParts:
    """Return what an exchange works on; `where` is rank and number of workers."""
    group = Group(Placement(*where), torch.device("cpu"))
    return ExchangeParts(net, net, optimizer, config, group)


def _vector(net: nn.Module) -> list[float]:
    return nn.utils.parameters_to_vector(net.parameters()).tolist()


def _local(rank: int, world: int, every: int, steps: int) -> tuple[list[float], ...]:
    """(weights, momenta, running means, whether each step averaged, first and last loss)."""
    net = _net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    config = ExchangeConfig(average_every=every)
    exchange = LocalSGDExchange(_parts(net, optimizer, (rank, world), config))
    x, y = _problem(rank, world)
    averaged, losses = [], []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (net(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        exchange.after_update(len(x))
        averaged.append(float(exchange.synchronised))
        losses.append(loss.item())
    exchange.flush()
    assert exchange.synchronised
    momenta = torch.cat([s["momentum_buffer"].flatten() for s in optimizer.state.values()])
    running = net.get_buffer("1.running_mean")
    return _vector(net), momenta.tolist(), running.tolist(), averaged, [losses[0], losses[-1]]


def test_local_sgd_averages_every_so_many_steps() -> None:
    ranks = run_ranks(3, _local, 4, 30)
    for weights, momenta, running, averaged, losses in ranks:
        assert averaged == [0.0, 0.0, 0.0, 1.0] * 7 + [0.0, 0.0]
        assert (weights, momenta, running) == ranks[0][:3], "ranks differ after flush()"
        assert losses[1] < 0.2 * losses[0]


def _plain(rank: int, world: int, every: int) -> list[float]:
    """Without batch norm and momentum, averaging weights each step is averaging gradients."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 1)).double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    config = ExchangeConfig(average_every=every)
    exchange = LocalSGDExchange(_parts(net, optimizer, (rank, world), config))
    x, y = _problem(rank, world)
    for _ in range(10):
        optimizer.zero_grad()
        (net(x) - y).square().mean().backward()
        optimizer.step()
        exchange.after_update(len(x))
    return _vector(net)


@pytest.mark.slow
def test_averaging_every_step_is_plain_sgd_also_for_uneven_parts() -> None:
    """The samples' weights make 41 + 19 the same as one worker with 60."""
    alone = _plain(0, 1, 1)
    for weights in run_ranks(2, _plain, 1):
        assert weights == pytest.approx(alone, abs=1e-12)
    assert run_ranks(2, _plain, 5)[0] != pytest.approx(alone, abs=1e-6)


def test_averages_are_sent_in_the_same_order_after_a_resumption(tmp_path: Path) -> None:
    """Where a value lies in the sent buffer decides in which order three workers' are added."""
    sizes: list[list[tuple[int, ...]]] = []
    saved: Checkpoint | None = None
    for _ in range(2):
        net = nn.Sequential(*(nn.Linear(size, size + 1) for size in range(1, 8)))
        optimizer = torch.optim.Adam(net.parameters())
        exchange = LocalSGDExchange(_parts(net, optimizer, (0, 1), ExchangeConfig(average_every=2)))
        if saved is None:
            net(torch.ones(1, 1)).sum().backward()
            optimizer.step()
            tensors, plain = pack_optimizer(optimizer)
            checkpoint.write(tmp_path, 1, Checkpoint({"plain": plain}, tensors))
            saved = checkpoint.newest(tmp_path)
        else:
            unpack_optimizer(optimizer, saved, saved.meta["plain"])
        sizes.append([tuple(tensor.shape) for tensor in exchange._tensors()])
    assert len(sizes[0]) == 3 * 14
    assert sizes[0] == sizes[1]


def test_average_every_zero_is_refused() -> None:
    with pytest.raises(ThresherError, match="average_every must be at least 1, got 0"):
        validate(ExchangeConfig(average_every=0))


@patch.object(TopK, "share", 0.1)
def _delayed(
    rank: int,
    world: int,
    compress: Compress,
    steps: int,
    state: list[dict[str, Tensor]] | None = None,
    weights: list[float] | None = None,
    end: bool = True,
) -> tuple[list[float], dict[str, Tensor], float]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 1)).double()
    if weights is not None:
        values = torch.tensor(weights, dtype=torch.float64)
        nn.utils.vector_to_parameters(values, net.parameters())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=1e-3)
    config = ExchangeConfig(delay=1, compress=compress)
    delayed = DelayedExchange(_parts(net, optimizer, (rank, world), config))
    delayed.prepare()
    if state is not None:
        delayed.load_state_dicts(state)
    x, y = _problem(rank, world)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (net(x) - y).square().sum() / 60
        loss.backward()
        if delayed.before_update():
            optimizer.step()
    kept = delayed.state_dict()
    if end and delayed.flush():
        optimizer.step()
    total = loss.detach().clone()
    if world > 1:
        dist.all_reduce(total)
    delayed.close()
    return _vector(net), kept, total.item()


def _delayed_by_hand(steps: int) -> list[float]:
    """w(t+1) = w(t) − lr·(g(w(t−1)) + decay·w(t)), and the last gradient at the end."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 1)).double()
    x, y = _problem(0, 1)
    weights = list(net.parameters())
    before: Any = None
    for step in range(steps + 1):
        if step < steps:
            now = torch.autograd.grad((net(x) - y).square().sum() / 60, weights)
        if before is not None:
            with torch.no_grad():
                for w, g in zip(weights, before, strict=True):
                    w.sub_(0.1 * (g + 1e-3 * w))
        before = now
    return _vector(net)


def test_delayed_gradients_are_one_step_late_on_any_number_of_workers() -> None:
    expected = _delayed_by_hand(9)
    assert _delayed(0, 1, "none", 9)[0] == pytest.approx(expected, abs=1e-12)
    for weights, _, _ in run_ranks(3, _delayed, "none", 9):
        assert weights == pytest.approx(expected, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("compress", ["none", "topk"])
def test_delayed_run_resumes_to_the_last_bit(compress: Compress) -> None:
    unbroken = run_ranks(2, _delayed, compress, 10)
    half = run_ranks(2, _delayed, compress, 6, None, None, False)
    state = [kept for _, kept, _ in half]
    assert any(key.startswith("pending.") for key in state[0])
    resumed = run_ranks(2, _delayed, compress, 4, state, half[0][0])
    assert resumed[0][0] == unbroken[0][0]
    assert resumed[1][0] == unbroken[1][0]


@pytest.mark.slow
def test_delayed_and_compressed_training_converges() -> None:
    first = run_ranks(2, _delayed, "int8", 1)[0][2]
    assert run_ranks(2, _delayed, "int8", 50)[0][2] < 0.2 * first
