"""Sheets of thumbnails: many small images in one picture, so that a gallery needs few requests."""

import io

import numpy as np

from thresher.data.images import resized, shown_channels
from thresher.data.pack import Pack

THUMBNAIL_LIMIT = 64
"""Largest side in pixels; smaller images keep their size, larger ones are scaled down."""
COLUMNS = 16
SHEET_LIMIT = 256
"""Thumbnails per sheet."""


def thumbnail_size(pack: Pack) -> int:
    """Return the side of the thumbnails of a pack, in pixels."""
    if pack.image_shape is None:
        return THUMBNAIL_LIMIT
    return min(max(pack.image_shape[:2]), THUMBNAIL_LIMIT)


def thumbnails(pack: Pack, positions: np.ndarray) -> np.ndarray:
    """Return square thumbnails, (n, size, size, 3) uint8; images that fit are not resampled."""
    size = thumbnail_size(pack)
    if pack.image_shape is None:
        return pack.images(positions, size=size)
    images = shown_channels(pack.images(positions))
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
    return resized(images, size)


def thumbnail_sheet(pack: Pack, positions: np.ndarray, lossy: bool = False) -> bytes:
    """Return a picture with `COLUMNS` thumbnails per line: PNG, or WebP if `lossy`."""
    from PIL import Image

    images = thumbnails(pack, positions)
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
        # Level 1: photographs hardly compress further, and the browser is usually local.
        picture.save(file, "PNG", compress_level=1)
    return file.getvalue()
