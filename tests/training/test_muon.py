"""Muon: orthogonal updates, plain Nesterov SGD elsewhere, factors on rates."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from thresher.training.muon import Muon, orthogonalise
from thresher.training.optimizers import OptimizerConfig, make_optimizer, parameter_groups, set_rate


@pytest.mark.parametrize("shape", [(8, 20), (20, 8), (16, 4, 3, 3), (64, 24, 3, 3)])
def test_an_update_has_singular_values_near_one(shape: tuple[int, ...]) -> None:
    """The same singular vectors; three iterations bring the values between 0.4 and 1.3."""
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    result = orthogonalise(weight)
    assert result.shape == weight.shape
    u, before, v = torch.linalg.svd(weight.flatten(1), full_matrices=False)
    after = torch.diag(u.T @ result.flatten(1) @ v.T)
    torch.testing.assert_close(u @ torch.diag(after) @ v, result.flatten(1))
    well = before > before.max() / 5
    assert ((after[well] > 0.4) & (after[well] < 1.3)).all(), after


def _model() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(72, 5))


def _gradients(model: nn.Module, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=random)


def test_biases_and_the_head_take_nesterov_steps() -> None:
    ours, theirs = _model(), _model()
    config = OptimizerConfig(optimizer="muon", momentum=0.6, weight_decay=0.01, bias_lr=3.0)
    muon = make_optimizer(ours, config, lr=0.1)
    head, biases = theirs[3], [theirs[0].bias, *theirs[1].parameters(), theirs[3].bias]
    sgd = torch.optim.SGD(
        [{"params": biases, "lr": 0.3}, {"params": [head.weight], "lr": 0.1}],
        momentum=0.6,
        nesterov=True,
        weight_decay=0.01,
    )
    for seed in range(3):
        for model, optimizer in ((ours, muon), (theirs, sgd)):
            _gradients(model, seed)
            optimizer.step()
    pairs = list(zip(ours.parameters(), theirs.parameters(), strict=True))
    for mine, other in pairs[1:]:
        torch.testing.assert_close(mine, other)
    assert not torch.equal(*pairs[0])


def test_filters_keep_their_norm_up_to_the_step() -> None:
    model = _model()
    muon = make_optimizer(model, OptimizerConfig(optimizer="muon"), lr=0.0)
    _gradients(model, 0)
    muon.step()
    assert model[0].weight.norm().item() == pytest.approx(8**0.5)
    before = model[0].weight.detach().clone()
    set_rate(muon, 0.5)
    _gradients(model, 1)
    muon.step()
    step = (model[0].weight - before).flatten(1)
    assert 0.2 < torch.linalg.svdvals(step).min() < torch.linalg.svdvals(step).max() < 0.65


def test_filters_that_start_at_zero_are_trained() -> None:
    model = _model()
    nn.init.zeros_(model[0].weight)
    muon = make_optimizer(model, OptimizerConfig(optimizer="muon"), lr=0.1)
    for seed in range(2):
        _gradients(model, seed)
        muon.step()
    assert torch.isfinite(model[0].weight).all()
    assert model[0].weight.norm() > 0


@pytest.mark.parametrize("name", ["sgd", "nesterov", "adamw", "lars", "lamb", "muon"])
@pytest.mark.parametrize("tensor_lr", [False, True])
def test_rates_are_multiplied_by_their_factors(name: str, tensor_lr: bool) -> None:
    config = OptimizerConfig(optimizer=name, bias_lr=4.0, head_lr=0.5)  # type: ignore[arg-type]
    optimizer = make_optimizer(_model(), config, 0.1, tensor_lr)
    for rate in (0.2, torch.tensor(0.3)):
        if isinstance(rate, Tensor) and not tensor_lr:
            continue
        set_rate(optimizer, rate)
        rates = [float(group["lr"]) / float(rate) for group in optimizer.param_groups]
        assert rates == pytest.approx([1, 4, 0.5, 2])
    assert isinstance(optimizer, Muon) == (name == "muon")


@pytest.mark.parametrize("name", ["sgd", "muon"])
@pytest.mark.parametrize("head_lr", [1.0, 1.001])
def test_the_bias_of_the_head_is_a_bias(name: str, head_lr: float) -> None:
    """It lost the factor of biases with Muon, or as soon as the head had a factor of its own."""
    model = _model()
    config = OptimizerConfig(optimizer=name, bias_lr=4.0, head_lr=head_lr)  # type: ignore[arg-type]
    groups = {id(p): g for g in parameter_groups(model, config) for p in g["params"]}
    assert groups[id(model[3].bias)]["lr_factor"] == pytest.approx(4 * head_lr)


@pytest.mark.parametrize(
    ("name", "decay_norm_bias"),
    [("sgd", False), ("adamw", False), ("lars", True), ("lamb", True), ("muon", False)],
)
def test_the_bias_of_a_head_with_its_own_rate_is_not_decayed(
    name: str, decay_norm_bias: bool
) -> None:
    model = _model()
    config = OptimizerConfig(
        optimizer=name,  # type: ignore[arg-type]
        decay_norm_bias=decay_norm_bias,
        weight_decay=0.1,
        head_lr=0.5,
    )
    groups = {id(p): g for g in parameter_groups(model, config) for p in g["params"]}
    assert groups[id(model[3].weight)]["weight_decay"] == 0.1
    bias = groups[id(model[3].bias)]
    assert (bias["weight_decay"], bias["adapt"], bias["lr_factor"]) == (0, False, 0.5)
