"""The samples of a pack as a map-style torch data set, for training loops of one's own."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import Dataset

from thresher.data.images import decode, pillow_image
from thresher.errors import InvalidValueError

if TYPE_CHECKING:
    from PIL.Image import Image as PilImage


class ImageStore(Protocol):
    """What the data set needs of a `Pack`, which imports this module."""

    classes: list[str]
    image_shape: tuple[int, int, int] | None

    @property
    def ids(self) -> pa.ChunkedArray: ...
    @property
    def labels(self) -> np.ndarray: ...
    def indices(self, split: str) -> np.ndarray: ...
    def view(self, position: int) -> np.ndarray: ...
    def encoded(self, position: int) -> bytes: ...


class PackDataset(Dataset[tuple[Any, int]]):
    """Items (image, label) of one split, in pack order; see `Pack.dataset`.

    Workers of a DataLoader map the files of the pack again; no pixels are copied to them.

    Attributes:
        ids: Sample ids, by which a selection finds its samples.
        targets: Labels.
        classes: Class names.
        transform: Called with each image as a PIL image, or None.
    """

    def __init__(
        self, pack: ImageStore, split: str, transform: "Callable[[PilImage], Any] | None" = None
    ) -> None:
        if transform is not None and not callable(transform):
            raise InvalidValueError(
                f"transform must be a function of an image, got {transform!r}",
                f"name a split with `split={transform!r}`" if isinstance(transform, str) else "",
                "transform",
            )
        self.pack, self.split, self.transform = pack, split, transform
        self.positions = pack.indices(split)
        self.ids: list[str] = pack.ids.take(self.positions).to_pylist()
        self.targets: list[int] = pack.labels[self.positions].tolist()
        self.classes = pack.classes

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        position = int(self.positions[row])
        if self.pack.image_shape is None:
            pixels = decode(self.pack.encoded(position))
        else:
            pixels = self.pack.view(position)
        if self.transform is None:
            image = torch.from_numpy(np.array(pixels)).permute(2, 0, 1).contiguous()
            return image.float().div_(255), self.targets[row]
        return self.transform(pillow_image(pixels)), self.targets[row]
