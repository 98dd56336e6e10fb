"""A GPU's engines for JPEG, through nvJPEG, on the caller's stream.

torchvision decodes on a stream of its own. It has the priority of the training step, so that each
of its short kernels waits until one of the step has been handed out; and one call waits for the
other. Here a call takes a whole batch by its addresses, in any thread, and its kernels belong to
the current stream, which may have a higher priority. Files are copied to pinned memory first:
from other memory each copy to the GPU waits for the image before it. Memory comes from torch,
since cudaMalloc and cudaFree wait for the training step.
"""

import ctypes
import logging
import threading
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from thresher.data.lent_memory import LentMemory

_HARDWARE, _RGB = 3, 3
"""nvJPEG's numbers of the backend and of the output format: three planes."""
_ALIGNED = 512
logger = logging.getLogger(__name__)


class JpegEngines:
    """Decodes baseline JPEGs; `open` says whether this GPU and this machine can."""

    def __init__(self, library: ctypes.CDLL, device: torch.device) -> None:
        self._library, self._device = library, device
        torch.cuda.synchronize(device)  # so that there is a context
        self._handle = ctypes.c_void_p()
        self._memory = [
            LentMemory(self._on_device, self._stream),
            LentMemory(_pinned, self._stream, with_flags=True),
        ]
        allocators = (ctypes.byref(memory.callbacks) for memory in self._memory)
        self._call("nvjpegCreateEx", _HARDWARE, *allocators, 0, ctypes.byref(self._handle))
        self._header = ctypes.c_void_p()
        self._call("nvjpegJpegStreamCreate", self._handle, ctypes.byref(self._header))
        self._lock = threading.Lock()
        self._states: dict[int, ctypes.c_void_p] = {}
        """What nvJPEG keeps for each stream; the next call uses it again."""
        self._staging: dict[int, Tensor] = {}
        """For each stream, pinned memory for a batch of files."""

    @classmethod
    def open(cls, device: torch.device) -> "JpegEngines | None":
        """Return the engines of a GPU; None if it has none, or nvJPEG is not there."""
        path = _library_path()
        if path is None:
            return None
        try:
            return cls(ctypes.CDLL(path), device)
        except (OSError, AttributeError, _NvJpegError) as error:
            logger.debug("JPEGs are decoded without the GPU's engines: %s", error)
            return None

    def supports(self, file: bytes) -> bool:
        """Return whether the engines decode this file; baseline JPEGs, mostly."""
        data = np.frombuffer(file, np.uint8)
        found = ctypes.c_int(-1)
        with self._lock:
            try:
                address = ctypes.c_void_p(data.ctypes.data)
                length = ctypes.c_size_t(len(data))
                header = (self._handle, address, length, self._header)
                self._call("nvjpegJpegStreamParseHeader", *header)
                checked = (self._handle, self._header, ctypes.byref(found))
                self._call("nvjpegDecodeBatchedSupported", *checked)
            except _NvJpegError:
                return False
        return found.value == 0

    def decode(
        self, addresses: np.ndarray, lengths: np.ndarray, sizes: np.ndarray
    ) -> tuple[Tensor, np.ndarray] | None:
        """Decode files that it supports, on the current stream; None if nvJPEG refuses one.

        Nothing may still be queued on that stream: the engines of an H100 write without waiting
        for it (github.com/meta-pytorch/torchcodec/pull/1634), and nvJPEG uses its memory again.

        Args:
            addresses: (n,) uint64, of the files in the host's memory.
            lengths: (n,) uint64, in bytes.
            sizes: (n, 2) int64, height and width.

        Returns:
            Memory on the GPU, and the addresses in it (n,) of the images (3, height, width) uint8.
        """
        ends = aligned_ends(3 * sizes.prod(1))
        memory = self._on_device(int(ends[-1]))
        images = memory.data_ptr() + np.append(0, ends[:-1])
        targets = planes(images, sizes)
        stream = self._stream()
        for lent in self._memory:
            lent.give_up(stream)
        addresses = self._staged(stream, addresses, lengths)
        lengths = np.ascontiguousarray(lengths, np.uint64)
        try:
            state = self._state(stream)
            self._call("nvjpegDecodeBatchedInitialize", self._handle, state, len(sizes), 1, _RGB)
            arrays = (ctypes.c_void_p(a.ctypes.data) for a in (addresses, lengths, targets))
            queue = ctypes.c_void_p(stream)
            self._call("nvjpegDecodeBatched", self._handle, state, *arrays, queue)
        except _NvJpegError as error:
            logger.debug("a batch is decoded without the GPU's engines: %s", error)
            return None
        return memory, images

    def _staged(self, stream: int, addresses: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Copy files to pinned memory; return their addresses there, (n,) uint64."""
        ends = aligned_ends(lengths)
        buffer = self._staging.get(stream)
        if buffer is None or len(buffer) < ends[-1]:
            buffer = self._staging[stream] = _pinned(int(ends[-1]) * 5 // 4)
        targets = buffer.data_ptr() + np.append(0, ends[:-1])
        copies = zip(*(a.tolist() for a in (targets, addresses, lengths)), strict=True)
        for target, source, length in copies:
            ctypes.memmove(target, source, length)
        return targets.astype(np.uint64)

    def _on_device(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self._device)

    def _stream(self) -> int:
        return torch.cuda.current_stream(self._device).cuda_stream

    def _state(self, stream: int) -> ctypes.c_void_p:
        if stream not in self._states:
            state = ctypes.c_void_p()
            self._call("nvjpegJpegStateCreate", self._handle, ctypes.byref(state))
            self._states[stream] = state
        return self._states[stream]

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise _NvJpegError(f"{name} returned {status}")


def _pinned(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


class _NvJpegError(Exception):
    pass


def aligned_ends(lengths: np.ndarray) -> np.ndarray:
    """Return where the next block begins if blocks of these bytes lie one after the other."""
    return np.cumsum((np.asarray(lengths, np.int64) + _ALIGNED - 1) // _ALIGNED * _ALIGNED)


def planes(images: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return nvJPEG's description of images at addresses (n,) on the GPU, (n, 8) uint64.

    Four addresses of planes, of which three are used, and four lengths of their rows.
    """
    described = np.zeros((len(images), 8), np.uint64)
    for plane in range(3):
        described[:, plane] = images + plane * sizes.prod(1)
        described[:, 4 + plane] = sizes[:, 1]
    return described


def _library_path() -> str | None:
    """Return the file of nvJPEG that torchvision has loaded into this process."""
    import torchvision.io  # noqa: F401

    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    files = [line.split(maxsplit=5)[5] for line in lines if "libnvjpeg" in line]
    return files[0] if files else None
