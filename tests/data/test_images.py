"""JPEG by the short way gives Pillow's pixels, and what is not by the book is left to Pillow."""

import io

import numpy as np
import pytest
from PIL import Image

from thresher.data import images


def _photograph(mode: str = "RGB") -> Image.Image:
    random = np.random.default_rng(3)
    small = random.integers(0, 256, (24, 31, 4 if mode == "CMYK" else 3), dtype=np.uint8)
    return (
        Image.fromarray(small, "CMYK" if mode == "CMYK" else "RGB").resize((217, 151)).convert(mode)
    )


def _jpeg(image: Image.Image, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    return file.getvalue()


def _by_pillow(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize("quality", [20, 75, 95])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True])
def test_the_short_way_gives_pillows_pixels(
    quality: int, subsampling: int, progressive: bool
) -> None:
    pytest.importorskip("simplejpeg")
    image = _photograph()
    data = _jpeg(image, quality=quality, subsampling=subsampling, progressive=progressive)
    short = images._colour_jpeg(data)
    assert short is not None
    assert np.array_equal(short, _by_pillow(data))
    assert np.array_equal(images.decode(data), short)


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_other_colours_are_pillows(mode: str) -> None:
    data = _jpeg(_photograph(mode))
    assert images._colour_jpeg(data) is None
    assert np.array_equal(images.decode(data), _by_pillow(data))


def test_a_cut_file_is_refused_as_pillow_refuses_it() -> None:
    data = _jpeg(_photograph())
    for end in (3, 100, len(data) // 2):
        with pytest.raises(Exception) as theirs:  # noqa: PT011 (Pillow raises several kinds)
            _by_pillow(data[:end])
        with pytest.raises(theirs.type):
            images.decode(data[:end])
