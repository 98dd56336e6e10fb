"""Kernels of batch norm on a GPU, held against torch's operations in double precision.

Without a GPU, but with Triton: `TRITON_INTERPRET=1 pytest tests/models/test_norm_kernel.py`.
"""

import contextlib
import copy
import os
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from thresher.models import kernel_use, registry
from thresher.models.batch_norm import GhostBatchNorm, convert, normalise

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark: Any = [] if INTERPRETED else pytest.mark.gpu
DEVICE = "cpu" if INTERPRETED else "cuda"
RELU = nn.ReLU(inplace=True)


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_use, "LARGE", 0)
    if INTERPRETED:
        monkeypatch.setattr(kernel_use, "kernel_works", lambda x: x.dtype == torch.bfloat16)


def _layer(channels: int, mode: str) -> Any:
    layer = nn.BatchNorm2d(channels)
    layer.weight.data = torch.linspace(-1, 2, channels)
    layer.bias.data = torch.linspace(-0.5, 0.5, channels)
    return convert(layer, mode).train()


def _state(layer: nn.Module) -> list[Tensor]:
    if isinstance(layer, GhostBatchNorm):
        return [layer.pending_sums()]
    return list(layer.buffers())


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize(
    ("shape", "mode"),
    [
        ((64, 16, 14, 14), "local"),
        ((37, 70, 5, 5), "local"),
        ((256, 512, 1, 1), "local"),
        ((3, 64, 1, 1), "local"),
        ((40, 24, 9, 9), "ghost:16"),
        ((100, 70, 7, 7), "ghost:32"),
    ],
)
def test_they_equal_torchs_operations(
    shape: tuple[int, ...], mode: str, adds: bool, relu: bool
) -> None:
    torch.manual_seed(0)
    x, added, slope = (torch.randn(shape).bfloat16() for _ in range(3))
    x = (3 + 2 * x).bfloat16()
    results = []
    for device, kind in ((DEVICE, torch.bfloat16), ("cpu", torch.float64)):
        layer = _layer(shape[1], mode).to(device)
        if kind == torch.float64:
            layer.double()
        inputs = [
            t.to(device, kind).contiguous(memory_format=torch.channels_last).requires_grad_()
            for t in (x, added)
        ]
        out = normalise(layer, inputs[0], inputs[1] if adds else None, RELU if relu else None)
        assert out.dtype == kind
        wanted = [inputs[0], *layer.parameters(), *inputs[1:][:adds]]
        given = slope.to(device, kind)
        if relu:
            # Where rounding decides on which side of 0 a value is, gradients differ.
            given = torch.where(_sure(layer, x, added if adds else None), given, 0)
        gradients = torch.autograd.grad(out, wanted, given)
        results.append([t.detach().double().cpu() for t in (out, *gradients, *_state(layer))])
    for ours, right in zip(*results, strict=True):
        scale = max(1.0, float(right.abs().max()))
        torch.testing.assert_close(ours / scale, right / scale, rtol=2e-2, atol=2e-2)


def _sure(layer: nn.Module, x: Tensor, added: Tensor | None) -> Tensor:
    """Return where the value before the ReLU is not close to 0."""
    exact = copy.deepcopy(layer).cpu().double()
    with torch.no_grad():
        before = exact(x.double()) + (0 if added is None else added.double())
    return (before.abs() > 0.05).to(next(layer.parameters()).device)


def test_a_network_trains_as_with_torchs_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs, gradients and running statistics of a ResNet, whose layers all use the kernels."""
    torch.manual_seed(0)
    model: Any = registry.build("resnet20", 10)
    model = model.to(DEVICE, memory_format=torch.channels_last)
    x = torch.randn(32, 3, 16, 16, device=DEVICE).contiguous(memory_format=torch.channels_last)
    outputs = []
    for fused in (True, False):
        if not fused:
            monkeypatch.setattr(kernel_use, "kernel_works", lambda x: False)
        network = copy.deepcopy(model).train()
        with torch.autocast(DEVICE, torch.bfloat16):
            features = network.forward_features(x)
        logits = network.head(features.float())
        loss = nn.functional.cross_entropy(logits, torch.arange(32, device=DEVICE) % 10)
        loss.backward()
        first = network.get_submodule("layer1.0.bn1")
        head = network.get_parameter("fc.weight").grad
        assert head is not None
        outputs.append((loss.detach(), head, first.running_var, first.num_batches_tracked))
    for ours, torchs in zip(*outputs, strict=True):
        torch.testing.assert_close(ours, torchs, rtol=3e-2, atol=3e-2)


def test_small_layers_use_them_only_in_captured_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_use, "LARGE", 1000)
    layer = _layer(16, "local").to(DEVICE)
    for samples, captured, kernel in ((3, False, False), (3, True, True), (4, False, True)):
        x = torch.randn(samples, 16, 4, 4, device=DEVICE).bfloat16()
        x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
        with kernel_use.in_captured_steps() if captured else contextlib.nullcontext():
            made_by = normalise(layer, x).grad_fn
        assert (type(made_by).__name__ == "NormaliseBackward") == kernel


def test_not_a_number_stays() -> None:
    x = torch.randn(8, 16, 4, 4, device=DEVICE).bfloat16()
    x = x.contiguous(memory_format=torch.channels_last)
    x[3, 2, 1, 1] = torch.nan
    out = normalise(_layer(16, "local").to(DEVICE), x, relu=RELU)
    assert out[:, 2].isnan().all()
    assert not out[:, [0, 1, *range(3, 16)]].isnan().any()


@pytest.mark.parametrize("samples", [16, 128])
def test_they_repeat_bit_by_bit(samples: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(samples, 64, 8, 8, device=DEVICE).bfloat16()
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    layer = _layer(64, "local").to(DEVICE)
    runs = []
    for _ in range(3):
        out = normalise(layer, x, x, RELU)
        runs.append((out, *torch.autograd.grad(out.float().square().sum(), (x, layer.weight))))
    for other in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], other, strict=True))
