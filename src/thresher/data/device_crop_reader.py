"""Decode and crop images on a GPU: the encoded bytes cross the bus, nvJPEG decodes them there."""

import importlib.util
import warnings

import numpy as np
import torch
from torch import Tensor

from thresher.data.crop_reader import Draw, undecodable
from thresher.data.crops import ResizedCrop
from thresher.data.images import JPEG, decode, is_turned, jpeg_channels
from thresher.data.pack import Pack
from thresher.errors import MissingDependencyError

PACKAGES = ("torchvision", "triton")
"""What decoding on a GPU needs."""
_UNKNOWN, _FAST, _SLOW = range(3)


def missing_package() -> str | None:
    """Return the name of a package that decoding on a GPU needs and that is not installed."""
    return next((name for name in PACKAGES if importlib.util.find_spec(name) is None), None)


class DeviceCropReader:
    """Reads batches of crops onto a GPU, with torchvision's binding of nvJPEG.

    What nvJPEG does not read (other formats, CMYK, images that EXIF turns, damaged files) is
    decoded on the CPU. Takes 25 bytes for each image of the pack. `read` may be called in several
    threads.
    """

    def __init__(self, pack: Pack, crop: ResizedCrop, device: torch.device) -> None:
        self.pack, self.crop, self.device = pack, crop, device
        missing = missing_package()
        if missing is not None:
            raise MissingDependencyError(
                f"decoding on the GPU needs {missing}, which is not installed",
                f"install {missing}, or use decoder cpu",
            )
        self._files = pack.encoded_buffers()
        with warnings.catch_warnings():
            # The map is read-only, and nothing writes to these tensors.
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            self._data = [torch.from_numpy(part) for part in self._files.data]
        self._kinds = np.full(len(pack), _UNKNOWN, np.uint8)

    @property
    def slow_images(self) -> np.ndarray:
        """Which images of the pack were read and decoded on the CPU, (n,) bool."""
        return self._kinds == _SLOW

    def read(self, positions: np.ndarray, keys: np.ndarray, draw: Draw | None) -> Tensor:
        """Return random crops (n, size, size, 3) uint8; without `draw`, the centres.

        The work is queued on the current stream, and finished when this returns.
        """
        from thresher.data.crop_kernel import crop_images

        size = self.crop.size
        if not len(positions):
            return torch.empty((0, size, size, 3), dtype=torch.uint8, device=self.device)
        images = self._decode(positions)
        sizes = np.array([image.shape[1:] for image in images], np.int64).reshape(-1, 2)
        if draw is None:
            boxes = self.crop.centre_boxes(sizes)
        else:
            boxes = self.crop.random_boxes(keys, *draw, sizes)
        crops = crop_images(images, torch.from_numpy(boxes), size, draw is not None)
        # torchvision decodes on a stream of its own, which does not wait for this one. So the
        # memory of these images may be used again only when the crops have been cut out.
        done = torch.cuda.Event(blocking=True)
        done.record()
        done.synchronize()
        return crops

    def _decode(self, positions: np.ndarray) -> list[Tensor]:
        """Return the images, (3, height, width) uint8 each, on the device."""
        for position in positions[self._kinds[positions] == _UNKNOWN].tolist():
            file = self.pack.encoded(position)
            self._kinds[position] = _FAST if _is_fast(file) else _SLOW
        kinds = self._kinds[positions]
        fast = iter(self._by_nvjpeg(positions[kinds == _FAST]))
        images: list[Tensor] = []
        for position, kind in zip(positions.tolist(), kinds.tolist(), strict=True):
            image = next(fast) if kind == _FAST else None
            images.append(self._by_cpu(position) if image is None else image)
        return images

    def _by_nvjpeg(self, positions: np.ndarray) -> "list[Tensor | None]":
        """Decode JPEGs in one call; None for those that nvJPEG cannot read."""
        from torchvision.io import ImageReadMode, decode_jpeg

        spans = (self._files.shard, self._files.begin, self._files.end)
        encoded = [
            self._data[shard][begin:end]
            for shard, begin, end in zip(*(span[positions].tolist() for span in spans), strict=True)
        ]
        if not encoded:
            return []
        try:
            decoded = decode_jpeg(encoded, mode=ImageReadMode.RGB, device=self.device)
            return list(decoded)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # one of them is damaged: find it
            if len(encoded) > 1:
                return [image for n in positions for image in self._by_nvjpeg(np.array([n]))]
            self._kinds[positions] = _SLOW
            return [None]

    def _by_cpu(self, position: int) -> Tensor:
        try:
            pixels = decode(self.pack.encoded(position))
        except (OSError, ValueError, SyntaxError) as error:
            raise undecodable(self.pack, position, error) from None
        return torch.from_numpy(pixels.transpose(2, 0, 1).copy()).to(self.device)


def _is_fast(file: bytes) -> bool:
    return file[:3] == JPEG and jpeg_channels(file) in (1, 3) and not is_turned(file)
