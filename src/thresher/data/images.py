"""Decode and encode images; files are decoded here and nowhere else.

Pillow reads every format. Colour JPEG is decoded by simplejpeg if it is installed: it uses the same
library, libjpeg-turbo, so the pixels are the same, but it needs one copy less.
"""

import contextlib
import importlib.util
import io
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from thresher.data.gather import run_in_threads

if TYPE_CHECKING:
    from PIL.Image import Image as PilImage

JPEG = b"\xff\xd8\xff"
"""First bytes of a JPEG file."""
PILLOW = "Pillow"
MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
"""Pillow's mode of images with so many channels."""
_THREADS_FROM = 96
"""Side from which it pays to scale in threads: below it most of the time goes to Python."""
_ORIENTATION = 0x0112
_APP1 = 0xE1
"""Kind of the segments of a JPEG file that hold EXIF or XMP data."""
Box = tuple[float, float, float, float]
"""Top, left, height and width of a part of an image, in pixels."""
Corners = tuple[float, float, float, float]
"""Left, top, right and bottom of such a part, as Pillow gives them."""
Resample = Literal["bilinear", "bicubic"]
"""How images are scaled; both average over the pixels that they merge."""


class Header(NamedTuple):
    """What the header of an image file says."""

    size: tuple[int, int]
    """Height and width of the decoded image."""
    by_pillow: bool
    """Whether only Pillow can decode it."""


def decode(
    data: bytes, size: int | None = None, channels: int = 3, resample: Resample = "bilinear"
) -> np.ndarray:
    """Decode an image file to (height, width, channels) uint8.

    Three channels are RGB, one is grey; with alpha they are four and two. `size` scales the short
    side to this many pixels and cuts out the centre square. An image that its camera marked as
    turned (EXIF) is turned upright.
    """
    if size is None and channels == 3:
        array = _colour_jpeg(data)
        if array is not None:
            return array
    # JPEG can be decoded at a fraction of its size, several times faster.
    least = None if size is None else (size, size)
    return pixels(square(*_by_pillow(data, channels, least), size, resample))


def check(data: bytes) -> None:
    """Raise what `decode` raises for a damaged file, but read a colour JPEG in less time.

    At an eighth of the size, every coded coefficient is still read, but only means are computed.
    """
    if _colour_jpeg(data, 8) is None:
        decode(data)


def jpeg_decoder() -> str:
    """Return the name of the package that decodes colour JPEG files."""
    return "simplejpeg" if importlib.util.find_spec("simplejpeg") else PILLOW


def read_header(data: bytes) -> Header:
    """Return what the header of an image file says."""
    header = _jpeg_header(data)
    if header is not None:
        return header
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        # Of a TIFF file, Pillow gives the size after turning.
        on_its_side = image.format != "TIFF" and _orientation(image) >= 5
        size = (image.width, image.height) if on_its_side else (image.height, image.width)
        return Header(size, True)


def is_grey(data: bytes) -> bool:
    """Return whether an image file has one channel, from its header."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        return is_grey_mode(image.mode)


def is_grey_mode(mode: str) -> bool:
    """Return whether a mode of Pillow has one channel, of 1, 8, 16 or 32 bits."""
    return mode in ("1", "L") or mode.startswith("I")


def measure(data: bytes, limit: int) -> tuple[np.ndarray, tuple[int, int]] | None:
    """Decode to grey (height, width) uint8, the short side at most `limit` pixels.

    Returns:
        The pixels and the original (width, height), or None if the file cannot be read.
    """
    from PIL import Image

    try:
        height, width = read_header(data).size
        grey, content = _by_pillow(data, 1, (limit, limit))
        scale = limit / min(grey.size)
        if scale < 1:
            shape = (max(1, round(grey.width * scale)), max(1, round(grey.height * scale)))
            grey = grey.resize(shape, Image.Resampling.BOX, content)
        return np.asarray(grey, np.uint8), (width, height)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def squashed(data: bytes, side: int) -> np.ndarray:
    """Decode the whole image to (side, side, 3) uint8, whatever its aspect."""
    from PIL import Image

    # A JPEG decoded at a fraction of its size has whole pixels, of which there must be many: at 9
    # pixels for 8, two files of one image would be unlike each other.
    image, content = _by_pillow(data, 3, (8 * side, 8 * side))
    return pixels(image.resize((side, side), Image.Resampling.BOX, content))


def decode_box(
    data: bytes, box: Box, size: int, inside: bool, header: Header | None = None
) -> np.ndarray:
    """Decode a part of an image file and scale it to (size, size, 3) uint8, antialiased.

    A JPEG is decoded at 1/2, 1/4 or 1/8 of its size where that is enough. With `inside`, as for a
    random crop, no pixel outside of the box is used, and JPEGs are decoded with the faster cosine
    transform (pixels differ by up to 4 of 255). `header` is that of the file, if already read.
    """
    from PIL import Image

    shrink = next((n for n in (8, 4, 2) if min(box[2:]) >= n * size), 1)
    full, by_pillow = header or read_header(data)
    array = None if by_pillow else _fast_jpeg(data, full, shrink, rough=inside)
    if array is None:
        image, content = _by_pillow(data, 3, (full[0] // shrink, full[1] // shrink))
        array = pixels(image)
    else:
        across, down = (_shrunk(full[n], array.shape[n], shrink) for n in (1, 0))
        content = (0.0, 0.0, across, down)
    scale_y, scale_x = (content[3] - content[1]) / full[0], (content[2] - content[0]) / full[1]
    top, left = box[0] * scale_y + content[1], box[1] * scale_x + content[0]
    height, width = box[2] * scale_y, box[3] * scale_x
    margin = 0 if inside else 1 + math.ceil(max(1, height / size, width / size))
    first = max(0, int(top) - margin), max(0, int(left) - margin)
    last = math.ceil(top + height) + margin, math.ceil(left + width) + margin
    part = _part(array, first, last)
    top, left = top - first[0], left - first[1]
    corners = (left, top, min(left + width, part.width), min(top + height, part.height))
    return pixels(part.resize((size, size), Image.Resampling.BILINEAR, box=corners))


def _part(array: np.ndarray, first: tuple[int, int], last: tuple[int, int]) -> "PilImage":
    """Copy the rows and columns from `first` to `last`, or the edge, into Pillow's own memory."""
    from PIL import Image

    array = np.ascontiguousarray(array)
    height, width, channels = array.shape
    size = min(last[1], width) - first[1], min(last[0], height) - first[0]
    begin = (first[0] * width + first[1]) * channels
    # Three times as fast as `fromarray`, which copies a part of an array twice.
    rows = array.reshape(-1)[begin:]
    return Image.frombuffer("RGB", size, rows, "raw", "RGB", width * channels, 1)


