"""The noise scale in a loop of one's own: the known value, and unchanged gradients."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gloo_ranks import run_ranks
from thresher.errors import InvalidValueError
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


def measure(model: nn.Module, batch: int, seed: int, steps: int) -> float | None:
    stream = torch.Generator().manual_seed(seed)
    noise = NoiseScale(model, every=2)
    for _ in range(steps):
        model.zero_grad()
        noise.backward(model(draw(batch, stream)))
    return noise.value


def test_the_value_agrees_with_its_definition() -> None:
    assert measure(Shift(), BATCH, 0, 1200) == pytest.approx(KNOWN, rel=0.1)


def _rank(rank: int, world: int) -> float | None:
    model = DistributedDataParallel(Shift())
    return measure(model, BATCH // world, 1 + rank, 1200)


@pytest.mark.xdist_group("ranks")
def test_the_value_agrees_on_three_ranks_with_ddp() -> None:
    values = run_ranks(3, _rank)
    assert values[0] == values[1] == values[2]
    assert values[0] == pytest.approx(KNOWN, rel=0.1)


def _accumulates(rank: int, world: int) -> str:
    noise = NoiseScale(DistributedDataParallel(Shift()), every=1)
    noise.backward(noise.model(torch.ones(4, WIDTH)))
    with pytest.raises(InvalidValueError) as caught:
        noise.backward(noise.model(torch.ones(4, WIDTH)))
    return str(caught.value)


@pytest.mark.xdist_group("ranks")
def test_gradients_that_were_not_cleared_are_refused_with_ddp() -> None:
    assert "gradients must be zero before `backward`" in run_ranks(2, _accumulates)[0]


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
