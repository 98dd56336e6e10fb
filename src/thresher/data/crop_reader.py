"""Read random-resized crops of encoded images: decode only as much as the crop needs."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from thresher.data.crops import ResizedCrop
from thresher.data.gather import run_in_threads
from thresher.data.images import decode_box, file_size
from thresher.data.pack import Pack

PART = 4
"""Least images for a thread."""


class Draw(NamedTuple):
    """What the random crops of an epoch depend on, beside the samples."""

    epoch: int
    seed: int


@dataclass(frozen=True)
class CropReader:
    """Decodes and crops images of a pack in threads, which run without the interpreter's lock."""

    pack: Pack
    crop: ResizedCrop
    threads: int

    def read(
        self, positions: np.ndarray, keys: torch.Tensor, draw: Draw | None, out: np.ndarray
    ) -> None:
        """Fill `out` (n, size, size, 3) uint8 with random crops; without `draw`, the centres."""
        files = [self.pack.encoded(int(position)) for position in positions]
        sizes = torch.tensor([file_size(file) for file in files]).view(-1, 2)
        if draw is None:
            boxes = self.crop.centre_boxes(sizes).tolist()
        else:
            boxes = self.crop.random_boxes(keys, *draw, sizes).tolist()

        def read_rows(begin: int, end: int) -> None:
            for row in range(begin, end):
                out[row] = decode_box(files[row], boxes[row], self.crop.size, draw is not None)

        run_in_threads(read_rows, len(files), PART, self.threads)
