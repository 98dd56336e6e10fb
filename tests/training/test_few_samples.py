"""Runs on a handful of images: what is measured, and what cannot be."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planted import ArraySource
from thresher.data.pack import Pack
from thresher.data.split import HoldOut
from thresher.data.write import WriteOptions, write_pack
from thresher.errors import InvalidValueError
from thresher.training.config import TrainConfig
from thresher.training.train import train


def _pack(out: Path, count: int) -> Path:
    images = np.random.default_rng(0).integers(0, 255, (count, 8, 8, 1), dtype=np.uint8)
    ids = [str(number) for number in range(count)]
    source = ArraySource(images, np.arange(count) % 2, ["train"] * count, ids, ["a", "b"])
    write_pack(source, out, WriteOptions(processes=1))
    return out


@pytest.mark.parametrize(("count", "held"), [(1, 0), (3, 1), (40, 4)])
def test_a_share_of_few_samples_is_at_least_one(tmp_path: Path, count: int, held: int) -> None:
    pack = Pack.open(_pack(tmp_path / "pack", count))
    assert HoldOut().mask(pack).sum() == HoldOut(0.1).mask(pack).sum() == held
    assert HoldOut(0.0).mask(pack).sum() == 0


@pytest.mark.parametrize("target", [{"target_accuracy": 0.5}, {"target_loss": 1.0}])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_target_without_images_to_measure_it_on_is_refused(
    tmp_path: Path, target: dict[str, Any], workers: int
) -> None:
    data, out = str(_pack(tmp_path / "pack", 4)), tmp_path / "run"
    config = TrainConfig(data=data, out=str(out), validation=0, batch_size=4, workers=workers)
    (name,) = target
    with pytest.raises(InvalidValueError, match=f"`{name}` needs validation or test images"):
        train(TrainConfig.from_dict({**config.to_dict(), **target}), quiet=True)
    assert not out.exists()
