"""Signals: SIGTERM and SIGINT save and stop, SIGUSR1 saves and continues."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType

Handler = Callable[[int, FrameType | None], None]


@dataclass
class StopRequest:
    """What signals have asked for; training looks at it between steps."""

    stop: bool = False
    save: bool = False

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.save |= number == signal.SIGUSR1
        self.stop |= number != signal.SIGUSR1


@contextlib.contextmanager
def listen() -> Iterator[StopRequest]:
    """Receive signals while the block runs."""
    request = StopRequest()
    with handle_signals(request._receive, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        yield request


@contextlib.contextmanager
def handle_signals(handler: Handler, *numbers: signal.Signals) -> Iterator[None]:
    """Call `handler` on these signals in the block; outside the main thread there are none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Treat a signal like Ctrl-C, so that what runs can save or remove its files."""
    raise KeyboardInterrupt
