"""Weights cast together give the bits that autocast gives, layer by layer."""

import pytest
import torch
from torch import Tensor, nn

from thresher.models.half_weights import half_forward, pays_off
from thresher.models.kernel_use import in_captured_steps
from thresher.models.registry import build
from thresher.training.step import Objective


def _gradients(objective: Objective, images: Tensor) -> list[Tensor | None]:
    labels = torch.arange(len(images), device=images.device) % 10
    objective.zero_grad(set_to_none=True)
    with in_captured_steps(), torch.autocast(images.device.type, torch.bfloat16):
        loss, *_ = objective(images, labels)
    loss.backward()
    return [loss.detach(), *(p.grad for p in objective.parameters())]


def _check(name: str, images: Tensor) -> None:
    torch.manual_seed(0)
    model = build(name, 10, 3).to(images.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    state = {key: value.clone() for key, value in model.state_dict().items()}
    made = []
    for together in (False, True):
        model.load_state_dict(state)
        objective = Objective(model, 0.1, False)
        objective.casts_together = together
        made.append(_gradients(objective, images))
    for theirs, ours in zip(*made, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert ours.dtype == theirs.dtype == torch.float32
            assert torch.equal(ours, theirs)
            assert ours.stride() == theirs.stride()


@pytest.mark.parametrize("name", ["tiny", "resnet20", "resnet18"])
def test_losses_and_gradients_are_those_of_autocast(name: str) -> None:
    _check(name, torch.randn(2, 3, 8, 8))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["resnet18", "resnet50", "fast-cifar"])
def test_they_are_on_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    _check(name, torch.randn(64, 3, 32, 32, device="cuda"))


def test_each_layer_gets_half_weights_once() -> None:
    model = build("resnet20", 10, 3)
    kinds = []

    def note(layer: nn.Module, given: object) -> None:
        kinds.append(layer.weight.dtype)

    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear | nn.BatchNorm2d):
            layer.register_forward_pre_hook(note)
    with torch.autocast("cpu", torch.bfloat16):
        half_forward(model, torch.randn(2, 3, 8, 8))
    batch_norms = sum(isinstance(layer, nn.BatchNorm2d) for layer in model.modules())
    assert kinds.count(torch.float32) == batch_norms
    assert kinds.count(torch.bfloat16) == len(kinds) - batch_norms
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_networks_of_others_are_left_to_autocast() -> None:
    own = nn.Sequential(nn.Flatten(), nn.Linear(12, 10))
    assert not pays_off(own)
    assert not Objective(own, 0.0, False, alone=True).casts_together


def test_deep_networks_on_one_worker_cast_their_weights_together() -> None:
    deep, flat = build("resnet18", 10, 3), build("fast-cifar", 10, 3)
    assert Objective(deep, 0.0, False, alone=True).casts_together
    assert not Objective(deep, 0.0, False).casts_together
    assert not Objective(flat, 0.0, False, alone=True).casts_together
