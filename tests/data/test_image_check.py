"""Packing checks files at an eighth of their size; it must find what full decoding finds."""

import io
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from thresher.data import images


def jpeg(mode: str = "RGB", **options: Any) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 15, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).resize((120, 96), Image.Resampling.BICUBIC).convert(mode)
    file = io.BytesIO()
    image.save(file, **{"format": "JPEG", **options})
    return file.getvalue()


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return jpeg(exif=exif)


WHOLE = {
    "colour": jpeg(),
    "progressive": jpeg(progressive=True),
    "no subsampling": jpeg(subsampling=0),
    "restart markers": jpeg(restart_marker_blocks=4),
    "CMYK": jpeg("CMYK"),
    "grey": jpeg("L"),
    "turned": turned(),
    "PNG": jpeg(format="PNG"),
}
OTHERS = {
    "empty": b"",
    "text": b"this is no image\n" * 50,
    "start of a JPEG": b"\xff\xd8\xff",
    "HTML after the start of a JPEG": b"\xff\xd8\xff\xe0" + b"<html>" * 100,
}


def is_broken(read: Callable[[bytes], object], data: bytes) -> bool:
    try:
        read(data)
    except Exception:
        return True
    return False


def overwritten(data: bytes, at: int, count: int, seed: int) -> bytes:
    noise = random.Random(seed).randbytes(len(data[at : at + count]))
    return data[:at] + noise + data[at + count :]


@pytest.mark.parametrize("kind", WHOLE)
def test_whole_files_pass(kind: str) -> None:
    images.check(WHOLE[kind])


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_no_image_is_broken(kind: str) -> None:
    assert is_broken(images.decode, OTHERS[kind])
    assert is_broken(images.check, OTHERS[kind])


@pytest.mark.parametrize("kind", WHOLE)
def test_truncated_files(kind: str) -> None:
    data = WHOLE[kind]
    lengths = [*range(1, len(data), len(data) // 40), *(len(data) - n for n in (1, 2, 3, 10))]
    broken = [is_broken(images.check, data[:length]) for length in lengths]
    assert broken == [is_broken(images.decode, data[:length]) for length in lengths]
    assert sum(broken) > 30


@pytest.mark.parametrize("kind", WHOLE)
def test_overwritten_and_missing_bytes(kind: str) -> None:
    data = WHOLE[kind]
    places = [(len(data) * n // 40, n) for n in range(40)]
    damaged = [overwritten(data, at, 1 + n % 30, n) for at, n in places]
    damaged += [data[:at] + data[at + 1 + n :] for at, n in places]
    damaged += [data[:at] + bytes(len(data) - at) for at, _ in places]
    broken = [is_broken(images.check, file) for file in damaged]
    assert broken == [is_broken(images.decode, file) for file in damaged]
    assert any(broken)


@pytest.mark.parametrize("side", [1, 2, 7, 8, 9, 63])
def test_tiny_files_pass(side: int) -> None:
    file = io.BytesIO()
    Image.new("RGB", (side, 65 - side)).save(file, "JPEG")
    images.check(file.getvalue())
