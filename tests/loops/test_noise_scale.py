"""The noise scale in a loop of one's own: the known value, and unchanged gradients."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from gloo_ranks import run_ranks
from thresher.data.order import bounds
from thresher.distributed.group import Group, Placement
from thresher.errors import InvalidValueError
from thresher.training.device_data import Part
from thresher.training.noise_estimate import WINDOW, NoiseEstimate
from thresher.training.noise_observer import NoiseObserver
from thresher.training.noise_scale import NoiseScale

MEAN, SPREAD, WIDTH, BATCH = 0.5, 2.0, 20, 60
KNOWN = SPREAD**2 / MEAN**2


class Shift(nn.Module):
    """The gradient of a sample's output is the sample itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def draw(batch: int, stream: torch.Generator) -> Tensor:
    return MEAN + SPREAD * torch.randn(batch, WIDTH, generator=stream)


def measure(model: nn.Module, batch: int, seed: int, steps: int, every: int = 1) -> float | None:
    stream = torch.Generator().manual_seed(seed)
    noise = NoiseScale(model, every=every)
    for _ in range(steps):
        model.zero_grad()
        noise.backward(model(draw(batch, stream)))
    return noise.value


def test_the_value_agrees_with_its_definition() -> None:
    assert measure(Shift(), BATCH, 0, 2 * WINDOW, every=2) == pytest.approx(KNOWN, rel=0.1)


def _rank(rank: int, world: int) -> list[float | None]:
    model = DistributedDataParallel(Shift())
    seldom = measure(model, BATCH // world, 1 + rank, 40, every=2)
    often = measure(model, BATCH // world, 1 + rank, WINDOW)
    uneven = measure(model, (36, 20, 4)[rank], 1 + rank, WINDOW)
    return [often, uneven, _observed(rank, world), seldom]


def _observed(rank: int, world: int) -> float | None:
    """Return what `train` measures with groups of 32 samples in batches of 65, and of 1."""
    group = Group(Placement(rank, world), torch.device("cpu"))
    noise, model, stream = NoiseObserver(group), Shift(), torch.Generator().manual_seed(7)
    step: Any = SimpleNamespace(align=32, exchange=Listening(), model=model)
    step.scaler = torch.amp.GradScaler(enabled=False)
    for count in [65] * WINDOW + [1]:
        begin, end = bounds(count, rank, world, step.align)
        samples = draw(count, stream)
        gradient = samples[begin:end].sum(0) / count
        noise.before_step(step, Part(torch.arange(begin, end)), count)
        step.exchange.listener(gradient.square().sum())
        model.weight.grad = samples.mean(0)
        noise.after_gradients(step, count)
    noise.settle()
    assert noise.estimate.measured == WINDOW, "a batch of one worker says nothing"
    return noise.estimate.value


class Listening:
    """An exchange that keeps its listener."""

    def observe(self, listener: Callable[[Tensor], None]) -> None:
        self.listener = listener


@pytest.mark.slow  # trains on three processes
@pytest.mark.xdist_group("ranks")
def test_the_value_agrees_on_three_ranks_with_ddp() -> None:
    values = run_ranks(3, _rank)
    assert values[0] == values[1] == values[2]
    *known, seldom = values[0]
    assert known == pytest.approx([KNOWN] * 3, rel=0.1)
    assert seldom is not None


def _accumulates(rank: int, world: int) -> str:
    noise = NoiseScale(DistributedDataParallel(Shift()), every=1)
    noise.backward(noise.model(torch.ones(4, WIDTH)))
    with pytest.raises(InvalidValueError) as caught:
        noise.backward(noise.model(torch.ones(4, WIDTH)))
    return str(caught.value)


@pytest.mark.xdist_group("ranks")
def test_gradients_that_were_not_cleared_are_refused_with_ddp() -> None:
    assert "gradients must be zero before `backward`" in run_ranks(2, _accumulates)[0]


def _without_sync(rank: int, world: int) -> str:
    noise = NoiseScale(model := DistributedDataParallel(Shift()))
    with model.no_sync(), pytest.raises(InvalidValueError) as caught:
        noise.backward(model(torch.ones(4, WIDTH)))
    return str(caught.value)


@pytest.mark.xdist_group("ranks")
def test_gradients_that_workers_do_not_share_are_refused() -> None:
    """As in all but the last of the batches whose gradients are accumulated."""
    assert "within `no_sync` workers do not share" in run_ranks(2, _without_sync)[0]


def test_gradients_are_those_of_the_mean() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 1)).double()
    unused = nn.Parameter(torch.ones(1))
    model.register_parameter("unused", unused)
    x = torch.randn(9, 5, dtype=torch.float64)
    model(x)[:, 0].square().mean().backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    noise = NoiseScale(model, every=1)
    for repeat in (1, 2):  # the second time gradients are accumulated, as without DDP they may be
        noise.backward(model(x)[:, 0].square())
        for parameter, gradient in zip(
            [p for p in model.parameters() if p is not unused], expected, strict=True
        ):
            assert parameter.grad is not None
            torch.testing.assert_close(parameter.grad, repeat * gradient)
    assert noise.state_dict()["measured"] == 2


