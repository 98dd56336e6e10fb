"""Signals: SIGTERM, SIGINT and SIGHUP save and stop, SIGUSR1 saves and continues."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType


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
    """Receive signals while the block runs; outside the main thread there are none."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    stops = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    heeded = [number for number in stops if signal.getsignal(number) is not signal.SIG_IGN]
    numbers = (*heeded, signal.SIGUSR1)
    before = {number: signal.signal(number, request._receive) for number in numbers}
    try:
        yield request
    finally:
        for number, old in before.items():
            signal.signal(number, old)
