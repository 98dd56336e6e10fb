"""The two networks of claim K1 differ as they are meant to."""

import pytest
import torch

from thresher.models.registry import build


def _weights(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _operations(name: str) -> int:
    """Multiply-adds of one 32×32 image, counted by torch."""
    from torch.utils.flop_counter import FlopCounterMode

    model = build(name, 10)
    with FlopCounterMode(display=False) as counter:
        model.eval()(torch.zeros(1, 3, 32, 32))
    return counter.get_total_flops()


@pytest.mark.parametrize("name", ["alexnet-small", "googlenet-small"])
@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 32)])
def test_shapes(name: str, channels: int, size: int) -> None:
    model = build(name, 7, channels)
    x = torch.rand(3, channels, size, size)
    features = model.forward_features(x)  # type: ignore[operator]
    assert features.shape == (3, model.head.in_features)  # type: ignore[union-attr]
    assert torch.equal(model.eval()(x), model.eval()(x))
    assert model(x).shape == (3, 7)


def test_one_talks_and_the_other_computes() -> None:
    alex, google = build("alexnet-small", 10), build("googlenet-small", 10)
    assert _weights(alex) > 10 * _weights(google)
    assert _operations("googlenet-small") > 2 * _operations("alexnet-small")


def test_misspelt_names_are_suggested() -> None:
    from thresher.errors import ThresherError

    with pytest.raises(ThresherError, match='did you mean "alexnet-small"'):
        build("alexnet-smal", 10)
