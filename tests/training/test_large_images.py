"""Training on images of different sizes: random-resized crops, decoded while training."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from made_images import class_folder, mixed_folder
from thresher import Pack, TrainConfig, train
from thresher.data import loader as loader_module
from thresher.data.augment import Augment
from thresher.data.sources.folder import Folder
from thresher.data.write import WriteOptions, write_pack
from thresher.errors import InvalidValueError
from thresher.models.embed import features_of_run
from thresher.models.network import Preprocessing
from thresher.training.augmentation import AugmentConfig, augment_kind, make_augment


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    root = tmp_path_factory.mktemp("large")
    return write_pack(Folder(class_folder(root / "images", each=8)), root / "pack")


def test_the_kind_follows_the_images_and_the_options(encoded: Pack, digits: Path) -> None:
    assert augment_kind(AugmentConfig(), encoded) == "imagenet"
    assert augment_kind(AugmentConfig(), Pack.open(digits)) == "cifar"
    assert augment_kind(AugmentConfig(crop_padding=2), encoded) == "cifar"
    assert augment_kind(AugmentConfig(augment="none"), encoded) == "none"
    with pytest.raises(InvalidValueError, match="do not work with augment imagenet"):
        augment_kind(AugmentConfig(augment="imagenet", crop=8), encoded)


def test_single_options_override_the_kind(encoded: Pack) -> None:
    def made(**options: Any) -> Augment:
        return make_augment(AugmentConfig(image_size=16, **options), encoded, torch.float32)

    plain, imagenet = made(augment="none"), made()
    assert (plain.flip, plain.crop_padding) == (False, 0)
    assert (imagenet.flip, imagenet.crop_padding) == (True, 0)
    assert made(augment="none", flip=True).flip
    assert made(augment="cifar").crop_padding == 2
    assert not made(flip=False).flip


def test_options_that_have_no_effect_are_refused(encoded: Pack, digits: Path) -> None:
    def make(pack: Pack, **options: Any) -> Augment:
        return make_augment(AugmentConfig(**options), pack, torch.float32)

    raw = Pack.open(digits)
    with pytest.raises(InvalidValueError, match="image_size 16 has no effect with augment cifar"):
        make(raw, image_size=16)
    with pytest.raises(InvalidValueError, match="crop_area has no effect on the images of"):
        make(raw, crop_area=0.3)
    with pytest.raises(InvalidValueError, match=r"crop_ratio has no effect .* with augment none"):
        make(encoded, image_size=16, augment="none", crop_ratio=2.0)
    assert make(raw, image_size=8).resized is None
    assert make(raw, image_size=16, crop_area=0.3, augment="imagenet").output_size(8, 8) == (16, 16)


def test_the_gpu_decodes_only_for_a_gpu(encoded: Pack, digits: Path, tmp_path: Path) -> None:
    config = TrainConfig(
        data=str(encoded.root),
        out=str(tmp_path / "run"),
        image_size=16,
        batch_size=6,
        device="cpu",
        decoder="gpu",
    )
    with pytest.raises(InvalidValueError, match="decoder cannot be gpu: it needs a GPU"):
        train(config, quiet=True)
    with pytest.raises(InvalidValueError, match="works only with augment imagenet"):
        train(replace(config, augment="cifar"), quiet=True)
    with pytest.raises(InvalidValueError, match="the images are stored as pixels"):
        train(replace(config, data=str(digits), image_size=None), quiet=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow  # trains on two processes
def test_one_and_two_workers_train_on_the_same_crops(encoded: Pack, tmp_path: Path) -> None:
    losses = []
    for workers in (1, 2):
        config = TrainConfig(
            data=str(encoded.root),
            out=str(tmp_path / f"run-{workers}"),
            epochs=2,
            batch_size=6,
            image_size=16,
            workers=workers,
            precision="fp64",
            batch_norm="sync",
        )
        result = train(config, quiet=True)
        assert result.resolved.augment == "imagenet"
        assert result.resolved.image_size == 16
        assert result.resolved.decoder == "simplejpeg"
        assert result.resolved.slow_decoded == 0
        assert result.input_wait_share is not None
        assert 0 < result.input_wait_share < 1
        losses.append((result.train_loss, result.loss))
    assert np.allclose(np.array(losses[0], float), np.array(losses[1], float), rtol=1e-9)


@pytest.mark.slow
def test_a_run_decodes_in_processes_or_threads(
    encoded: Pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same losses; that no process is left is checked after every test."""
    losses = []
    for least in (1, 1000):
        monkeypatch.setattr(loader_module, "_PROCESSES_FROM", least)
        out = tmp_path / str(least)
        config = TrainConfig(
            data=str(encoded.root), out=str(out), epochs=2, batch_size=6, image_size=16
        )
        result = train(config, quiet=True)
        features = features_of_run(config.out, encoded).array
        losses.append((result.train_loss, result.loss, float(features.sum())))
    assert losses[0] == losses[1]


def test_features_see_the_crop_of_evaluation(encoded: Pack, tmp_path: Path) -> None:
    config = TrainConfig(
        data=str(encoded.root), out=str(tmp_path / "run"), epochs=1, batch_size=6, image_size=28
    )
    train(config, quiet=True)
    images = Preprocessing.of_run(config.out, encoded)
    assert (images.crop, images.image_size) == (28, 32)
    assert len(features_of_run(config.out, encoded).array) == len(encoded.indices("train"))


def test_large_raw_images_are_cropped_on_the_device(encoded: Pack, tmp_path: Path) -> None:
    folder = Folder(encoded.root.parent / "images")
    raw = write_pack(folder, tmp_path / "raw", WriteOptions(resize=96))
    config = TrainConfig(
        data=str(raw.root), out=str(tmp_path / "run"), epochs=1, batch_size=6, image_size=24
    )
    result = train(config, quiet=True)
    assert (result.resolved.augment, result.resolved.image_size) == ("imagenet", 24)
    assert result.resolved.decoder is None
    assert result.input_wait_share == 0


@pytest.mark.parametrize("processes_from", [1, 1000])
def test_images_that_need_the_slower_decoder_are_counted(
    tmp_path: Path,
    processes_from: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(loader_module, "_PROCESSES_FROM", processes_from)
    caplog.set_level("INFO")
    pack = write_pack(Folder(mixed_folder(tmp_path / "images")), tmp_path / "pack")
    config = TrainConfig(
        data=str(pack.root), out=str(tmp_path / "run"), image_size=16, batch_size=2, validation=0
    )
    result = train(replace(config, epochs=2, device="cpu"), quiet=True)
    assert result.resolved.slow_decoded == 4
    assert "4 images were decoded by Pillow because simplejpeg cannot read them" in caplog.text
