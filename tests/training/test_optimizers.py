"""LARS and LAMB against pytorch-optimizer and torch; every optimiser's contract."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from thresher.errors import ThresherError
from thresher.models.registry import build
from thresher.training.layerwise import LAMB, LARS
from thresher.training.optimizers import (
    OPTIMIZERS,
    OptimizerConfig,
    make_optimizer,
    parameter_groups,
    set_rate,
)


def problem(seed: int) -> nn.Module:
    """Batch norm stands after the tanh: before it, the bias would have no gradient but rounding,
    which Adam's division blows up."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.BatchNorm1d(9), nn.Linear(9, 4)).double()


def make(name: str, model: nn.Module, lr: float, **more: Any) -> torch.optim.Optimizer:
    options = {"optimizer": name, "weight_decay": 0.0, **more}
    tensor_lr = options.pop("tensor_lr", None)
    return make_optimizer(model, OptimizerConfig(**options), lr, tensor_lr)


def descend(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 25) -> list[float]:
    """Train on random regression; the same batches for every call."""
    generator = torch.Generator().manual_seed(5)
    losses = []
    for _ in range(steps):
        x = torch.randn(16, 7, generator=generator, dtype=torch.float64)
        y = torch.randn(16, 4, generator=generator, dtype=torch.float64)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def distance(a: nn.Module, b: nn.Module) -> float:
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return max((x - y).abs().max().item() for x, y in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("momentum", "decay"), [(0.9, 5e-3), (0.0, 0.1), (0.5, 0.0)])
def test_lars_equals_pytorch_optimizer(seed: int, momentum: float, decay: float) -> None:
    ours, theirs = problem(seed), problem(seed)
    groups = parameter_groups(ours, OptimizerConfig(optimizer="lars", weight_decay=decay))
    descend(ours, LARS(groups, 0.8, momentum, trust=0.02))
    peer = pytest.importorskip("pytorch_optimizer").LARS(
        theirs.parameters(), lr=0.8, momentum=momentum, weight_decay=decay, trust_coefficient=0.02
    )
    descend(theirs, peer)
    assert distance(ours, theirs) < 1e-12
    assert distance(ours, problem(seed)) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_lamb_equals_pytorch_optimizer(seed: int, decay: float) -> None:
    ours, theirs = problem(seed), problem(seed)
    mine = LAMB(ours.parameters(), lr=0.02, weight_decay=decay, bias_correction=False)
    # Its default divides the rate, after the trust ratio, by 1 - β₁ᵗ; `adam_debias` stops that.
    peer = pytest.importorskip("pytorch_optimizer").Lamb(
        theirs.parameters(),
        lr=0.02,
        weight_decay=decay,
        weight_decouple=False,
        eps=1e-6,
        adam_debias=True,
    )
    descend(ours, mine)
    descend(theirs, peer)
    assert distance(ours, theirs) < 1e-12
    assert distance(ours, problem(seed)) > 1e-3


def test_lamb_without_adaptation_is_adamw() -> None:
    ours, theirs = problem(0), problem(0)
    groups = [{"params": list(ours.parameters()), "adapt": False}]
    descend(ours, LAMB(groups, lr=0.01, eps=1e-8, weight_decay=0.1))
    descend(theirs, torch.optim.AdamW(theirs.parameters(), lr=0.01, eps=1e-8, weight_decay=0.1))
    assert distance(ours, theirs) < 1e-12


def test_lamb_step_has_the_weights_norm_times_the_rate() -> None:
    model = problem(1)
    before = [p.detach().clone() for p in model.parameters()]
    descend(model, LAMB(model.parameters(), lr=0.01, weight_decay=0.1), steps=1)
    for old, new in zip(before, model.parameters(), strict=True):
        if old.norm() > 0:
            assert (new - old).norm().item() == pytest.approx(0.01 * old.norm().item(), rel=1e-4)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_tensor_rate_is_the_same_as_a_number(name: str) -> None:
    a, b = problem(2), problem(2)
    number = make(name, a, 0.125, weight_decay=0.01, tensor_lr=False)
    tensor = make(name, b, 1.0, weight_decay=0.01, tensor_lr=True)
    set_rate(tensor, 0.125)
    assert descend(a, number)[-1] == pytest.approx(descend(b, tensor)[-1], rel=1e-9)
    assert distance(a, b) < 1e-10


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_survives_a_checkpoint(name: str) -> None:
    whole, broken = problem(3), problem(3)
    descend(whole, first := make(name, whole, 0.05), steps=10)
    descend(broken, second := make(name, broken, 0.05), steps=10)
    resumed = problem(99)
    resumed.load_state_dict(broken.state_dict())
    third = make(name, resumed, 0.05)
    third.load_state_dict(copy.deepcopy(second.state_dict()))
    descend(whole, first, steps=5)
    descend(resumed, third, steps=5)
    assert distance(whole, resumed) == 0


