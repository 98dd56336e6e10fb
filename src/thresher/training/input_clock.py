"""Measures how long the device waits for input."""

import time
from collections.abc import Iterator

import torch

from thresher.training.device_data import Part


class InputClock:
    """Takes parts from a reader and measures the time for which the device has nothing to do.

    On a GPU that is the time between two events in its own queue: work that was queued ahead hides
    the waiting of the host.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self._seconds = device, 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def next(self, parts: Iterator[Part]) -> Part:
        """Return the next part."""
        if self.device.type != "cuda":
            begun = time.perf_counter()
            part = next(parts)
            self._seconds += time.perf_counter() - begun
            return part
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        part = next(parts)
        after.record()
        self._events.append((before, after))
        return part

    def take(self) -> float:
        """Return the seconds since the last call; the device has finished its work."""
        waited = sum(before.elapsed_time(after) for before, after in self._events) / 1000
        waited, self._seconds = waited + self._seconds, 0.0
        self._events.clear()
        return waited
