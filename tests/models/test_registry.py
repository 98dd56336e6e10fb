"""Networks by name: sizes, features, foreign libraries, and the refusals."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from thresher.errors import InvalidValueError, NotFoundError, ThresherError
from thresher.models.feature_source import find_features
from thresher.models.registry import MODELS, build, check
from thresher.models.weights import find_head


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "classes", "parameters", "features"),
    [
        ("resnet18", 1000, 11_689_512, 512),
        ("resnet34", 1000, 21_797_672, 512),
        ("resnet50", 1000, 25_557_032, 2048),
        ("resnet101", 1000, 44_549_160, 2048),
        ("resnet152", 1000, 60_192_808, 2048),
        ("resnet18-cifar", 10, 11_173_962, 512),
        ("resnet20", 10, 269_722, 64),
        ("resnet56", 10, 853_018, 64),
        ("resnet110", 10, 1_727_962, 64),
    ],
)
def test_sizes_are_the_published_ones(
    name: str, classes: int, parameters: int, features: int
) -> None:
    with torch.device("meta"):
        model = build(name, classes)
    assert sum(p.numel() for p in model.parameters()) == parameters
    head = find_head(model)
    assert head is not None
    assert head[1].in_features == features


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny", "resnet20", "resnet18", "resnet50", "resnet18-cifar"])
def test_penultimate_features_and_head_give_the_logits(name: str) -> None:
    torch.manual_seed(0)
    model = build(name, 7).eval()
    x = torch.randn(2, 3, 28, 28)
    with torch.no_grad():
        features, logits = find_features(model, x).run(model, x)
        assert torch.equal(features, model.forward_features(x))  # type: ignore[operator]
        assert torch.allclose(model.head(features), logits)  # type: ignore[operator]
        assert torch.equal(model(x), logits)
    assert features.shape == (2, model.feature_dim)
    assert logits.shape == (2, 7)


@pytest.mark.slow
def test_the_stems_shrink_the_image_by_four_or_not_at_all() -> None:
    x = torch.randn(1, 3, 32, 32)
    for name, side in (("resnet18", 8), ("resnet18-cifar", 32), ("resnet20", 32)):
        model = build(name, 10).eval()
        seen: list[torch.Size] = []
        first = model.get_submodule("layer1")
        first.register_forward_pre_hook(lambda _m, i, seen=seen: seen.append(i[0].shape))
        model(x)
        assert seen[0][2:] == (side, side)


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_tiny_takes_small_images_of_any_channels(channels: int) -> None:
    assert build("tiny", 10, channels)(torch.randn(4, channels, 8, 8)).shape == (4, 10)


@pytest.mark.slow
def test_names_are_torchvisions() -> None:
    """The names that its published files hold, in its order."""
    names = list(build("resnet50", 1000).state_dict())
    assert len(names) == 320
    assert names[:3] == ["conv1.weight", "bn1.weight", "bn1.bias"]
    assert {
        "layer1.0.conv3.weight",
        "layer1.0.downsample.0.weight",
        "layer1.0.downsample.1.running_var",
        "layer4.2.bn3.num_batches_tracked",
        "fc.weight",
        "fc.bias",
    } <= set(names)
    assert len(build("resnet18", 1000).state_dict()) == 122


def test_the_same_seed_gives_the_same_weights() -> None:
    def first() -> torch.Tensor:
        torch.manual_seed(3)
        return build("tiny", 10).get_parameter("layer2.0.conv1.weight")

    assert torch.equal(first(), first())


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        InvalidValueError, match=r'^unknown model "resnet19"; did you mean "resnet1'
    ):
        build("resnet19", 10)
    for name in ("", "timm:", ":x", "a.b:", "../x:y", "a-b:c", "a.b:c.d"):
        with pytest.raises(InvalidValueError, match="unknown model"):
            check(name)
    for name in (*MODELS.names(), "timm:vit", "timm:vit_tiny.augreg", "a.b:c"):
        check(name)


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_library_that_is_not_installed(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ThresherError) as caught:
        build(f"{library}:resnet18", 10)
    assert str(caught.value) == (
        f"models of {library} need {library}, which is not installed; pip install {library}"
    )


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_library_that_does_not_fit_this_torch(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torchvision fails beside a CPU build of torch."""
    (tmp_path / library).mkdir()
    (tmp_path / library / "__init__.py").write_text(
        "raise RuntimeError('operator torchvision::nms does not exist\\nmore lines')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, library, raising=False)
    with pytest.raises(ThresherError) as caught:
        build(f"{library}:resnet18", 10)
    assert str(caught.value) == (
        f"{library} is installed but cannot be imported with this torch (operator "
        f"torchvision::nms does not exist); install the {library} that was built for it"
    )


def test_a_library_that_lacks_a_part_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "timm.py").write_text("import a_part_that_is_missing")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(ThresherError, match="cannot import timm: No module named 'a_part"):
        build("timm:resnet18", 10)


OWN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, classes, channels):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(channels, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.neck = nn.Linear(6, 5)
        self.last = nn.Linear(5, classes)

    def forward(self, x):
        return self.last(torch.relu(self.neck(self.body(x))))

def net(classes, channels): return Net(classes, channels)
def only_classes(classes): return Net(classes, 3)
def anything(**options): return Net(options["classes"], options["channels"])
def text(classes): return "no model"
def nothing(): return Net(3, 3)
def wrong(classes): return Net(classes)
def convolution(classes): return nn.Conv2d(3, classes, 1)
"""


def test_a_function_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_networks.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    x = torch.randn(2, 3, 8, 8)
    for name in ("net", "only_classes", "anything"):
        model = build(f"my_networks:{name}", 4)
        features, logits = find_features(model, x).run(model, x)
        assert (features.shape, logits.shape) == ((2, 5), (2, 4))
        assert torch.allclose(model.get_submodule("last")(features), logits)
    with pytest.raises(NotFoundError, match='no model "nett"; did you mean "net"'):
        build("my_networks:nett", 4)
    with pytest.raises(InvalidValueError, match='"my_networks:text" returned str; a model is'):
        build("my_networks:text", 4)
    with pytest.raises(InvalidValueError, match='"my_networks:nothing" is not a model'):
        build("my_networks:nothing", 4)
    with pytest.raises(InvalidValueError, match=r'"my_networks:wrong" failed: .*channels'):
        build("my_networks:wrong", 4)
    with pytest.raises(NotFoundError, match='no module named "my_netwoks"'):
        build("my_netwoks:net", 4)
    with pytest.raises(ThresherError, match="Conv2d has no linear layer"):
        find_features(build("my_networks:convolution", 4), x)


@pytest.mark.parametrize("name", ["os:system", "json:dumps", "builtins:input", "subprocess:Popen"])
def test_other_callables_are_not_called(name: str) -> None:
    with pytest.raises(InvalidValueError, match=f'^"{name}" is not a model'):
        build(name, 10)


def test_importing_a_model_leaves_the_path_alone(tmp_path: Path) -> None:
    before = list(sys.path)
    with pytest.raises(NotFoundError):
        build("no_such_module_here:net", 4)
    assert sys.path == before


def test_the_usual_names_of_a_head_win_over_the_last_layer() -> None:
    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 2)
            self.auxiliary = nn.Linear(3, 2)

    found = find_head(TwoHeads())
    assert found is not None
    assert found[0] == "fc"


def test_a_last_layer_that_is_no_head_is_refused() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.real = nn.Linear(3, 2)
            self.unused = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.real(x)

    with pytest.raises(ThresherError, match=r'last linear layer of Odd \("unused"\) is not its'):
        find_features(Odd(), torch.randn(2, 3))
