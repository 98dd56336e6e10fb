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


def _with_segment(jpeg: bytes, kind: int, content: bytes) -> bytes:
    """Put a segment at the beginning of a JPEG file."""
    return (
        jpeg[:2] + bytes([0xFF, kind]) + (2 + len(content)).to_bytes(2, "big") + content + jpeg[2:]
    )


def test_a_turned_photograph_is_turned_wherever_the_file_says_so() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    late = _with_segment(_jpeg(_photograph(), exif=exif), 0xED, bytes(6000))
    xmp = b'http://ns.adobe.com/xap/1.0/\0<x:xmpmeta tiff:Orientation="6"></x:xmpmeta>'
    by_xmp = _with_segment(_jpeg(_photograph()), 0xE1, xmp)
    upright = np.rot90(_by_pillow(_jpeg(_photograph())), -1)
    for data in (late, by_xmp):
        assert images.is_turned(data)
        assert images.read_header(data).size == (217, 151)
        assert np.array_equal(images.decode(data), upright)
    assert not images.is_turned(_with_segment(_jpeg(_photograph()), 0xED, b"Exif\0\0"))


def test_float_pixels_are_refused_and_not_made_black() -> None:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).random((6, 5)).astype(np.float32)).save(file, "TIFF")
    with pytest.raises(ValueError, match="floats"):
        images.decode(file.getvalue())


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", [1, 3, 6, 8, 9])
def test_the_size_is_that_of_the_decoded_image(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    _photograph().save(file, kind, exif=exif)
    assert images.read_header(file.getvalue()).size == images.decode(file.getvalue()).shape[:2]


@pytest.mark.parametrize("size", [(61, 125), (70, 70), (130, 97), (130, 260), (375, 500)])
def test_small_versions_of_a_jpeg_and_of_a_png_are_alike(size: tuple[int, int]) -> None:
    """The audit compares them; JPEG is decoded at a fraction of its size."""
    image = _photograph().resize((9, 7)).resize(size)
    png = io.BytesIO()
    image.save(png, "PNG")
    files = (_jpeg(image, quality=90), png.getvalue())
    for side in (8, 32):
        first, second = (images.squashed(file, side).ravel() for file in files)
        assert np.corrcoef(first, second)[0, 1] > 0.99


@pytest.mark.parametrize("channels", [2, 4, 5])
def test_channels_are_scaled_each_on_its_own(channels: int) -> None:
    random = np.random.default_rng(0)
    raw = random.integers(0, 256, (1, 12, 9, channels), dtype=np.uint8)
    wanted = np.concatenate([images.resized(raw[..., n, None], 5) for n in range(channels)], 3)
    assert np.array_equal(images.resized(raw, 5), wanted)
    if channels in images.MODES:
        file = images.encode_png(raw[0])
        assert np.array_equal(images.decode(file, channels=channels), raw[0])
        assert np.array_equal(images.decode(file, 5, channels), wanted[0])


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_jpeg_at_a_fraction_of_its_size_is_not_stretched(mode: str, orientation: int) -> None:
    """Sides that eight does not divide are rounded up when they are decoded at an eighth."""
    ramp = np.linspace(0, 255, 137)[:131]
    waves = 127 + 100 * np.sin(ramp[:, None] / 40 + ramp / 90)
    image, exif = Image.fromarray(waves.astype(np.uint8)[:, :121]).convert(mode), Image.Exif()
    exif[0x0112] = orientation
    data = _jpeg(image, quality=98, exif=exif)
    whole = Image.fromarray(images.decode(data))
    box = (1.0, 2.0, 110.0, 112.0)
    part = whole.crop((2, 1, 114, 111)).resize((9, 9), Image.Resampling.BILINEAR)
    left, top = (whole.width - 121) / 2, (whole.height - 121) / 2
    centre = (left, top, left + 121, top + 121)
    middle = whole.resize((13, 13), Image.Resampling.BILINEAR, centre)
    for got, wanted in (
        (images.decode_box(data, box, 9, inside=True), part),
        (images.decode(data, 13), middle),
    ):
        apart = np.abs(got.astype(int) - np.asarray(wanted))
        assert apart.max() <= 7
        assert apart.mean() <= 1.5  # 3.4 to 12 if it is stretched


@pytest.mark.parametrize("count", [0, 2, 7])
def test_scaling_in_threads_gives_the_same_pixels(count: int) -> None:
    raw = np.random.default_rng(0).integers(0, 256, (count, 9, 12, 3), dtype=np.uint8)
    assert np.array_equal(images.resized(raw, 100, threads=3), images.resized(raw, 100))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", ["P", "RGBA", "LA"])
def test_transparency_is_dropped_in_silence(
    mode: str, channels: int, recwarn: pytest.WarningsRecorder
) -> None:
    """The colours are those that the file stores, whatever their transparency."""
    colours = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255]], np.uint8)
    image = Image.fromarray(colours[None])
    plain = image.convert("L" if mode == "LA" else "RGB")
    if mode == "P":
        image = Image.new("P", (3, 1))
        image.putpalette(colours.ravel().tolist())
        image.putdata([0, 1, 2])
        image.info["transparency"] = bytes([0, 128, 255])
    else:
        image = plain.convert(mode)
        image.putalpha(Image.fromarray(np.array([[0, 128, 255]], np.uint8)))
    file = io.BytesIO()
    image.save(file, "PNG")
    decoded = images.decode(file.getvalue(), channels=channels)
    images.check(file.getvalue())
    images.measure(file.getvalue(), 1)
    expected = np.asarray(plain.convert("RGB" if channels == 3 else "L"))
    assert decoded.squeeze().tolist() == expected[0].tolist()
    assert not recwarn.list
