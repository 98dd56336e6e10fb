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
        self.device = device
        self._waits: list[float] = []
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._first: float | None = None
        self._later = 0.0

    def next(self, parts: Iterator[Part]) -> Part:
        """Return the next part."""
        if self.device.type != "cuda":
            begun = time.perf_counter()
            part = next(parts)
            self._waits.append(time.perf_counter() - begun)
            return part
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        part = next(parts)
        after.record()
        self._events.append((before, after))
        return part

    def take(self) -> float:
        """Return the seconds since the last call; the device has finished its work."""
        waits = [before.elapsed_time(after) / 1000 for before, after in self._events]
        waits += self._waits
        self._events.clear()
        self._waits.clear()
        later = waits
        if waits and self._first is None:
            self._first, *later = waits
        self._later += sum(later)
        return sum(waits)

    def share_after_start(self, seconds: float) -> float:
        """Return the share of the training time of this process that was spent waiting.

        `seconds` is that time. The wait for the first part, in which processes that decode start,
        is left out of both.
        """
        rest = seconds - (self._first or 0.0)
        return self._later / rest if rest > 0 else 0.0
