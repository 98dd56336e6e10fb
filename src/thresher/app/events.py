"""News for open windows, as server-sent events: who decides in one is seen in the others.

Changes by other processes (a second server, a script) are noticed by the size of the logs.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from thresher.app.desk import Desk

POLL_S = 0.4
HEARTBEAT_S = 15.0
WINDOWS_LIMIT = 64


class Hub:
    """Passes each piece of news to every open window."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.closing = asyncio.Event()
        self._windows: set[asyncio.Queue[dict[str, Any]]] = set()
        self._sizes: dict[str, int] = {}

    def tell(self, news: dict[str, Any]) -> None:
        for window in self._windows:
            window.put_nowait(news)

    def changed(self, name: str) -> None:
        """Someone decided through this server: tell at once, and not again when the log is seen."""
        self._sizes |= {name: self.desk.logs().get(name, 0)}
        self.tell({"type": "state", "selection": name})

    @property
    def full(self) -> bool:
        return len(self._windows) >= WINDOWS_LIMIT

    async def watch(self) -> None:
        """Look at the logs a few times a second while a window is open."""
        while not self.closing.is_set():
            if self._windows:
                sizes = self.desk.logs()
                for name, size in sizes.items():
                    if self._sizes.get(name, size) != size:
                        self.tell({"type": "state", "selection": name})
                self._sizes = sizes
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.closing.wait(), POLL_S)

    async def stream(self) -> AsyncIterator[bytes]:
        """The news of one window from now on, as `text/event-stream`."""
        window: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._windows.add(window)
        self._sizes = {**self.desk.logs(), **self._sizes}
        try:
            yield b"retry: 1000\n\n"
            while not self.closing.is_set():
                try:
                    news = await asyncio.wait_for(window.get(), HEARTBEAT_S)
                    yield f"data: {json.dumps(news)}\n\n".encode()
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            self._windows.discard(window)

    def close(self) -> None:
        """End every stream, so that the server can stop."""
        self.closing.set()
        self.tell({"type": "closing"})
