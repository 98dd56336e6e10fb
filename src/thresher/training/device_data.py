"""The samples of a run on its device: images, labels and loss weights."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thresher.data.crop_reader import Draw
from thresher.data.device_crop_reader import DeviceCropReader
from thresher.data.hashing import signed
from thresher.data.loader import Loader
from thresher.data.order import bounds
from thresher.data.pack import Pack
from thresher.device_check import host_of, moved
from thresher.distributed.group import Group
from thresher.environment import core_count
from thresher.training.augmentation import make_augment, resized_crop
from thresher.training.config import TrainConfig
from thresher.training.execution import weight_dtype
from thresher.training.sharing import Slot
from thresher.training.split import TrainingSplit

_loaders: Slot[Loader] = Slot()
"""The resident images of the latest run."""


@dataclass
class Part:
    """This worker's share of a global batch."""

    rows: Tensor
    """(n,) int64 on the device: rows of the samples in the loader."""
    images: Tensor | None = None
    """(n, height, width, channels) uint8 if images are streamed; None if they are resident."""


class DeviceData:
    """Loader, augmentation and loss weights; rows of the loader begin with the training samples.

    On a GPU epoch, seed, labels and weights are tensors that are changed in place, so that a
    captured step reads their current values.
    """

    def __init__(
        self, config: TrainConfig, pack: Pack, split: TrainingSplit, group: Group, weighted: bool
    ) -> None:
        self.group = group
        device, dtype = host_of(group.device), weight_dtype(config)
        self.loader = _loader(config, pack, split, device, group.local_world)
        self.augment = make_augment(config, pack, dtype)
        on_gpu = device.type == "cuda"
        self.epoch: Any = torch.zeros((), dtype=torch.int64, device=device) if on_gpu else 0
        self._device_seed: Any = torch.zeros((), dtype=torch.int64, device=device) if on_gpu else 0
        self.weights = None
        if weighted:
            self.weights = torch.ones(len(split.train), dtype=dtype, device=device)
        self.restart(split, config.seed)

    @property
    def resident(self) -> bool:
        """Whether all images are on the device."""
        return self.loader.images is not None

    def restart(self, split: TrainingSplit, seed: int) -> None:
        """Begin a run on the same samples, in place, with another selection or seed."""
        self.split, self.seed = split, seed
        labels = self.loader.pack.labels[self.loader.positions]
        if split.labels is not None:
            labels[: len(split.labels)] = split.labels
        self.loader.labels.copy_(torch.from_numpy(labels))
        if isinstance(self._device_seed, Tensor):
            self._device_seed.fill_(signed(seed))
        else:
            self._device_seed = seed
        if self.weights is not None:
            self.weights.fill_(1)
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        if isinstance(self.epoch, Tensor):
            self.epoch.fill_(epoch)
        else:
            self.epoch = epoch

    def set_weights(self, weights: np.ndarray) -> None:
        """Set the factors on the losses of the training samples, (n,) float32."""
        assert self.weights is not None
        self.weights.copy_(torch.from_numpy(weights))

    def parts(
        self, order: np.ndarray, cuts: list[tuple[int, int]], align: int = 1
    ) -> Iterator[Part]:
        """Yield this worker's part of each batch `order[begin:end]`; `order` is rows, (n,)."""
        rows = torch.from_numpy(order).to(self.loader.device)
        spans = [self.span(cut, align) for cut in cuts]
        if self.resident:
            for begin, end in spans:
                yield Part(rows[begin:end])
            return
        wanted = (self.split.train[order[begin:end]] for begin, end in spans)
        batches = self.loader.batches(wanted, Draw(int(self.epoch), self.seed))
        for (begin, end), batch in zip(spans, batches, strict=True):
            yield Part(rows[begin:end], batch.images)

    def span(self, cut: tuple[int, int], align: int = 1) -> tuple[int, int]:
        """Return begin and end of this worker's part of a batch in an epoch's order."""
        begin, end = cut
        first, last = bounds(end - begin, self.group.rank, self.group.world, align)
        return begin + first, begin + last

    def first_part(self, count: int, align: int = 1) -> Part:
        """Return this worker's part of a batch of the first `count` samples, for a rehearsal."""
        begin, end = self.span((0, count), align)
        rows = torch.arange(begin, end, device=self.loader.device)
        if self.resident:
            return Part(rows)
        return Part(rows, self.loader.batch(self.loader.positions[begin:end]).images)

    def inputs(self, part: Part, rows: slice) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return augmented images (n, channels, height, width), labels (n,) and weights (n,)."""
        taken = part.rows[rows]
        keys, labels = self.loader.keys[taken], self.loader.labels[taken]
        if part.images is None:
            assert self.loader.images is not None
            images = self.augment(
                self.loader.images, keys, self.epoch, self._device_seed, rows=taken
            )
        else:
            images = self.augment(part.images[rows], keys, self.epoch, self._device_seed)
        weights = None if self.weights is None else self.moved(self.weights[taken])
        return self.moved(images), self.moved(labels), weights

    def moved(self, tensor: Tensor) -> Tensor:
        """Return a tensor on the device of the network."""
        return moved(tensor, self.group.device)


def _loader(
    config: TrainConfig, pack: Pack, split: TrainingSplit, device: torch.device, local_world: int
) -> Loader:
    """Return the loader of a run: that of the run before if it holds the same images."""
    positions = np.concatenate([split.train, split.validation, split.test])
    crop = resized_crop(config, pack) if pack.image_shape is None else None
    size = crop or config.image_size
    key = (pack.identity, positions.tobytes(), str(device), size)
    loader = _loaders.take(key)
    if loader is None:
        threads = max(1, core_count() // local_world)
        loader = Loader(pack, positions, device, size=size, threads=threads)
        if config.decoder == "gpu" and crop is not None:
            loader.device_crops = DeviceCropReader(pack, crop, device)
    if loader.resident:
        _loaders.put(key, loader)
    return loader
