"""The kernels of max-pooling on a GPU, bit by bit as torch's.

Without a GPU, but with Triton: `TRITON_INTERPRET=1 pytest tests/models/test_pool_kernel.py`.
"""

import os
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from thresher.models import registry
from thresher.models.kernel_use import in_captured_steps
from thresher.models.pooling import MaxPool2d

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark: Any = [] if INTERPRETED else pytest.mark.gpu
DEVICE = "cpu" if INTERPRETED else "cuda"
POOLS = [(3, 2, 1), (2, 2, 0), (3, 1, 1), (2, 1, 0), (3, 3, 0)]


@pytest.fixture(autouse=True)
def _kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    if INTERPRETED:
        monkeypatch.setattr("thresher.models.pooling.runs_by_kernel", lambda x: True)


def _both(pool: tuple[int, int, int], x: Tensor) -> tuple[Tensor, ...]:
    """Return result and gradient of our layer, and of torch's in float32 on the CPU."""
    torch_s = nn.MaxPool2d(*pool)
    ours = MaxPool2d(*pool)
    mine = x.to(DEVICE, memory_format=torch.channels_last).requires_grad_()
    with in_captured_steps():
        y = ours(mine)
    assert "MaxPoolBackward" in type(y.grad_fn).__name__
    right = x.float().requires_grad_()
    expected = torch_s(right)
    slope = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(x.dtype)
    y.backward(slope.to(DEVICE))
    expected.backward(slope.float())
    assert mine.grad is not None
    assert right.grad is not None
    found = (y.detach().cpu(), mine.grad.cpu())
    return *found, expected.detach().to(x.dtype), right.grad.to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(3, 8, 14, 14), (2, 5, 9, 6), (1, 64, 4, 5)])
@pytest.mark.parametrize("pool", POOLS)
def test_it_gives_the_bits_of_torch(
    pool: tuple[int, int, int], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    # Few different values: many windows have several largest ones.
    x = torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    y, gradient, right, right_gradient = _both(pool, x)
    assert torch.equal(y, right)
    # Torch adds the gradients of windows that overlap in another order.
    torch.testing.assert_close(gradient, right_gradient, rtol=1e-2, atol=1e-6)


def test_values_that_are_not_finite_go_where_torchs_go() -> None:
    x = torch.randn(2, 4, 9, 9, generator=torch.Generator().manual_seed(0))
    x[0, 0, 3, 3] = x[1, 2, 0, 0] = torch.nan
    x[0, 1] = -torch.inf
    x[1, 1, 4, 4] = torch.inf
    y, gradient, right, right_gradient = _both((3, 2, 1), x)
    assert torch.equal(y.nan_to_num(7), right.nan_to_num(7))
    torch.testing.assert_close(gradient, right_gradient)


@pytest.mark.parametrize("options", [{"ceil_mode": True}, {"dilation": 2}, {"padding": (1, 0)}])
def test_other_pools_are_torchs(options: dict[str, Any]) -> None:
    x = torch.randn(2, 4, 9, 9, device=DEVICE, requires_grad=True)
    settings: dict[str, Any] = {"padding": 1, **options}
    with in_captured_steps():
        y = MaxPool2d(3, 2, **settings)(x)
    assert torch.equal(y, nn.MaxPool2d(3, 2, **settings)(x))


def test_without_a_gradient_it_is_torchs() -> None:
    x = torch.randn(2, 4, 8, 8, device=DEVICE)
    with in_captured_steps():
        assert MaxPool2d(2)(x).grad_fn is None
        assert MaxPool2d(2).eval()(x.requires_grad_()).grad_fn.name() != "MaxPoolBackward"


def test_a_network_has_the_gradients_of_torchs_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = registry.build("resnet18", 10).to(DEVICE, memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(8, 3, 28, 28, device=DEVICE)
    images = images.contiguous(memory_format=torch.channels_last)
    found = []
    for way in (True, False):
        monkeypatch.setattr("thresher.models.pooling.runs_by_kernel", lambda x, way=way: way)
        model.zero_grad()
        model(images).logsumexp(1).sum().backward()
        found.append(model.conv1.weight.grad.clone())
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)
