"""Batches from a pack: resident on the device, or streamed from the memory map ahead of use.

Both give the same batches. Resident data costs its bytes on the device, once. Streaming costs at
most `READ_AHEAD` bytes of buffers (or two batches, where one is larger), whatever the data's size.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from thresher.data.augment import sample_keys
from thresher.data.pack import Pack
from thresher.errors import ThresherError

READ_AHEAD = 256 << 20
_RESIDENT_ON_CPU = 512 << 20
_RESIDENT_SHARE = 0.4
_THREADS = 4


class Batch(NamedTuple):
    """Samples on the loader's device, in the order asked for."""

    images: Tensor
    """(n, height, width, channels) uint8."""
    labels: Tensor
    """(n,) int64."""
    keys: Tensor
    """(n,) int64: what augmentation's randomness comes from."""


class Loader:
    """Serves the samples of `pack` at `positions` (default: all of them).

    resident: True, False, or None to decide: what takes at most 40 % of a GPU's free memory, or
    512 MB on a CPU, is kept. size: the side that encoded images are decoded to. When resident,
    `images`, `labels` and `keys` are whole tensors on the device and `rows(positions)` says where
    in them a sample is: a captured graph can index them itself.
    """

    images: Tensor | None

    def __init__(
        self,
        pack: Pack,
        positions: np.ndarray | None = None,
        device: torch.device | str = "cpu",
        resident: bool | None = None,
        size: int | None = None,
        threads: int = _THREADS,
    ) -> None:
        self.pack, self.device, self.size = pack, torch.device(device), size
        self.threads = max(1, threads)
        if positions is None:
            positions = np.arange(len(pack))
        self.positions = np.asarray(positions, np.int64)
        self.image_shape = _shape(pack, size)
        self.image_bytes = int(np.prod(self.image_shape))
        if resident is None:
            resident = len(self.positions) * self.image_bytes <= _room(self.device)
        self.resident = resident
        ids = pack.ids.take(self.positions).to_pylist()
        self.labels = torch.from_numpy(pack.labels[self.positions]).to(self.device)
        self.keys = torch.from_numpy(sample_keys(ids)).to(self.device)
        where = np.full(len(pack), -1, np.int64)
        where[self.positions] = np.arange(len(self.positions))
        self._rows = torch.from_numpy(where).to(self.device)
        self._rows_here = where
        self.images = self._read_all() if resident else None

    def __len__(self) -> int:
        return len(self.positions)

    def rows(self, positions: np.ndarray | Tensor) -> Tensor:
        """Where the samples at these pack positions stand in `labels`, `keys` and `images`."""
        if isinstance(positions, Tensor):
            return self._rows[positions.to(self.device)]
        return _to(torch.from_numpy(self._rows_here[positions]), self.device)

    def batch(self, positions: np.ndarray | Tensor) -> Batch:
        """The samples at these pack positions, in this order."""
        rows = self.rows(positions)
        if self.images is not None:
            return Batch(self.images[rows], self.labels[rows], self.keys[rows])
        here = positions.cpu().numpy() if isinstance(positions, Tensor) else positions
        images = torch.from_numpy(self.pack.images(here, size=self.size)).to(self.device)
        return Batch(images, self.labels[rows], self.keys[rows])

    def batches(self, order: Iterable[np.ndarray]) -> Iterator[Batch]:
        """The batches at each of these arrays of pack positions, read ahead in threads."""
        if self.resident:
            for positions in order:
                yield self.batch(positions)
            return
        yield from self._stream(iter(order))

    def _stream(self, order: Iterator[np.ndarray]) -> Iterator[Batch]:
        """Reads ahead as many batches as the buffers hold.

        On a GPU the buffers are pinned, copied asynchronously and used again; an event says when
        one may be overwritten. On a CPU a buffer becomes the batch itself.
        """
        pinned = self.device.type == "cuda"
        waiting: deque[tuple[np.ndarray, Tensor, Future[Tensor]]] = deque()
        buffers: list[Tensor] = []
        busy: dict[int, torch.cuda.Event] = {}
        depth = 0

        def read(positions: np.ndarray, buffer: Tensor) -> Tensor:
            if buffer.data_ptr() in busy:
                busy.pop(buffer.data_ptr()).synchronize()
            self.pack.images(positions, out=buffer[: len(positions)].numpy(), size=self.size)
            return buffer[: len(positions)]

        def buffer_for(n: int) -> Tensor:
            for index, buffer in enumerate(buffers):
                if len(buffer) >= n:
                    return buffers.pop(index)
            if buffers:  # too small for this batch: let it go rather than hold both
                buffers.pop(0)
            return torch.empty((n, *self.image_shape), dtype=torch.uint8, pin_memory=pinned)

        with ThreadPoolExecutor(self.threads, thread_name_prefix="thresher-read") as pool:
            try:
                while True:
                    for positions in order:
                        if not depth:
                            bytes_each = max(1, len(positions) * self.image_bytes)
                            depth = int(np.clip(READ_AHEAD // bytes_each, 2, 2 * self.threads))
                        buffer = buffer_for(len(positions))
                        waiting.append((positions, buffer, pool.submit(read, positions, buffer)))
                        if len(waiting) >= depth:
                            break
                    if not waiting:
                        return
                    positions, buffer, future = waiting.popleft()
                    filled = future.result()
                    if pinned:
                        images = filled.to(self.device, non_blocking=True)
                        busy[buffer.data_ptr()] = event = torch.cuda.Event()
                        event.record()
                        buffers.append(buffer)
                    else:
                        images = filled  # the user's from now on, so it is not used again
                    rows = self.rows(positions)
                    yield Batch(images, self.labels[rows], self.keys[rows])
            finally:
                for *_, future in waiting:
                    future.cancel()

    def _read_all(self) -> Tensor:
        """All images onto the device, in pieces, so that no second copy exists beside it."""
        images = torch.empty(
            (len(self.positions), *self.image_shape), dtype=torch.uint8, device=self.device
        )
        step = max(1, (64 << 20) // self.image_bytes)
        begins = range(0, len(self.positions), step)
        pieces = (self.positions[begin : begin + step] for begin in begins)
        if self.device.type == "cpu" and self.pack.image_shape is not None:
            self.pack.images(self.positions, out=images.numpy())
            return images
        for begin, piece in zip(begins, self._stream_images(pieces), strict=True):
            images[begin : begin + step] = piece
        return images

    def _stream_images(self, pieces: Iterator[np.ndarray]) -> Iterator[Tensor]:
        for batch in self._stream(pieces):
            yield batch.images


def _shape(pack: Pack, size: int | None) -> tuple[int, int, int]:
    if pack.image_shape is not None:
        return pack.image_shape
    if size is None:
        raise ThresherError(
            f"the images of {pack.name} differ in size",
            "give one size to read them at, or pack them again with --resize",
        )
    return size, size, 3


def _room(device: torch.device) -> float:
    """How many bytes of images may be kept on this device."""
    if device.type == "cuda":
        return _RESIDENT_SHARE * torch.cuda.mem_get_info(device)[0]
    return _RESIDENT_ON_CPU


def _to(tensor: Tensor, device: torch.device) -> Tensor:
    """Onto the device without waiting for it."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
