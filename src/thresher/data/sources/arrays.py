"""What arrays of images are called, and which way round they lie."""

from collections.abc import Sequence

import numpy as np

from thresher.errors import ThresherError

NAMES = {
    "images": ("images", "image", "x", "data"),
    "labels": ("labels", "label", "y", "targets", "target"),
}


def pick(kind: str, names: Sequence[str]) -> str | None:
    """The name among `names` that stands for images or labels, if any."""
    lower = {name.lower(): name for name in names}
    return next((lower[name] for name in NAMES[kind] if name in lower), None)


def names_of(kind: str) -> str:
    return f"{kind} may be called {', '.join(NAMES[kind])}"


def as_images(array: np.ndarray, where: str) -> np.ndarray:
    """(n, height, width, channels) uint8, from that, (n, height, width) or channels first."""
    array = np.asarray(array)
    if array.dtype != np.uint8:
        raise ThresherError(
            f"the images at {where} are {array.dtype}, not uint8", "convert them to 0 … 255 first"
        )
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim != 4:
        raise ThresherError(f"the images at {where} have {array.ndim} axes", "expected 3 or 4")
    if array.shape[3] not in (1, 3, 4) and array.shape[1] in (1, 3):
        array = array.transpose(0, 2, 3, 1)
    return array
