"""The page's application without a port: requests arrive as messages, as from a notebook."""

import asyncio
import logging
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote

from starlette.types import Message, Scope

from thresher.app.events import EventHub
from thresher.app.routes import build_app
from thresher.app.workspace import Workspace

logger = logging.getLogger(__name__)

HOST = "notebook"


@dataclass(frozen=True)
class PageRequest:
    """A request of the page."""

    path: str
    """As the page writes it: `./api/NAME?QUERY`."""
    method: str = "GET"
    media_type: str = ""
    body: bytes = b""


@dataclass(frozen=True)
class PageAnswer:
    """An answer to the page."""

    status: int
    media_type: str
    body: bytes


class MessageServer:
    """Answers requests on a thread with its own event loop, so that the caller never waits.

    `on_event` receives the server-sent events, as text, on that thread.
    """

    def __init__(self, workspace: Workspace, on_event: Callable[[str], None]) -> None:
        self._token = secrets.token_urlsafe(24)
        self._hub = EventHub(workspace)
        self._app = build_app(self._hub, self._token, {HOST})
        self._on_event = on_event
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True, name="thresher-notebook")
        self._thread.start()

    def request(self, request: PageRequest, on_answer: Callable[[PageAnswer], None]) -> None:
        """Answer a request: `on_answer` is called on the thread of the server."""

        async def answer() -> None:
            on_answer(await self._answer(request))

        asyncio.run_coroutine_threadsafe(answer(), self._loop)

    def stop(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(self._hub.close)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._send_events())
        self._loop.close()

    async def _send_events(self) -> None:
        watcher = asyncio.create_task(self._hub.watch())
        async for event in self._hub.stream():
            self._on_event(event.decode())
        await watcher

    async def _answer(self, request: PageRequest) -> PageAnswer:
        body = [request.body]
        status, media_type, parts = 500, "application/json", []

        async def receive() -> Message:
            if body:
                return {"type": "http.request", "body": body.pop()}
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            nonlocal status, media_type
            if message["type"] == "http.response.start":
                status = message["status"]
                media_type = dict(message["headers"]).get(b"content-type", b"").decode("latin-1")
            else:
                parts.append(message.get("body", b""))

        try:
            await self._app(self._scope(request), receive, send)
        except Exception:
            logger.exception(f"the page's request {request.path} failed")
        return PageAnswer(status, media_type, b"".join(parts))

    def _scope(self, request: PageRequest) -> Scope:
        path, _, query = request.path.removeprefix(".").partition("?")
        headers = {
            "host": HOST,
            "authorization": f"Bearer {self._token}",
            "content-type": request.media_type,
            "content-length": str(len(request.body)),
        }
        return {
            "type": "http",
            "http_version": "1.1",
            "scheme": "http",
            "method": request.method,
            "path": unquote(path),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