def test_both_halves_count() -> None:
    """|G|² of two equal halves is the scalar product of their gradients, whatever their order."""
    samples = draw(BATCH, torch.Generator().manual_seed(5))
    expected = samples[: BATCH // 2].mean(0) @ samples[BATCH // 2 :].mean(0)
    for batch in (samples, samples.flip(0)):
        noise = NoiseScale(Shift(), every=1)
        noise.backward(noise.model(batch))
        (signal,) = noise.state_dict()["signal"]
        assert signal == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.slow
def test_an_odd_batch_is_unbiased() -> None:
    values = [measure(Shift(), 5, seed, WINDOW) or 0.0 for seed in range(12)]
    assert np.mean(values) == pytest.approx(KNOWN, rel=0.1)


def test_the_value_is_that_of_the_last_phase() -> None:
    """A noise scale that grows while the gradient shrinks, as in training."""
    random = np.random.default_rng(0)
    estimate = NoiseEstimate()
    width = 2000
    for critical, size in ((100.0, 10.0), (800.0, 3.0), (5000.0, 1.0)):
        mean = np.full(width, size / math.sqrt(width))
        spread = size * math.sqrt(critical / width / 512)
        for _ in range(300):
            halves = mean + spread * random.standard_normal((2, width))
            small = float((halves**2).sum(axis=1).mean())
            estimate.add(small, 512, float((halves.mean(axis=0) ** 2).sum()), 1024)
        assert estimate.value == pytest.approx(critical, rel=0.2)
    assert estimate.measured == 900
    assert len(estimate.noise) == WINDOW


def test_a_gradient_that_overflows_does_not_count() -> None:
    """As those of the first steps in fp16; one nan would hide the next hundred measurements."""
    estimate = NoiseEstimate()
    for norm in (math.inf, math.nan, 1.0):
        estimate.add(2.0, 8, norm, 16)
    assert estimate.measured == 1
    assert estimate.value is None  # |G|² is 0 here
    estimate.add(1.5, 8, 1.0, 16)
    assert estimate.value == pytest.approx(24 / 0.5)


def test_the_state_of_older_versions_is_read() -> None:
    old = NoiseEstimate.restored({"measured": 4, "noise": 80.0, "signal": 8.0})
    assert old.value == pytest.approx(10)
    assert NoiseEstimate.restored({"measured": 0, "noise": 0.0, "signal": 0.0}).value is None


def test_the_state_is_restored() -> None:
    noise = NoiseScale(Shift(), every=1)
    stream = torch.Generator().manual_seed(0)
    for _ in range(100):
        noise.backward(noise.model(draw(BATCH, stream)))
    other = NoiseScale(Shift())
    other.load_state_dict(noise.state_dict())
    assert other.value == noise.value is not None


def test_losses_without_a_value_per_sample_are_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"one value per sample, got the shape \(\)"):
        NoiseScale(Shift()).backward(torch.tensor(1.0))
    with pytest.raises(InvalidValueError, match="every must be at least 1, got 0"):
        NoiseScale(Shift(), every=0)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_gradients_are_measured_or_refused(reentrant: bool) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1))
    noise = NoiseScale(model)
    inputs = draw(BATCH, torch.Generator().manual_seed(0)).requires_grad_()
    hidden = checkpoint(model[0], inputs, use_reentrant=reentrant)
    losses = model[1](hidden)[:, 0].square()
    if reentrant:
        with pytest.raises(InvalidValueError, match="of 2 parameters cannot be computed for half"):
            noise.backward(losses)
        return
    noise.backward(losses)
    plain = NoiseScale(model)
    plain.backward(model(inputs)[:, 0].square())
    assert noise.state_dict() == plain.state_dict()
