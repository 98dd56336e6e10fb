"""Decode and crop images on a GPU: the encoded bytes cross the bus, nvJPEG decodes them there."""

import importlib.util
import warnings

import numpy as np
import torch
from torch import Tensor

from thresher.data.crop_reader import Draw, undecodable
from thresher.data.crops import ResizedCrop
from thresher.data.images import JPEG, decode, is_turned, jpeg_frame
from thresher.data.pack import Pack
from thresher.errors import MissingDependencyError

PACKAGES = ("torchvision", "triton")
"""What decoding on a GPU needs."""
_UNKNOWN, _FAST, _SLOW = range(3)


def missing_package() -> str | None:
    """Return the name of a package that decoding on a GPU needs and that is not installed."""
    return next((name for name in PACKAGES if importlib.util.find_spec(name) is None), None)


class DeviceCropReader:
    """Reads batches of crops onto a GPU.

    torchvision's binding of nvJPEG decodes JPEGs. What it does not read (other formats, CMYK,
    images that EXIF turns, damaged files) is decoded on the CPU. Takes 25 bytes for each image of
    the pack. `read` may be called in several threads, each with a stream of its own.
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

        Waits for the current stream, before and after.
        """
        from thresher.data.crop_kernel import crop_images

        size = self.crop.size
        if not len(positions):
            return torch.empty((0, size, size, 3), dtype=torch.uint8, device=self.device)
        # nvJPEG writes at once to memory that torch takes to be free, since its last use is queued
        # on the current stream (github.com/pytorch/vision/pull/9606).
        _wait()
        sources, held = self._decode(positions)
        if draw is None:
            boxes = self.crop.centre_boxes(sources[:, 1:])
        else:
            boxes = self.crop.random_boxes(keys, *draw, sources[:, 1:])
        shape = (len(positions), size, size, 3)
        crops = torch.empty(shape, dtype=torch.uint8, device=self.device)
        tables = torch.from_numpy(sources), torch.from_numpy(boxes)
        crop_images(*tables, crops, draw is not None)
        _wait()  # for the crops, after which the memory of the images may be used again
        del held
        return crops

    def _decode(self, positions: np.ndarray) -> tuple[np.ndarray, list[Tensor]]:
        """Return address, height and width of each image on the device, and what holds them.

        The images are (3, height, width) uint8.
        """
        for position in positions[self._kinds[positions] == _UNKNOWN].tolist():
            self._classify(position)
        fast = np.flatnonzero(self._kinds[positions] == _FAST)
        images = dict(zip(fast.tolist(), self._by_nvjpeg(positions[fast]), strict=True))
        sources, held = np.empty((len(positions), 3), np.int64), []
        for row, position in enumerate(positions):
            image = images.get(row)
            held.append(self._by_cpu(position) if image is None else image)
            sources[row] = held[-1].data_ptr(), *held[-1].shape[1:]
        return sources, held

    def _classify(self, position: int) -> None:
        """Find out how to decode an image."""
        file = self.pack.encoded(position)
        channels = jpeg_frame(file)[2] if file[:3] == JPEG else 0
        known = channels in (1, 3) and not is_turned(file)
        self._kinds[position] = _FAST if known else _SLOW

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


def _wait() -> None:
    """Wait for the current stream without using the processor."""
    done = torch.cuda.Event(blocking=True)
    done.record()
    done.synchronize()
