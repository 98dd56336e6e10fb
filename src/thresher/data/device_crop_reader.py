"""Decode and crop images on a GPU: the encoded bytes cross the bus, nvJPEG decodes them there."""

import importlib.util

import numpy as np
import torch
from torch import Tensor

from thresher.data.crop_reader import Draw
from thresher.data.crops import ResizedCrop
from thresher.data.images import JPEG, decode, is_turned, jpeg_channels
from thresher.data.pack import Pack
from thresher.errors import MissingDependencyError


class DeviceCropReader:
    """Reads batches of crops onto a GPU, with torchvision's binding of nvJPEG.

    What nvJPEG does not read (other formats, CMYK, images that EXIF turns, damaged files) is
    decoded on the CPU.
    """

    def __init__(self, pack: Pack, crop: ResizedCrop, device: torch.device) -> None:
        self.pack, self.crop, self.device = pack, crop, device
        for package in ("torchvision", "triton"):
            if importlib.util.find_spec(package) is None:
                raise MissingDependencyError(
                    f"decoding on the GPU needs {package}, which is not installed",
                    f"install {package}, or use decoder cpu",
                )

    def read(self, positions: np.ndarray, keys: np.ndarray, draw: Draw | None) -> Tensor:
        """Return random crops (n, size, size, 3) uint8; without `draw`, the centres.

        The work is queued on the current stream.
        """
        from thresher.data.crop_kernel import crop_images

        images = self._decode([self.pack.encoded(int(position)) for position in positions])
        sizes = np.array([image.shape[1:] for image in images], np.int64).reshape(-1, 2)
        if draw is None:
            boxes = self.crop.centre_boxes(sizes)
        else:
            boxes = self.crop.random_boxes(keys, *draw, sizes)
        return crop_images(images, torch.from_numpy(boxes), self.crop.size, draw is not None)

    def _decode(self, files: list[bytes]) -> list[Tensor]:
        """Return the images, (3, height, width) uint8 each, on the device."""
        from torchvision.io import ImageReadMode, decode_jpeg

        fast = [n for n, file in enumerate(files) if _is_fast(file)]
        images: dict[int, Tensor] = {}
        if fast:
            encoded = [torch.frombuffer(bytearray(files[n]), dtype=torch.uint8) for n in fast]
            try:
                decoded = decode_jpeg(encoded, mode=ImageReadMode.RGB, device=self.device)
                images = dict(zip(fast, decoded, strict=True))
            except RuntimeError:  # one of them is damaged; Pillow reads what there is
                images = {}
        for n, file in enumerate(files):
            if n not in images:
                pixels = torch.from_numpy(decode(file).transpose(2, 0, 1).copy())
                images[n] = pixels.to(self.device)
        return [images[n] for n in range(len(files))]


def _is_fast(file: bytes) -> bool:
    return file[:3] == JPEG and jpeg_channels(file) in (1, 3) and not is_turned(file)
