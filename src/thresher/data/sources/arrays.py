"""Arrays of images and labels in .npz and HDF5 files: their names, axes and types."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from thresher.errors import InvalidValueError, NotFoundError

NAMES = {
    "images": ("images", "image", "x", "data"),
    "labels": ("labels", "label", "y", "targets", "target"),
    "ids": ("ids",),
    "splits": ("splits", "split"),
}
"""In any case: `Splits` is `splits`."""
KNOWN = {name for names in NAMES.values() for name in names}
SUFFIXES = (".npz", ".h5", ".hdf5")


def find_archive(where: Path | str, suffixes: Sequence[str]) -> Path | None:
    """Return the array file at `where`: the file itself, or the only one in a flat folder."""
    path = Path(where)
    if path.is_dir():
        files = list(path.iterdir())
        archives = [file for file in files if file.suffix.lower() in SUFFIXES]
        if len(archives) != 1 or any(file.is_dir() for file in files):
            return None
        (path,) = archives
    return path if path.suffix.lower() in suffixes and path.is_file() else None


def open_archive(where: Path | str, suffixes: Sequence[str]) -> Path:
    """Return the array file at `where`, whatever its name; raise NotFoundError if there is none."""
    path = find_archive(where, suffixes) or Path(where)
    if not path.is_file():
        raise NotFoundError(f"{where} is not a {suffixes[0]} file or a folder with one")
    return path


def find_name(kind: str, names: Sequence[str]) -> str | None:
    """Return the name among `names` that means images, labels, ids or splits, if any."""
    lower = {name.lower(): name for name in names}
    return next((lower[name] for name in NAMES[kind] if name in lower), None)


def accepted_names(kind: str) -> str:
    """Return the accepted names of images or labels, for messages."""
    return f"{kind} may be called {', '.join(NAMES[kind])}"


def as_images(array: np.ndarray, where: str) -> np.ndarray:
    """Return images as (n, height, width, channels) uint8.

    Accepts that, (n, height, width), or channels first: at most four of them, or fewer than the
    pixels of a side of square images.
    """
    array = np.asarray(array)
    if array.dtype != np.uint8:
        raise InvalidValueError(
            f"the images in {where} must be uint8, got {array.dtype}", "convert them to 0 … 255"
        )
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim != 4:
        raise InvalidValueError(f"the images in {where} must have 3 or 4 axes, got {array.ndim}")
    _, first, second, last = array.shape
    if last > 4 and (first <= 4 or first < second == last):
        array = array.transpose(0, 2, 3, 1)
    return array


def check_length(name: str, length: int, images: int, where: str) -> None:
    """Raise unless there is one value for each image."""
    if length != images:
        raise InvalidValueError(f"{where} has {images} images and {length} {name}")
