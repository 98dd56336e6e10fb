"""Decode and encode images; files are decoded here and nowhere else.

Pillow reads every format. Colour JPEG is decoded by simplejpeg if it is installed: it uses the same
library, libjpeg-turbo, so the pixels are the same, but it needs one copy less.
"""

import contextlib
import io
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image as PilImage

JPEG = b"\xff\xd8\xff"
"""First bytes of a JPEG file."""

Resample = Literal["bilinear", "bicubic"]
"""How images are scaled; both average over the pixels that they merge."""


def decode(
    data: bytes, size: int | None = None, channels: int = 3, resample: Resample = "bilinear"
) -> np.ndarray:
    """Decode an image file to (height, width, channels) uint8, RGB or grey.

    `size` scales the short side to this many pixels and cuts out the centre square.
    """
    if size is None and channels == 3 and data[:3] == JPEG:
        array = _colour_jpeg(data)
        if array is not None:
            return array
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        if size is not None:
            # JPEG can be decoded at a fraction of its size, several times faster.
            image.draft("RGB" if channels == 3 else "L", (size, size))
        return pixels(square(eight_bit(image, channels), size, resample))


def measure(data: bytes, limit: int) -> tuple[np.ndarray, tuple[int, int]] | None:
    """Decode to grey (height, width) uint8, the short side at most `limit` pixels.

    Returns:
        The pixels and the original (width, height), or None if the file cannot be read.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            size = image.size
            image.draft("L", (limit, limit))
            grey = eight_bit(image, 1)
            scale = limit / min(grey.size)
            if scale < 1:
                shape = (max(1, round(grey.width * scale)), max(1, round(grey.height * scale)))
                grey = grey.resize(shape, Image.Resampling.BOX)
            return np.asarray(grey, np.uint8), size
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def _colour_jpeg(data: bytes) -> np.ndarray | None:
    """Decode a colour JPEG; return None for what only Pillow handles (grey, CMYK, irregular)."""
    with contextlib.suppress(ImportError, ValueError):
        import simplejpeg

        if simplejpeg.decode_jpeg_header(data)[2] == "YCbCr":
            array: np.ndarray = simplejpeg.decode_jpeg(data)
            return array
    return None


def eight_bit(image: "PilImage", channels: int) -> "PilImage":
    """Convert to 8-bit RGB or grey; 16-bit grey keeps its high byte (Pillow would clip it)."""
    from PIL import Image

    if image.mode.startswith("I"):
        high = np.clip(np.asarray(image).astype(np.int64) >> 8, 0, 255).astype(np.uint8)
        image = Image.fromarray(high)
    mode = "RGB" if channels == 3 else "L"
    if image.mode == mode:  # convert() would make a copy
        image.load()
        return image
    return image.convert(mode)


def square(image: "PilImage", size: int | None, resample: Resample = "bilinear") -> "PilImage":
    """Scale the short side to `size` and cut out the centre square."""
    if size is None or image.size == (size, size):
        image.load()
        return image
    from PIL import Image

    width, height = image.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    box = (left, top, left + side, top + side)
    return image.resize((size, size), Image.Resampling[resample.upper()], box=box)


def pixels(image: "PilImage") -> np.ndarray:
    """Return the pixels as (height, width, channels) uint8."""
    array = np.asarray(image, dtype=np.uint8)
    return array if array.ndim == 3 else array[:, :, None]


def resized(images: np.ndarray, size: int, resample: Resample = "bilinear") -> np.ndarray:
    """Resize raw images (n, height, width, channels) to `size` × `size`."""
    from PIL import Image

    channels = images.shape[3]
    out = np.empty((len(images), size, size, channels), np.uint8)
    for n, image in enumerate(images):
        out[n] = pixels(square(Image.fromarray(_flat(image)), size, resample))
    return out


def encode_png(image: np.ndarray, fast: bool = False) -> bytes:
    """Encode raw pixels (height, width, 1 or 3) as PNG; `fast` gives larger files sooner."""
    from PIL import Image

    file = io.BytesIO()
    options: dict[str, Any] = {"compress_level": 1} if fast else {}
    Image.fromarray(_flat(image)).save(file, "PNG", **options)
    return file.getvalue()


def _flat(image: np.ndarray) -> np.ndarray:
    return image[:, :, 0] if image.shape[2] == 1 else image
