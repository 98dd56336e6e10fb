"""Encoded images to pixels and back: the only place where files are decoded.

Pillow reads every format. Colour JPEG goes through simplejpeg where it is installed: the same
library, libjpeg-turbo, hence the same pixels, but without a copy on the way to numpy.
"""

import io
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image as PilImage

JPEG = b"\xff\xd8\xff"
"""How a JPEG file begins."""


def decode(data: bytes, size: int | None = None, channels: int = 3) -> np.ndarray:
    """An encoded image as uint8 (height, width, channels), RGB or grey.

    With `size`, its short side is scaled to it and the middle square cut out.
    """
    if size is None and channels == 3 and data[:3] == JPEG:
        array = _colour_jpeg(data)
        if array is not None:
            return array
    return pixels(_opened(data, size, channels))


def _colour_jpeg(data: bytes) -> np.ndarray | None:
    """None where Pillow must say what it is: grey, CMYK, or not quite by the book."""
    try:
        import simplejpeg
    except ImportError:
        return None
    try:
        if simplejpeg.decode_jpeg_header(data)[2] != "YCbCr":
            return None
        array: np.ndarray = simplejpeg.decode_jpeg(data)
    except ValueError:
        return None
    return array


def _opened(data: bytes, size: int | None, channels: int) -> "PilImage":
    """As a Pillow image; every byte has been decoded when this returns."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        if size is not None:
            # JPEG can be decoded at a fraction of its size, which is several times faster.
            image.draft("RGB" if channels == 3 else "L", (size, size))
        return square(eight_bit(image, channels), size)


def eight_bit(image: "PilImage", channels: int) -> "PilImage":
    """RGB or grey with 8 bits; 16-bit grey keeps its high byte, which Pillow would clip."""
    from PIL import Image

    if image.mode.startswith("I"):
        high = np.clip(np.asarray(image).astype(np.int64) >> 8, 0, 255).astype(np.uint8)
        image = Image.fromarray(high)
    mode = "RGB" if channels == 3 else "L"
    if image.mode == mode:  # convert() would make a copy all the same
        image.load()
        return image
    return image.convert(mode)


def square(image: "PilImage", size: int | None) -> "PilImage":
    """Scaled so that the short side is `size`, and the middle square of that."""
    if size is None or image.size == (size, size):
        image.load()
        return image
    from PIL import Image

    width, height = image.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    box = (left, top, left + side, top + side)
    return image.resize((size, size), Image.Resampling.BILINEAR, box=box)


def pixels(image: "PilImage") -> np.ndarray:
    """uint8 (height, width, channels)."""
    array = np.asarray(image, dtype=np.uint8)
    return array if array.ndim == 3 else array[:, :, None]


def resized(images: np.ndarray, size: int) -> np.ndarray:
    """Raw images (n, height, width, channels) at `size` × `size`."""
    from PIL import Image

    channels = images.shape[3]
    out = np.empty((len(images), size, size, channels), np.uint8)
    for n, image in enumerate(images):
        out[n] = pixels(square(Image.fromarray(_flat(image)), size))
    return out


def encode_png(image: np.ndarray, fast: bool = False) -> bytes:
    """Raw pixels (height, width, 1 or 3) as a PNG; `fast` trades some bytes for speed."""
    from PIL import Image

    file = io.BytesIO()
    options: dict[str, Any] = {"compress_level": 1} if fast else {}
    Image.fromarray(_flat(image)).save(file, "PNG", **options)
    return file.getvalue()


def _flat(image: np.ndarray) -> np.ndarray:
    return image[:, :, 0] if image.shape[2] == 1 else image
