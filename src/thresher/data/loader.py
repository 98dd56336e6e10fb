"""Batches of a pack: resident on the device, or streamed from the memory map ahead of use.

Both give the same batches. Resident data takes its size on the device. Streaming takes at most
`READ_AHEAD` bytes of buffers (or two batches, if that is more), independent of the pack's size.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from thresher.data.crop_reader import Draw, ImageReader
from thresher.data.crops import ResizedCrop
from thresher.data.decode_pool import DecodePool
from thresher.data.hashing import sample_keys
from thresher.data.images import Resample
from thresher.data.pack import Pack
from thresher.environment import core_count
from thresher.errors import InvalidValueError

if TYPE_CHECKING:
    from thresher.data.device_crop_reader import DeviceCropReader

READ_AHEAD = 256 << 20
_RESIDENT_ON_CPU = 512 << 20
_RESIDENT_SHARE = 0.4
_READERS = 4
"""Batches that are read at the same time, each by several threads."""
_PROCESSES_FROM = 1000
"""Images from which it pays to start processes that decode; fewer are decoded in threads."""
_QUEUED = 4
"""Batches on a GPU that wait for a step, at most: so far the host runs ahead."""
_DECODERS = 2
"""Threads that decode on a GPU: nvJPEG works for one of them, the other prepares or crops."""


class Batch(NamedTuple):
    """Samples on the loader's device, in the requested order."""

    images: Tensor
    """(n, height, width, channels) uint8."""
    labels: Tensor
    """(n,) int64."""
    keys: Tensor
    """(n,) int64, from which the random numbers of augmentation are derived."""


