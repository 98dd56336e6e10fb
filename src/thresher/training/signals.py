"""SIGTERM and SIGINT: save and stop. SIGUSR1: save and go on. Seen between steps."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Wishes:
    """What signals have asked for since they were last seen to."""

    def __init__(self) -> None:
        self.stop = False
        self.save = False

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGUSR1:
            self.save = True
        else:
            self.stop = True


@contextlib.contextmanager
def listen() -> Iterator[Wishes]:
    """Catch the signals while the block runs; outside the main thread there is nothing to catch."""
    wishes = Wishes()
    if threading.current_thread() is not threading.main_thread():
        yield wishes
        return
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    before = {number: signal.signal(number, wishes._asked) for number in numbers}
    try:
        yield wishes
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