def _shrunk(side: int, decoded: int, shrink: int) -> float:
    """Return how many of the pixels that were decoded the side of an image fills."""
    return side / shrink if decoded == -(-side // shrink) else decoded


def _colour_jpeg(data: bytes, shrink: int = 1) -> np.ndarray | None:
    """Decode an upright colour JPEG; return None for what only Pillow handles."""
    header = _jpeg_header(data)
    if header is None or header.by_pillow:
        return None
    return _fast_jpeg(data, header.size, shrink)


def _jpeg_header(data: bytes) -> Header | None:
    """Return the header of an upright JPEG as simplejpeg reads it; None of what it does not."""
    if data[:3] == JPEG and not is_turned(data):
        with contextlib.suppress(ImportError, ValueError):
            import simplejpeg

            height, width, space, _ = simplejpeg.decode_jpeg_header(data)
            return Header((int(height), int(width)), space != "YCbCr")
    return None


def _fast_jpeg(
    data: bytes, full: tuple[int, int], shrink: int, rough: bool = False
) -> np.ndarray | None:
    """Decode an upright colour JPEG of this size; return None if it cannot be decoded.

    `rough` takes the cosine transform that libjpeg calls fast: 4 % less time for a crop.
    """
    with contextlib.suppress(ImportError, ValueError):
        import simplejpeg

        least = {"min_height": full[0] // shrink, "min_width": full[1] // shrink}
        array: np.ndarray = simplejpeg.decode_jpeg(data, min_factor=shrink, fastdct=rough, **least)
        return array
    return None


def is_turned(data: bytes) -> bool:
    """Return whether the EXIF or XMP data asks to turn the image, as Pillow reads it."""
    kinds = [kind for kind, _ in _jpeg_segments(data)] if data[:3] == JPEG else []
    if kinds and _is_frame(kinds[-1]) and _APP1 not in kinds:
        return False
    from PIL import Image

    with contextlib.suppress(OSError, SyntaxError), Image.open(io.BytesIO(data)) as image:
        return _orientation(image) != 1
    return False


def _orientation(image: "PilImage") -> int:
    """Return how the camera was held, 1 to 8; other values mean nothing."""
    value = image.getexif().get(_ORIENTATION, 1)
    return value if value in range(1, 9) else 1


def jpeg_frame(data: bytes) -> tuple[int, int, int]:
    """Return height, width and channels of a JPEG file, from its frame header; 0 if it has none."""
    for kind, at in _jpeg_segments(data):
        if _is_frame(kind):
            height, width = (int.from_bytes(data[at + n : at + n + 2], "big") for n in (5, 7))
            return height, width, data[at + 9]
    return 0, 0, 0


def _jpeg_segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the kind and the offset of each segment of a JPEG file, up to its frame header."""
    at = 2
    while at + 9 < len(data) and data[at] == 0xFF:
        kind = data[at + 1]
        yield kind, at
        if _is_frame(kind):
            return
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")


def _is_frame(kind: int) -> bool:
    return 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC)


def _by_pillow(
    data: bytes, channels: int, least: tuple[int, int] | None
) -> "tuple[PilImage, Corners]":
    """Decode with Pillow; a JPEG at a fraction of its size, but at least (height, width).

    Returns:
        The image, and the part of it that the pixels of the file fill. Sides of a fraction are
        rounded up: of 131 pixels at an eighth, 17 are decoded, of which 16.4 are filled.
    """
    from PIL import Image, ImageOps

    with Image.open(io.BytesIO(data)) as image:
        drafted = None
        if least is not None:
            drafted = image.draft("L" if channels == 1 else "RGB", least[::-1])
        image.load()
        orientation = _orientation(image)
        upright = eight_bit(ImageOps.exif_transpose(image) if orientation != 1 else image, channels)
    if drafted is None:
        return upright, (0.0, 0.0, *upright.size)
    wide, high = drafted[1][2:] if orientation < 5 else drafted[1][:1:-1]
    # What is not filled is at the right and the bottom before the image is turned.
    left = upright.width - wide if orientation in (2, 3, 6, 7) else 0.0
    top = upright.height - high if orientation in (3, 4, 7, 8) else 0.0
    return upright, (left, top, left + wide, top + high)


def eight_bit(image: "PilImage", channels: int) -> "PilImage":
    """Convert to one of `MODES`; 16-bit grey keeps its high byte (Pillow would clip it).

    Where `channels` has no alpha, it is dropped: a transparent pixel has the colour of the file.

    Raises:
        ValueError: The pixels are floats, whose range is unknown: 0 … 1 would become black.
    """
    from PIL import Image

    if image.mode == "F":
        raise ValueError("the pixels are floats")
    if image.mode.startswith("I"):
        high = np.clip(np.asarray(image).astype(np.int64) >> 8, 0, 255).astype(np.uint8)
        image = Image.fromarray(high)
    mode = MODES[channels]
    if image.mode == "LAB":  # which Pillow converts to RGB only
        image = image.convert("RGB")
    if isinstance(image.info.get("transparency"), bytes):  # of a palette: else Pillow warns
        image = image.convert("RGBA")
    if image.mode == mode:  # convert() would make a copy
        image.load()
        return image
    return image.convert(mode)


def square(
    image: "PilImage", content: "Corners", size: int | None, resample: Resample = "bilinear"
) -> "PilImage":
    """Scale the short side of the part `content` to `size` and cut out its centre square."""
    if size is None or content == (0, 0, size, size):
        image.load()
        return image
    from PIL import Image

    left, top, right, bottom = content
    side = min(right - left, bottom - top)
    left, top = (left + right - side) / 2, (top + bottom - side) / 2
    box = (left, top, left + side, top + side)
    method = Image.Resampling[resample.upper()]
    if image.mode not in ("LA", "RGBA"):
        return image.resize((size, size), method, box=box)
    # Pillow would weight the other channels by the last one.
    bands = [band.resize((size, size), method, box=box) for band in image.split()]
    return Image.merge(image.mode, bands)


def pixels(image: "PilImage") -> np.ndarray:
    """Return the pixels as (height, width, channels) uint8."""
    array = np.asarray(image, dtype=np.uint8)
    return array if array.ndim == 3 else array[:, :, None]


def pillow_image(pixels: np.ndarray) -> "PilImage":
    """Return raw pixels (height, width, 1 or 3) as an image of Pillow."""
    from PIL import Image

    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


def resized(
    images: np.ndarray,
    size: int,
    resample: Resample = "bilinear",
    whole: bool = False,
    threads: int = 1,
) -> np.ndarray:
    """Resize raw images (n, height, width, channels) to `size` × `size`.

    The centre square of each, or with `whole` all of it, whatever its aspect.
    """
    from PIL import Image

    channels, method = images.shape[3], Image.Resampling[resample.upper()]
    out = np.empty((len(images), size, size, channels), np.uint8)
    step = 3 if channels == 3 else 1  # Pillow knows no other numbers of equal channels

    def resize_rows(begin: int, end: int) -> None:
        for image, result in zip(images[begin:end], out[begin:end], strict=True):
            for part in (slice(n, n + step) for n in range(0, channels, step)):
                picture = pillow_image(image[:, :, part])
                result[:, :, part] = pixels(
                    picture.resize((size, size), method)
                    if whole
                    else square(picture, (0, 0, *picture.size), size, resample)
                )

    run_in_threads(resize_rows, len(images), threads=threads if size >= _THREADS_FROM else 1)
    return out


def shown_channels(images: np.ndarray) -> np.ndarray:
    """Return images (…, channels) with one channel, or with three, as people can look at them.

    Of two channels, grey and alpha, the first is shown, of four and more the first three.
    """
    channels = images.shape[-1]
    return images[..., : 1 if channels < 3 else 3]


def encode_png(image: np.ndarray, fast: bool = False) -> bytes:
    """Encode raw pixels (height, width, 1 or 3) as PNG; `fast` gives larger files sooner."""
    file = io.BytesIO()
    options = {"compress_level": 1} if fast else {}
    pillow_image(image).save(file, "PNG", **options)
    return file.getvalue()
