"""Server-sent events: a decision made in one window appears in the others.

Changes by other processes (a second server, a script) are detected by the size of the logs.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

from thresher.app.workspace import Workspace

POLL_S = 0.4
HEARTBEAT_S = 15.0
WINDOWS_LIMIT = 64

Event = dict[str, str | list[str]]


class EventHub:
    """Sends each event to every open window."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.closing = asyncio.Event()
        self._windows: set[asyncio.Queue[Event]] = set()
        self._sizes: dict[str, int] = {}

    def send(self, event: Event) -> None:
        for window in self._windows:
            window.put_nowait(event)

    def send_changed(self, name: str) -> None:
        """Announce a decision made through this server, so that `watch` does not repeat it."""
        self._sizes |= {name: self.workspace.log_sizes().get(name, 0)}
        self.send({"type": "state", "selection": name})

    @property
    def full(self) -> bool:
        return len(self._windows) >= WINDOWS_LIMIT

    async def watch(self) -> None:
        """Poll the logs while a window is open, until `close` is called."""
        while not self.closing.is_set():
            if self._windows:
                sizes = self.workspace.log_sizes()
                for name, size in sizes.items():
                    if self._sizes.get(name, size) != size:
                        self.send({"type": "state", "selection": name})
                self._sizes = sizes
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.closing.wait(), POLL_S)

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the events for one window from now on, as `text/event-stream`."""
        window: asyncio.Queue[Event] = asyncio.Queue()
        self._windows.add(window)
        self._sizes = {**self.workspace.log_sizes(), **self._sizes}
        try:
            yield b"retry: 1000\n\n"
            while not self.closing.is_set():
                try:
                    event = await asyncio.wait_for(window.get(), HEARTBEAT_S)
                    yield f"data: {json.dumps(event)}\n\n".encode()
                except TimeoutError:
                    yield b": heartbeat\n\n"
        finally:
            self._windows.discard(window)

    def close(self) -> None:
        """End every stream so that the server can stop."""
        self.closing.set()
        self.send({"type": "closing"})
