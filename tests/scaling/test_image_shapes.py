"""`scale measure` and `plan` on packs whose images are not square, or differ in size."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch import nn

from planted import ArraySource
from thresher.data.sources.registry import open_source
from thresher.data.write import write_pack
from thresher.errors import InvalidValueError
from thresher.scaling.measure import MeasureConfig, measure
from thresher.scaling.plan import PlanConfig, plan

QUICK: dict[str, Any] = {
    "model": "tiny",
    "batch_size": 2,
    "device": "cpu",
    "seconds_per_batch": 0.01,
}


def lazy_net(classes: int) -> nn.Module:
    """Return a network whose size follows from that of the images."""
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A pack of images of different sizes."""
    root = tmp_path_factory.mktemp("photos")
    for number in range(40):
        path = root / "files" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20 + number, 24)).save(path)
    write_pack(open_source(str(root / "files")), root / "pack")
    return str(root / "pack")


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A pack of images of 8×24 pixels."""
    images = np.zeros((20, 8, 24, 3), np.uint8)
    ids = [f"{number:02}" for number in range(20)]
    source = ArraySource(images, np.arange(20) % 2, ["train"] * 20, ids, ["a", "b"])
    folder = tmp_path_factory.mktemp("wide") / "pack"
    write_pack(source, folder)
    return str(folder)


@pytest.mark.slow
def test_a_network_is_measured_on_images_of_the_shape_of_the_pack(wide: str) -> None:
    profile = measure(MeasureConfig(data=wide, **QUICK))
    square = measure(MeasureConfig(classes=2, image_size=8, **QUICK))
    assert profile.layers[0].flops == 3 * square.layers[0].flops
    assert profile.sample_bytes == 8 * 24 * 3
    lazy = {**QUICK, "model": f"{__name__}:lazy_net"}
    assert measure(MeasureConfig(data=wide, **lazy)).parameters == 8 * 24 * 3 * 2 + 2


def test_images_of_different_sizes_need_a_size(photos: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"image_size is required: the images of .* differ"):
        measure(MeasureConfig(data=photos, **QUICK))
    profile = measure(MeasureConfig(data=photos, image_size=16, **QUICK))
    assert (profile.image_size, profile.sample_bytes) == (16, 16 * 16 * 3)
    profile.save(tmp_path / "profile.json")
    table = tmp_path / "table.csv"
    table.write_text("batch,samples,lr\n2,100,0.1\n4,120,0.1\n8,160,0.1\n")
    profiled = tmp_path / "profile.json"
    for from_, used in ((None, None), (table, None), (None, profiled)):
        with pytest.raises(InvalidValueError, match="differ in size, and pilots and measurements"):
            plan(PlanConfig(data=photos, cluster="10gbe", from_=from_, profile=used))
    made = plan(PlanConfig(data=photos, cluster="10gbe", from_=table, profile=profiled))
    assert " --image-size 16 " in made.command


@pytest.mark.parametrize(
    "options", [{"image_size": 16, "classes": 2}, {"image_size": 8, "classes": 2}]
)
def test_a_profile_of_other_images_is_refused(
    wide: str, tmp_path: Path, options: dict[str, Any]
) -> None:
    """The times of a plan were those of the images of the profile."""
    table, profile = tmp_path / "table.csv", tmp_path / "profile.json"
    table.write_text("batch,samples,lr\n2,100,0.1\n4,120,0.1\n8,160,0.1\n")
    config = PlanConfig(data=wide, model="tiny", cluster="10gbe", from_=table, profile=profile)
    measure(MeasureConfig(data=wide, **QUICK)).save(profile)
    plan(config)
    measure(MeasureConfig(**options, **QUICK)).save(profile)
    with pytest.raises(
        InvalidValueError, match=r"not of images of channels, height and width \(3, 8, 24\)"
    ):
        plan(config)
