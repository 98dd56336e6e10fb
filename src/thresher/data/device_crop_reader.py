"""Decode and crop images on a GPU: the encoded bytes cross the bus, nvJPEG decodes them there."""

import importlib.util
import warnings

import numpy as np
import torch
from torch import Tensor

from thresher.data.crop_reader import Draw, undecodable
from thresher.data.crops import ResizedCrop
from thresher.data.images import JPEG, decode, is_turned, jpeg_frame
from thresher.data.nvjpeg import JpegEngines
from thresher.data.pack import Pack
from thresher.errors import MissingDependencyError

PACKAGES = ("torchvision", "triton")
"""What decoding on a GPU needs."""
USE_ENGINES = False
"""Whether a GPU's engines are used directly; off until their tests pass on a GPU with torch's
allocators."""
_UNKNOWN, _ENGINES, _FAST, _SLOW = range(4)


def missing_package() -> str | None:
    """Return the name of a package that decoding on a GPU needs and that is not installed."""
    return next((name for name in PACKAGES if importlib.util.find_spec(name) is None), None)


class DeviceCropReader:
    """Reads batches of crops onto a GPU.

    Its engines for JPEG decode baseline files, torchvision's binding of nvJPEG the others. What
    nvJPEG does not read (other formats, CMYK, images that EXIF turns, damaged files) is decoded on
    the CPU. Takes 29 bytes for each image of the pack. `read` may be called in several threads,
    each with a stream of its own.
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
        self._memory = np.array([part.ctypes.data for part in self._files.data], np.uint64)
        self._engines = JpegEngines.open(device) if USE_ENGINES else None
        self._kinds = np.full(len(pack), _UNKNOWN, np.uint8)
        self._sizes = np.zeros((len(pack), 2), np.uint16)
        """Height and width of what the engines decode."""

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
        sources, held = self._decode(positions)
        if draw is None:
            boxes = self.crop.centre_boxes(sources[:, 1:])
        else:
            boxes = self.crop.random_boxes(keys, *draw, sources[:, 1:])
        shape = (len(positions), size, size, 3)
        crops = torch.empty(shape, dtype=torch.uint8, device=self.device)
        tables = torch.from_numpy(sources), torch.from_numpy(boxes)
        crop_images(*tables, crops, draw is not None)
        # torchvision decodes on a stream of its own, which does not wait for this one. So the
        # memory of these images may be used again only when the crops have been cut out. The
        # engines, too, want the call before to have ended.
        done = torch.cuda.Event(blocking=True)
        done.record()
        done.synchronize()
        del held
        return crops

    def _decode(self, positions: np.ndarray) -> tuple[np.ndarray, list[Tensor]]:
        """Return address, height and width of each image on the device, and what holds them.

        The images are (3, height, width) uint8.
        """
        for position in positions[self._kinds[positions] == _UNKNOWN].tolist():
            self._classify(position)
        kinds, held = self._kinds[positions], []
        sources = np.empty((len(positions), 3), np.int64)
        rows = np.flatnonzero(kinds == _ENGINES)
        decoded = self._by_engines(positions[rows]) if len(rows) else None
        if decoded is not None:
            sources[rows, 0], sources[rows, 1:] = decoded[1], self._sizes[positions[rows]]
            held.append(decoded[0])
        others = np.flatnonzero(kinds != _ENGINES) if decoded is not None else np.arange(len(kinds))
        fast = others[kinds[others] != _SLOW]
        images = dict(zip(fast.tolist(), self._by_nvjpeg(positions[fast]), strict=True))
        for row in others.tolist():
            image = images.get(row)
            held.append(self._by_cpu(positions[row]) if image is None else image)
            sources[row] = held[-1].data_ptr(), *held[-1].shape[1:]
        return sources, held

    def _classify(self, position: int) -> None:
        """Find out how to decode an image."""
        file = self.pack.encoded(position)
        height, width, channels = jpeg_frame(file) if file[:3] == JPEG else (0, 0, 0)
        if channels not in (1, 3) or is_turned(file):
            self._kinds[position] = _SLOW
        elif height and self._engines is not None and self._engines.supports(file):
            self._sizes[position] = height, width
            self._kinds[position] = _ENGINES
        else:
            self._kinds[position] = _FAST

    def _by_engines(self, positions: np.ndarray) -> tuple[Tensor, np.ndarray] | None:
        """Decode in one call; None if one of the files is refused."""
        assert self._engines is not None
        begin, end = self._files.begin[positions], self._files.end[positions]
        addresses = self._memory[self._files.shard[positions]] + begin.astype(np.uint64)
        return self._engines.decode(addresses, end - begin, self._sizes[positions].astype(np.int64))

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