class Loader:
    """Loads samples of a pack onto a device.

    Args:
        pack: The pack.
        positions: Positions of the samples; default: all.
        device: Where the batches go.
        resident: Keep all images on the device; default: if they take at most 40 % of a GPU's free
            memory, or 512 MB on a CPU.
        size: Side of the centre squares to which encoded images are decoded; or a crop, with which
            they are decoded anew in every epoch.
        threads: Threads, or processes, that decode; default: as many as there are cores.
    """

    images: Tensor | None
    """(n, height, width, channels) uint8 if resident, else None."""
    resample: Resample = "bilinear"
    """How encoded images that are not resident are scaled."""
    device_crops: "DeviceCropReader | None" = None
    """Decodes batches that are read ahead on the GPU; None: the CPU does."""

    def __init__(
        self,
        pack: Pack,
        positions: np.ndarray | None = None,
        device: torch.device | str = "cpu",
        resident: bool | None = None,
        size: int | ResizedCrop | None = None,
        threads: int | None = None,
    ) -> None:
        self.pack, self.device = pack, torch.device(device)
        self.threads = core_count() if threads is None else max(1, threads)
        self.crop = size if isinstance(size, ResizedCrop) else None
        self.size = size = size.size if isinstance(size, ResizedCrop) else size
        if positions is None:
            positions = np.arange(len(pack))
        self.positions = np.asarray(positions, np.int64)
        if pack.image_shape is None and size is None:
            raise InvalidValueError(
                f"the images of {pack.name} differ in size",
                "set `image_size`, or pack them again with `thresher data pack --resize SIZE`",
            )
        self.image_shape = pack.image_shape or (size or 0, size or 0, 3)
        self.image_bytes = int(np.prod(self.image_shape))
        if resident is None:
            room: float = _RESIDENT_ON_CPU
            if self.device.type == "cuda":
                room = _RESIDENT_SHARE * torch.cuda.mem_get_info(self.device)[0]
            resident = len(self.positions) * self.image_bytes <= room
        self.resident = resident and self.crop is None
        ids = pack.ids.take(self.positions).to_pylist()
        self.labels = torch.from_numpy(pack.labels[self.positions]).to(self.device)
        self._keys_on_host = sample_keys(ids)
        self.keys = torch.from_numpy(self._keys_on_host).to(self.device)
        rows = np.full(len(pack), -1, np.int64)
        rows[self.positions] = np.arange(len(self.positions))
        self._rows = rows
        self._slow = np.zeros(len(pack), np.bool_)
        self._pool: DecodePool | None = None
        self.images = self._read_all() if self.resident else None

    def close(self) -> None:
        """End the processes that decode; they are started again when they are needed."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def slow_images(self) -> np.ndarray:
        """Which images of the pack were read and cannot be cropped by the fast decoder, bool."""
        return self._slow if self.device_crops is None else self.device_crops.slow_images

    def rows(self, positions: np.ndarray) -> Tensor:
        """Return the rows of pack positions in `labels`, `keys` and `images`, (n,) int64."""
        rows = torch.from_numpy(self._rows[positions])
        if self.device.type == "cuda":
            rows = rows.pin_memory()  # so that the copy does not wait for the device
        return rows.to(self.device, non_blocking=True)

    def batch(self, positions: np.ndarray) -> Batch:
        """Return the samples at these pack positions, in this order."""
        if self.images is not None:
            rows = self.rows(positions)
            return Batch(self.images[rows], self.labels[rows], self.keys[rows])
        return self._labelled(self._read_now(positions, None), positions)

    def _labelled(self, images: Tensor, positions: np.ndarray) -> Batch:
        rows = self.rows(positions)
        return Batch(images, self.labels[rows], self.keys[rows])

    def batches(self, order: Iterable[np.ndarray], draw: Draw | None = None) -> Iterator[Batch]:
        """Yield a batch for each array of pack positions; images are read ahead.

        With a `crop`, images are random crops of the epoch `draw`, or their centres if it is None.
        """
        if self.resident:
            yield from map(self.batch, order)
        elif self.device_crops is not None:
            yield from self._paced(self._decoded(self.device_crops, iter(order), draw))
        elif self.pack.image_shape is None and len(self) >= _PROCESSES_FROM:
            yield from self._paced(self._from_processes(iter(order), draw))
        else:
            yield from self._stream(iter(order), draw)

    def _read(self, positions: np.ndarray, out: Tensor, draw: Draw | None) -> None:
        """Read images into `out` (n, height, width, channels) uint8 on the host."""
        if self.pack.image_shape is not None:
            self.pack.images(positions, out.numpy())
        else:
            keys = self._host_keys(positions)
            self._slow[self._reader().read(positions, keys, draw, out.numpy())] = True

    def _reader(self) -> ImageReader:
        """Return what decodes encoded images."""
        target = self.crop or self.size
        assert target is not None
        return ImageReader(self.pack, target, self.threads, self.resample)

    def _read_now(self, positions: np.ndarray, draw: Draw | None) -> Tensor:
        images = torch.empty((len(positions), *self.image_shape), dtype=torch.uint8)
        self._read(positions, images, draw)
        return images.to(self.device)

    def _host_keys(self, positions: np.ndarray) -> np.ndarray:
        return self._keys_on_host[self._rows[positions]]

    def _paced(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Keep the host from queueing steps, and batches in the GPU's memory, without end."""
        if self.device.type != "cuda":
            yield from batches
            return
        queued: deque[torch.cuda.Event] = deque()
        for batch in batches:
            yield batch
            event = torch.cuda.Event(blocking=True)
            event.record(torch.cuda.current_stream(self.device))
            queued.append(event)
            if len(queued) >= _QUEUED:
                queued.popleft().synchronize()

    def _from_processes(self, order: Iterator[np.ndarray], draw: Draw | None) -> Iterator[Batch]:
        """Decode ahead of use in processes of their own, into memory that is shared with them."""
        first = next(order, None)
        if first is None:
            return
        order = chain([first], order)
        pool = self._pool_for(len(first))
        if pool.busy:  # a second iteration beside the first one
            yield from self._stream(order, draw)
            return
        on_gpu = self.device.type == "cuda"
        copies = torch.cuda.Stream(self.device) if on_gpu else None
        copied: dict[int, torch.cuda.Event] = {}
        free = deque(range(pool.slots))
        pending: deque[tuple[np.ndarray, int | None]] = deque()

        def submit() -> None:
            for positions in islice(order, 1):
                if len(positions) > pool.batch:  # larger than the first: read when it is due
                    pending.append((positions, None))
                    continue
                slot = free.popleft()
                if slot in copied:
                    copied.pop(slot).synchronize()
                pool.submit(slot, positions, self._host_keys(positions), draw)
                pending.append((positions, slot))

        pool.busy = True
        try:
            for _ in range(pool.slots - 1):
                submit()
            while pending:
                submit()
                positions, slot = pending.popleft()
                if slot is None:
                    yield self._labelled(self._read_now(positions, draw), positions)
                    continue
                self._slow[pool.wait()] = True
                filled = pool.buffers[slot][: len(positions)]
                if copies is None:
                    images = filled.clone()  # belongs to the caller
                else:
                    current = torch.cuda.current_stream(self.device)
                    with torch.cuda.stream(copies):
                        images = filled.to(self.device, non_blocking=True)
                        copied[slot] = torch.cuda.Event(blocking=True)
                        copied[slot].record()
                    current.wait_event(copied[slot])
                    images.record_stream(current)
                free.append(slot)
                yield self._labelled(images, positions)
        finally:
            for event in copied.values():  # the next iteration may decode into any slot
                event.synchronize()
            pool.cancel()
            pool.busy = False

    def _pool_for(self, batch: int) -> DecodePool:
        """Return the processes, with memory for batches of this size."""
        reader, batch, pool = self._reader(), max(1, batch), self._pool
        if pool is not None and not pool.busy and (pool.batch < batch or pool.reader != reader):
            self.close()
        if self._pool is None:
            slots = int(np.clip(READ_AHEAD // (batch * self.image_bytes), 2, 2 * _READERS))
            self._pool = DecodePool(reader, batch, slots, pinned=self.device.type == "cuda")
        return self._pool

    def _decoded(
        self, reader: "DeviceCropReader", order: Iterator[np.ndarray], draw: Draw | None
    ) -> Iterator[Batch]:
        """Decode ahead of use on the device, on streams of their own."""
        # Their short kernels go before those of the training step.
        streams = [torch.cuda.Stream(self.device, priority=-1) for _ in range(_DECODERS)]
        unused = deque(streams)

        def read(positions: np.ndarray) -> Tensor:
            stream = unused.popleft()
            try:
                with torch.cuda.device(self.device), torch.cuda.stream(stream):
                    return reader.read(positions, self._host_keys(positions), draw)
            finally:
                unused.append(stream)

        with ThreadPoolExecutor(_DECODERS, thread_name_prefix="thresher-decode") as pool:
            queued = ((positions, pool.submit(read, positions)) for positions in order)
            pending = deque(islice(queued, 2 * _DECODERS))
            try:
                while pending:
                    positions, future = pending.popleft()
                    images = future.result()  # finished on the device, too
                    pending.extend(islice(queued, 1))
                    images.record_stream(torch.cuda.current_stream(self.device))
                    yield self._labelled(images, positions)
            finally:
                for _, future in pending:
                    future.cancel()

    def _stream(self, order: Iterator[np.ndarray], draw: Draw | None = None) -> Iterator[Batch]:
        """Read ahead as many batches as the buffers hold."""
        # On a GPU the buffers are pinned, copied asynchronously and reused; an event tells when
        # one may be overwritten. On a CPU a buffer becomes the batch itself.
        pinned = self.device.type == "cuda"
        pending: deque[tuple[np.ndarray, Tensor, Future[Tensor]]] = deque()
        buffers: list[Tensor] = []
        busy: dict[int, torch.cuda.Event] = {}
        depth = 0

        def read(positions: np.ndarray, buffer: Tensor) -> Tensor:
            if buffer.data_ptr() in busy:
                busy.pop(buffer.data_ptr()).synchronize()
            self._read(positions, buffer[: len(positions)], draw)
            return buffer[: len(positions)]

        def buffer_for(n: int) -> Tensor:
            for index, buffer in enumerate(buffers):
                if len(buffer) >= n:
                    return buffers.pop(index)
            if buffers:  # too small for this batch: free it rather than hold both
                buffers.pop(0)
            return torch.empty((n, *self.image_shape), dtype=torch.uint8, pin_memory=pinned)

        readers = min(_READERS, self.threads)
        with ThreadPoolExecutor(readers, thread_name_prefix="thresher-read") as pool:
            try:
                while True:
                    for positions in order:
                        if not depth:
                            bytes_each = max(1, len(positions) * self.image_bytes)
                            depth = int(np.clip(READ_AHEAD // bytes_each, 2, 2 * readers))
                        buffer = buffer_for(len(positions))
                        pending.append((positions, buffer, pool.submit(read, positions, buffer)))
                        if len(pending) >= depth:
                            break
                    if not pending:
                        return
                    positions, buffer, future = pending.popleft()
                    filled = future.result()
                    if pinned:
                        images = filled.to(self.device, non_blocking=True)
                        busy[buffer.data_ptr()] = event = torch.cuda.Event()
                        event.record()
                        buffers.append(buffer)
                    else:
                        images = filled  # belongs to the caller now, so it is not reused
                    yield self._labelled(images, positions)
            finally:
                for *_, future in pending:
                    future.cancel()

    def _read_all(self) -> Tensor:
        """Load all images to the device, in pieces, without a second copy."""
        images = torch.empty(
            (len(self.positions), *self.image_shape), dtype=torch.uint8, device=self.device
        )
        if self.device.type == "cpu" and self.pack.image_shape is not None:
            self.pack.images(self.positions, out=images.numpy())
            return images
        step = max(1, (64 << 20) // self.image_bytes)
        begins = range(0, len(self.positions), step)
        pieces = (self.positions[begin : begin + step] for begin in begins)
        for begin, batch in zip(begins, self._stream(pieces), strict=True):
            images[begin : begin + step] = batch.images
        return images
