"""Random images and labels of a given shape to time training steps on, and a clock."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class SyntheticBatch:
    """Shape of a batch of random images."""

    shape: tuple[int, int, int]
    """(channels, height, width) of an image."""
    classes: int
    batch_size: int

    def tensors(self, device: "torch.device | str") -> tuple["torch.Tensor", "torch.Tensor"]:
        """Return images, (batch, channels, height, width) as training lays them out in memory, and
        labels, (batch,)."""
        import torch

        images = torch.randn(self.batch_size, *self.shape, device=device)
        labels = torch.randint(self.classes, (self.batch_size,), device=device)
        return images.contiguous(memory_format=torch.channels_last), labels


def timed(action: Callable[[], object], device: str) -> float:
    """Return the seconds that `action` takes on a device, with what it starts there."""
    import torch

    if device != "cpu":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    action()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - begin
