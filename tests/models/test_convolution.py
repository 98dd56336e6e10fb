"""Our convolution is torch's, value by value and gradient by gradient."""

from typing import Any

import pytest
import torch
from torch import nn

from thresher.models import convolution
from thresher.models.convolution import Conv2d

SHAPES = [(3, 1, True), (3, 1, False), (1, 0, False), (5, 2, True), (3, 0, False), (5, 1, False)]


def _outputs_and_gradients(layer: nn.Conv2d, x: torch.Tensor) -> list[Any]:
    """Return the output, and the gradients of the input and of each parameter."""
    given = x.clone().requires_grad_()
    made = layer(given)
    (made * torch.linspace(-1, 1, made.numel()).reshape(made.shape)).sum().backward()
    return [made, given.grad, *(p.grad for p in layer.parameters())]


@pytest.mark.parametrize("channels_last", [True, False], ids=["channels-last", "contiguous"])
@pytest.mark.parametrize(("kernel", "padding", "bias"), SHAPES)
@pytest.mark.parametrize("stride", [1, 2, (3, 1)])
def test_equals_torchs(
    kernel: int,
    padding: int,
    bias: bool,
    channels_last: bool,
    stride: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(convolution, "ARM", True)  # the other way round is torch's own
    monkeypatch.setattr(convolution, "WINDOW_VALUES", 1000)  # several matrix products
    torch.manual_seed(0)
    ours = Conv2d(5, 7, kernel, stride, padding=padding, bias=bias)
    theirs = nn.Conv2d(5, 7, kernel, stride, padding=padding, bias=bias)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(4, 5, 9, 8)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    found = [_outputs_and_gradients(layer, x) for layer in (ours, theirs)]
    assert "_FastGradient" in type(ours(x.clone().requires_grad_()).grad_fn).__name__ or bias
    for mine, right in zip(*found, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding"),
    [
        ((1, 1), 3, 1, 1),
        ((2, 2), 3, 2, 1),
        ((2, 2), 1, 2, 0),
        ((1, 1), 1, 1, 0),
        ((3, 2), (5, 3), (4, 2), (2, 1)),
        ((4, 3), (4, 3), 1, 0),
        ((1, 2), 3, 2, (2, 1)),  # two pixels: torch's own
    ],
)
@pytest.mark.parametrize("channels_last", [True, False])
def test_one_pixel_is_a_matrix_product(
    size: tuple[int, int], kernel: Any, stride: Any, padding: Any, channels_last: bool
) -> None:
    torch.manual_seed(0)
    ours = Conv2d(5, 7, kernel, stride, padding)
    theirs = nn.Conv2d(5, 7, kernel, stride, padding)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(4, 5, *size)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    found = [_outputs_and_gradients(layer, x) for layer in (ours, theirs)]
    one = tuple(found[1][0].shape[2:]) == (1, 1)
    assert ("Permute" in type(ours(x.requires_grad_()).grad_fn).__name__) == one
    for mine, right in zip(*found, strict=True):
        assert mine.shape == right.shape
        torch.testing.assert_close(mine, right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stride", [1, 2])
def test_the_gradient_has_a_gradient(stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the largest eigenvalue of the Hessian needs it."""
    monkeypatch.setattr(convolution, "ARM", True)
    torch.manual_seed(0)
    ours = Conv2d(3, 4, 3, stride, padding=1, bias=False)
    theirs = nn.Conv2d(3, 4, 3, stride, padding=1, bias=False)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3, 7, 7)
    products = []
    for layer in (ours, theirs):
        given = x.clone().requires_grad_()
        both = (given, layer.weight)
        slopes = torch.autograd.grad(layer(given).pow(3).sum(), both, create_graph=True)
        products.append(
            torch.autograd.grad(torch.cat([s.flatten() for s in slopes]).pow(2).sum(), both)
        )
    for mine, right in zip(*products, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("options", [{"dilation": 2}, {"groups": 5}])
def test_others_take_torchs_own_way(options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "ARM", True)
    made = Conv2d(5, 5, 3, padding=1, bias=False, **options)(
        torch.randn(2, 5, 8, 8).requires_grad_()
    )
    assert "_FastGradient" not in type(made.grad_fn).__name__


def test_autocast_and_double_precision_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "ARM", True)
    layer, x = Conv2d(3, 4, 3, padding=1, bias=False), torch.randn(2, 3, 8, 8).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        assert "_FastGradient" not in type(layer(x).grad_fn).__name__
    assert "_FastGradient" not in type(layer.double()(x.double()).grad_fn).__name__


@pytest.mark.parametrize("size", [(28, 28), (9, 8), (7, 12), (5, 5)])
@pytest.mark.parametrize(("kernel", "padding"), [(7, (3, 3)), (5, (0, 2)), (3, (1, 0))])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_blocks_of_pixels_give_the_same_convolution(
    size: tuple[int, int], kernel: int, padding: tuple[int, int], channels: int
) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, channels, *size, dtype=torch.float64)
    layer = nn.Conv2d(channels, 6, kernel, 2, padding, dtype=torch.float64)
    theirs, ours = layer(x), convolution._in_blocks(x, layer.weight, layer.bias, padding)
    torch.testing.assert_close(ours, theirs)
    gradients = [torch.autograd.grad(y.pow(2).sum(), layer.weight) for y in (ours, theirs)]
    torch.testing.assert_close(*gradients)


@pytest.mark.gpu
def test_a_first_layer_on_many_images_takes_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    ours = Conv2d(3, 64, 7, 2, padding=3, bias=False).cuda()
    theirs = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False).cuda()
    theirs.load_state_dict(ours.state_dict())
    calls = []
    whole = convolution._in_blocks

    def counted(*arguments: Any) -> torch.Tensor:
        calls.append(1)
        return whole(*arguments)

    monkeypatch.setattr(convolution, "_in_blocks", counted)
    x = torch.randn(700, 3, 28, 28, device="cuda")
    made = []
    for layer in (ours, theirs):
        with torch.autocast("cuda", torch.bfloat16):
            y = layer(x)
        y.float().pow(2).mean().backward()
        made.append((y, layer.weight.grad))
    assert made[0][0].dtype == torch.bfloat16
    torch.testing.assert_close(made[0], made[1], rtol=0.02, atol=0.02)
    assert calls == [1]
    with torch.autocast("cuda", torch.bfloat16):
        ours(x[:256])  # few images
        ours(x.clone().requires_grad_())
    ours(x)  # float32
    assert calls == [1]
