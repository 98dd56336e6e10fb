import pytest

from thresher.models.registry import build
from thresher.scaling.skeleton import skeleton


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "giga", "million"), [("resnet50", 8.18, 25.56), ("resnet18", 3.63, 11.69)]
)
def test_operations_and_weights_are_the_known_ones(name: str, giga: float, million: float) -> None:
    found = skeleton(build(name, 1000), name, (3, 224, 224), 1000, 32)
    assert found.flops / 1e9 == pytest.approx(giga, rel=0.01)
    assert found.parameters / 1e6 == pytest.approx(million, rel=0.001)
    assert sum(layer.parameters for layer in found.layers) == found.parameters
