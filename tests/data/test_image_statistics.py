"""Broken and odd images are found by their pixels, and real ones are left alone."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter

from made_images import picture
from thresher.data.image_statistics import FAULTS, ImageStatistics, image_statistics
from thresher.data.pack import Pack
from thresher.data.sources.folder import Folder
from thresher.data.write import WriteOptions, write_pack


def measured(images: np.ndarray, tmp_path: Path) -> ImageStatistics:
    from planted import ArraySource

    n = len(images)
    ids = [str(row) for row in range(n)]
    source = ArraySource(images, np.zeros(n, int), ["train"] * n, ids, ["a"])
    return image_statistics(write_pack(source, tmp_path / "p"), np.arange(n))


@pytest.mark.parametrize("name", ["digits", "cifar10"])
@pytest.mark.parametrize("kind", ["uniform", "normal", "binary"])
def test_planted_noise_is_found_among_real_images(
    name: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    pack = Pack.open(request.getfixturevalue(name))
    images = pack.images(pack.indices("train")[:1400])
    random = np.random.default_rng(0)
    noise = {
        "uniform": random.integers(0, 256, (50, *images.shape[1:])),
        "normal": random.normal(120, 40, (50, *images.shape[1:])).clip(0, 255),
        "binary": 255 * random.integers(0, 2, (50, *images.shape[1:])),
    }[kind]
    images[:50] = noise
    faults = measured(images, tmp_path).faults()
    assert faults["noise"][:50].mean() >= 0.9
    wrong = np.any([faults[fault][50:] for fault in FAULTS], axis=0)
    assert wrong.mean() <= 0.01


def test_blurred_images_are_found(tmp_path: Path, cifar10: Path) -> None:
    pack = Pack.open(cifar10)
    images = pack.images(pack.indices("train")[:1000])
    for row in range(50):
        images[row] = np.asarray(Image.fromarray(images[row]).filter(ImageFilter.GaussianBlur(5)))
    blurred = measured(images, tmp_path).faults()["blurred"]
    assert blurred[:50].mean() > 0.7
    assert blurred[50:].mean() <= 0.005


def test_noise_is_not_looked_for_where_all_images_are_noise(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (100, 16, 16, 1), np.uint8)
    assert not measured(images, tmp_path).faults()["noise"].any()


def test_files_of_any_size(tmp_path: Path) -> None:
    """Encoded images: odd shapes, blanks, a large noise image, and one that breaks later."""
    folder = tmp_path / "images" / "a"
    folder.mkdir(parents=True)
    for n in range(20):
        (folder / f"{n:02}.jpg").write_bytes(picture(n, 90 + n, 80))
    (folder / "20-wide.png").write_bytes(picture(20, 600, 80, "PNG"))
    (folder / "21-small.png").write_bytes(picture(21, 10, 9, "PNG"))
    (folder / "22-blank.png").write_bytes(encoded(np.full((80, 90, 3), 200)))
    random = np.random.default_rng(0)
    (folder / "23-noise.png").write_bytes(encoded(random.integers(0, 256, (300, 310, 3))))
    pack = write_pack(Folder(tmp_path / "images"), tmp_path / "pack", WriteOptions())
    assert pack.image_shape is None
    statistics = image_statistics(pack, np.arange(len(pack)))
    assert statistics.width[:2].tolist() == [90, 91]
    found = {fault: np.flatnonzero(rows).tolist() for fault, rows in statistics.faults().items()}
    assert found.pop("shape") == [20, 21]
    assert found == {"unreadable": [], "blank": [22], "noise": [23], "blurred": []}
    some = statistics.take(np.array([22, 23]))
    assert len(some) == 2
    assert some.height.tolist() == [80, 300]


def test_a_file_that_cannot_be_read() -> None:
    from thresher.data.images import measure

    whole = encoded(np.random.default_rng(0).integers(0, 256, (40, 40, 3)))
    assert measure(whole, 20) is not None
    assert measure(whole[:60], 20) is None
    assert measure(b"no image", 20) is None


def test_a_lab_image_is_readable() -> None:
    """Pillow converts LAB to RGB only, so that an audit dropped such images as unreadable."""
    from thresher.data.images import measure

    lab = io.BytesIO()
    Image.new("LAB", (40, 30)).save(lab, "TIFF")
    found = measure(lab.getvalue(), 20)
    assert found is not None
    assert found[1] == (40, 30)


def encoded(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("channels", [2, 4, 5])
def test_channels_are_measured_alike_in_images_of_any_size(tmp_path: Path, channels: int) -> None:
    """Alpha counted in small images, of which all were blank; large ones had three channels."""
    random = np.random.default_rng(0)
    cells = random.integers(100, 109, (6, 16, 16, channels)).astype(np.uint8)
    if channels < 5:
        cells[..., :-1], cells[..., -1] = cells[..., :1], 255
    else:
        cells[..., :3] = 100
        cells[..., 3:] += 2 * (cells[..., 3:] - 100)
    small, large = (
        measured(cells.repeat(n, axis=1).repeat(n, axis=2), tmp_path / str(n)) for n in (8, 16)
    )
    assert large.height[0] == 2 * small.height[0] == 256
    np.testing.assert_allclose(small.contrast, large.contrast, rtol=0.1)
    assert not small.faults()["blank"].any()
    assert not large.faults()["blank"].any()


def test_colours_are_weighed_alike_in_images_of_any_size(tmp_path: Path) -> None:
    """A blue pattern had three times the contrast in small images, which were not blank."""
    random = np.random.default_rng(0)
    cells = np.full((6, 16, 16, 3), 100, np.uint8)
    cells[..., 2] = random.integers(90, 126, cells.shape[:3])
    small, large = (
        measured(cells.repeat(n, axis=1).repeat(n, axis=2), tmp_path / str(n)) for n in (8, 16)
    )
    np.testing.assert_allclose(small.contrast, large.contrast, rtol=0.1)
    assert small.faults()["blank"].all()
    assert large.faults()["blank"].all()
