"""Thumbnails: many small images in one picture, so that a gallery needs few requests."""

import io

import numpy as np

from thresher.data.pack import Pack, decode

THUMB_LIMIT = 64
"""Pixels a side; smaller images keep their own size, larger ones are scaled down."""
COLUMNS = 16
SPRITE_LIMIT = 256
"""Thumbnails per picture."""


def thumb_size(pack: Pack) -> int:
    """Pixels a side of this pack's thumbnails."""
    if pack.image_shape is None:
        return THUMB_LIMIT
    return min(max(pack.image_shape[:2]), THUMB_LIMIT)


def thumbs(pack: Pack, positions: np.ndarray) -> np.ndarray:
    """(n, size, size, 3) uint8; raw images that fit are passed pixel by pixel."""
    size = thumb_size(pack)
    if pack.image_shape is None:
        return pack.images(positions, size=size)
    images = pack.images(positions)
    height, width = images.shape[1:3]
    if images.shape[3] == 1:
        images = np.repeat(images, 3, axis=3)
    if (height, width) == (size, size):
        return images
    if max(height, width) <= size:
        square = np.zeros((len(images), size, size, 3), np.uint8)
        top, left = (size - height) // 2, (size - width) // 2
        square[:, top : top + height, left : left + width] = images
        return square
    return np.stack([_shrunk(image, size) for image in images])


def sprite(pack: Pack, positions: np.ndarray, lossy: bool = False) -> bytes:
    """One picture of `COLUMNS` thumbnails a line, in the order given: PNG, or WebP if `lossy`."""
    from PIL import Image

    images = thumbs(pack, positions)
    n, size = images.shape[:2]
    lines = -(-n // COLUMNS)
    sheet = np.zeros((lines * COLUMNS, size, size, 3), np.uint8)
    sheet[:n] = images
    sheet = sheet.reshape(lines, COLUMNS, size, size, 3).transpose(0, 2, 1, 3, 4)
    picture = Image.fromarray(np.ascontiguousarray(sheet).reshape(lines * size, COLUMNS * size, 3))
    file = io.BytesIO()
    if lossy:
        picture.save(file, "WEBP", quality=88, method=2)
    else:
        # Level 1: photographs hardly shrink further, and the next room is on the same machine.
        picture.save(file, "PNG", compress_level=1)
    return file.getvalue()


def _shrunk(image: np.ndarray, size: int) -> np.ndarray:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image).save(file, "BMP")
    return decode(file.getvalue(), size)
