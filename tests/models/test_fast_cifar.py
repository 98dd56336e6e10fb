"""The fast CIFAR network: whitened patches, identity-like filters, and its preset."""

from pathlib import Path
from typing import Any

import pytest
import torch

from thresher import TrainConfig, train
from thresher.models.fast_cifar import EPS, FastCifar
from thresher.models.registry import build
from thresher.training.evaluate import views


def test_the_first_layer_whitens_patches() -> None:
    random = torch.Generator().manual_seed(0)
    images = torch.randn(200, 3, 16, 16, generator=random)
    images = images.cumsum(3) * 0.3 + images.mean(1, keepdim=True)  # correlated pixels
    model = FastCifar(10).double()
    model.initialize(images)
    with torch.no_grad():
        out = model.whiten(images.double()).permute(1, 0, 2, 3).flatten(1)
    half = len(out) // 2
    covariance = out[:half] @ out[:half].T / out.shape[1]
    assert covariance.diag().min() > 1 / (1 + 100 * EPS)
    torch.testing.assert_close(covariance, torch.diag(covariance.diag()), atol=1e-6, rtol=0)
    torch.testing.assert_close(out[half:], -out[:half])
    assert not model.whiten.weight.requires_grad


def test_filters_begin_as_the_identity() -> None:
    model: Any = FastCifar(10)
    x = torch.randn(2, 64, 8, 8)
    torch.testing.assert_close(model.stages[0].rest[2](x), x)


@pytest.mark.parametrize("size", [8, 28, 32])
@pytest.mark.parametrize("channels", [1, 3])
def test_it_takes_images_of_these_sizes(size: int, channels: int) -> None:
    model = build("fast-cifar", classes=7, channels=channels)
    assert model(torch.randn(2, channels, size, size)).shape == (2, 7)


def test_the_preset_is_used_unless_told_otherwise() -> None:
    from thresher.cli.parse import parse
    from thresher.cli.train import Train
    from thresher.cli.train import train as command

    words = ["--data", "cifar10", "--out", "x", "--model=fast-cifar", "--lr", "0.2"]
    config, _ = parse("train", Train, command, words)
    assert (config.optimizer, config.epochs, config.lr) == ("muon", 10, 0.2)
    plain, _ = parse("train", Train, command, ["--data", "cifar10", "--out", "x"])
    assert plain.optimizer == "sgd"
    preset = TrainConfig.for_model("fast-cifar", data="cifar10", out="x", lr=0.2)
    assert {name: getattr(config, name) for name in vars(preset)} == vars(preset)


def test_views_are_averaged() -> None:
    images = torch.arange(32.0).view(2, 1, 4, 4)
    assert len(views(images, "one")) == 1
    mirrored = views(images, "flip")[1]
    torch.testing.assert_close(mirrored[..., 0], images[..., 3])
    shifted = views(images, "shift")
    assert len(shifted) == 8
    torch.testing.assert_close(shifted[2][:, :, 1:, 1:], images[:, :, :-1, :-1])
    torch.testing.assert_close(shifted[3][:, :, :-1, :-1], images[:, :, 1:, 1:])


@pytest.mark.slow  # trains for seconds
def test_it_trains_on_digits(digits: Path, tmp_path: Path) -> None:
    config = TrainConfig.for_model(
        "fast-cifar",
        data=str(digits),
        out=str(tmp_path / "run"),
        batch_size=128,
        epochs=1,
        flip=False,
        views="one",
        precision="fp32",
    )
    result = train(config, quiet=True)
    assert result.accuracy is not None
    assert result.accuracy > 0.7
