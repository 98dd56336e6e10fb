"""An audit is not taken for one that looked with other weights or features."""

from pathlib import Path

import numpy as np
import pytest

from made_images import class_folder
from planted import ArraySource
from thresher.auditing.audit import audit, open_images
from thresher.auditing.config import AuditConfig
from thresher.data.pack import Pack
from thresher.data.write import WriteOptions, write_pack
from thresher.errors import AlreadyExistsError, InvalidValueError
from thresher.paths import AuditPaths

OTHER = "with other options or another network"


@pytest.fixture
def pack(digits: Path, tmp_path: Path) -> Pack:
    """Digits of two classes, 40 of them."""
    whole = Pack.open(digits)
    rows = np.flatnonzero(whole.labels < 2)[:40]
    ids = whole.ids.take(rows).to_pylist()
    source = ArraySource(whole.images(rows), whole.labels[rows], ["train"] * 40, ids, ["0", "1"])
    return write_pack(source, tmp_path / "pack", WriteOptions(processes=1))


def test_other_ids_of_the_same_features(pack: Pack, tmp_path: Path) -> None:
    """The rows were then of other images, but the old result was returned."""
    file, listed = tmp_path / "f.npy", tmp_path / "f.ids.txt"
    np.save(file, np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32))
    ids = pack.ids.to_pylist()
    listed.write_text("\n".join(ids))
    config = AuditConfig(features=file)
    result = audit(pack, tmp_path / "out", config)
    assert audit(pack, tmp_path / "out", config) == result
    listed.write_text("\n".join(reversed(ids)))
    with pytest.raises(AlreadyExistsError, match=OTHER):
        audit(pack, tmp_path / "out", config)
    listed.unlink()
    assert audit(pack, tmp_path / "out", config) == result


@pytest.mark.slow
def test_other_weights_in_several_files(pack: Pack, tmp_path: Path) -> None:
    """Only a file called model.safetensors was looked at, which large models do not have."""
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    vit = transformers.ViTConfig(**small, intermediate_size=64, image_size=32, patch_size=8)
    config = AuditConfig(model=f"hf:{tmp_path / 'model'}", device="cpu")
    transformers.ViTModel(vit).save_pretrained(tmp_path / "model", max_shard_size="20KB")
    assert not (tmp_path / "model" / "model.safetensors").exists()
    result = audit(pack, tmp_path / "out", config)
    assert audit(pack, tmp_path / "out", config) == result
    transformers.ViTModel(vit).save_pretrained(tmp_path / "model", max_shard_size="20KB")
    with pytest.raises(AlreadyExistsError, match=OTHER):
        audit(pack, tmp_path / "out", config)


def test_a_folder_with_the_name_of_a_known_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data set in the cache was audited instead."""
    class_folder(tmp_path / "digits")
    monkeypatch.chdir(tmp_path)
    assert open_images("digits", AuditPaths(tmp_path / "out")).classes == ["cat", "dog", "eel"]


def test_a_size_without_effect_is_mentioned(
    pack: Pack, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InvalidValueError, match='unknown model "none"'):
        audit(pack, tmp_path / "out", AuditConfig(image_size=64, network="none"))
    assert f"image_size has no effect: the images of {pack.name} all have 8×8" in caplog.text