def test_sgd_and_nesterov_are_torchs() -> None:
    for name, nesterov in (("sgd", False), ("nesterov", True)):
        ours, theirs = problem(4), problem(4)
        descend(ours, make(name, ours, 0.05, weight_decay=1e-2))
        peer = torch.optim.SGD(
            theirs.parameters(), 0.05, 0.9, weight_decay=1e-2, nesterov=nesterov, foreach=False
        )
        descend(theirs, peer)
        assert distance(ours, theirs) < 1e-12


def test_decay_is_left_off_bias_and_norm_on_request() -> None:
    model = build("tiny", 10)
    weights, others = parameter_groups(
        model, OptimizerConfig(weight_decay=0.1, decay_norm_bias=False)
    )
    assert (weights["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(others["params"]) == 2 * len(norms) + 1  # weight and bias each, and the head's bias
    assert all(p.ndim > 1 for p in weights["params"])
    both = parameter_groups(model, OptimizerConfig(weight_decay=0.1))
    assert [group["weight_decay"] for group in both] == [0.1, 0.1]


def test_lars_neither_decays_nor_adapts_a_bias() -> None:
    model = problem(5)
    optimizer = make("lars", model, 1.0, momentum=0.0, weight_decay=0.5)
    bias = model.get_parameter("0.bias")
    before = bias.detach().clone()
    descend(model, optimizer, steps=1)
    assert bias.grad is not None
    assert torch.allclose(bias, before - bias.grad, atol=1e-14)


def test_zero_weights_and_zero_gradients_stay_finite() -> None:
    for kind in (LARS, LAMB):
        parameter = nn.Parameter(torch.zeros(3, 3))
        parameter.grad = torch.zeros(3, 3)
        kind([parameter], lr=1.0, weight_decay=0.1).step()
        assert torch.equal(parameter, torch.zeros(3, 3))


def test_an_unknown_optimizer_is_refused() -> None:
    with pytest.raises(ThresherError, match=r'unknown optimizer "lasr"; did you mean "lars"\?'):
        make("lasr", problem(0), 0.1)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_first_step_that_is_skipped_leaves_no_momentum(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gradient scaler skips steps whose gradients overflow, often the first ones."""
    model = nn.Linear(100, 10, bias=False)
    optimizer, scaler = make(name, model, 0.1), torch.amp.GradScaler("cpu")
    before = model.weight.detach().clone()
    scaler.scale(model(torch.full((1, 100), torch.inf)).sum()).backward()
    # Memory that is not zero, as it may be.
    monkeypatch.setattr(torch, "empty_like", lambda like: torch.full_like(like, 7e3))
    scaler.step(optimizer)
    assert torch.equal(model.weight, before)
    assert not any(value.any() for value in optimizer.state[model.weight].values())


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_can_be_captured_in_a_graph(name: str) -> None:
    """Replayed with a changing rate, the graph follows the eager path."""
    eager, captured = problem(6).cuda(), problem(6).cuda()
    one, two = make(name, eager, 0.1), make(name, captured, 0.1)
    x = torch.randn(16, 7, dtype=torch.float64, device="cuda")

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad(set_to_none=False)
        model(x).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())  # which writes x
    with torch.cuda.stream(side):
        for _ in range(3):
            step(captured, two)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(captured, two)
    for _ in range(3):
        step(eager, one)
    for rate in (0.1, 0.05, 0.01):
        set_rate(one, rate)
        set_rate(two, rate)
        step(eager, one)
        graph.replay()
    torch.cuda.synchronize()
    assert distance(eager, captured) < 1e-9


@pytest.mark.parametrize("name", ["sgd", "nesterov", "adamw"])
def test_without_the_compiler_the_steps_are_those_of_torch(name: str) -> None:
    torchs = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
        "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, fused=True),
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.0, fused=True),
    }
    ours, theirs = problem(0), problem(0)
    optimizer, expected = make(name, ours, 0.1), torchs[name](theirs.parameters())
    assert descend(ours, optimizer) == descend(theirs, expected)
    state = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(state)
    again = make(name, ours, 0.1)
    again.load_state_dict(state)
    for one, other in zip(optimizer.state.values(), again.state.values(), strict=True):
        assert all(torch.equal(one[key], other[key]) for key in one if one[key] is not None)


def test_steps_take_no_gradient_and_may_be_given_a_closure() -> None:
    model = problem(0)
    optimizer, x = make("sgd", model, 0.1), torch.randn(8, 7, dtype=torch.float64)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    loss: Any = optimizer.step(closure)
    before = float(loss.detach())
    assert float(closure().detach()) < before
    assert torch.is_grad_enabled()
