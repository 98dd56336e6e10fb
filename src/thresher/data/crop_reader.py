"""Decode encoded images to one size: random-resized crops, or the centre square.

Nothing here needs torch.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from thresher.data.crops import ResizedCrop
from thresher.data.gather import run_in_threads
from thresher.data.images import Header, Resample, decode, decode_box, read_header
from thresher.data.pack import Pack
from thresher.errors import InvalidValueError

PART = 4
"""Least images for a thread."""


class Draw(NamedTuple):
    """What the random crops of an epoch depend on, beside the samples."""

    epoch: int
    seed: int


@dataclass(frozen=True)
class ImageReader:
    """Decodes images of a pack in threads; of what is cropped, only as much as the crop needs."""

    pack: Pack
    target: int | ResizedCrop
    """The crop; or the side of centre squares, on which `keys` and `draw` have no effect."""
    threads: int
    resample: Resample = "bilinear"
    """How centre squares are scaled."""

    @property
    def size(self) -> int:
        """Side of the result."""
        return self.target.size if isinstance(self.target, ResizedCrop) else self.target

    def read(
        self, positions: np.ndarray, keys: np.ndarray, draw: Draw | None, out: np.ndarray
    ) -> list[int]:
        """Fill `out` (n, size, size, 3) uint8: random crops, or the centres without `draw`.

        Returns the positions of crops that only Pillow, the slower decoder, can read. Raises
        InvalidValueError if an image cannot be decoded; it names the sample.
        """
        slow: list[int] = []

        def read_rows(begin: int, end: int) -> None:
            row, rows = begin, range(begin, end)
            try:
                if not isinstance(self.target, ResizedCrop):
                    for row in rows:
                        file = self.pack.encoded(int(positions[row]))
                        out[row] = decode(file, self.target, 3, self.resample)
                    return
                files = [self.pack.encoded(int(positions[row])) for row in rows]
                headers: list[Header] = []
                for row in rows:
                    headers.append(read_header(files[row - begin]))
                    if headers[-1].by_pillow:
                        slow.append(int(positions[row]))
                sizes = np.array([header.size for header in headers], np.int64)
                if draw is None:
                    boxes = self.target.centre_boxes(sizes).tolist()
                else:
                    boxes = self.target.random_boxes(keys[begin:end], *draw, sizes).tolist()
                inside = draw is not None
                for row, file, box, header in zip(rows, files, boxes, headers, strict=True):
                    out[row] = decode_box(file, box, self.target.size, inside, header)
            except (OSError, ValueError, SyntaxError) as error:
                raise undecodable(self.pack, int(positions[row]), error) from None

        run_in_threads(read_rows, len(positions), PART, self.threads)
        return slow


def undecodable(pack: Pack, position: int, error: Exception) -> InvalidValueError:
    """Return the error for an image that cannot be decoded."""
    return InvalidValueError(
        f"the image {pack.ids[position].as_py()} of {pack.name} cannot be decoded: {error}",
        "check the pack with `thresher data verify`, or leave the image out with a selection",
    )
