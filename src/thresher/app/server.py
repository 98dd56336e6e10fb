"""Bind an address, serve the page until stopped."""

import asyncio
import contextlib
import errno
import secrets
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from thresher import options
from thresher.app.config import LOCAL_HOST, ServerConfig
from thresher.app.events import EventHub
from thresher.app.guard import bracketed, hosts_for
from thresher.app.routes import build_app
from thresher.app.workspace import Workspace
from thresher.errors import InvalidValueError, ThresherError
from thresher.stopping import Stop, keyboard_interrupt

REQUEST_TIMEOUT_S = 10.0
"""A request has to arrive completely within this time."""
STOP_TIMEOUT_S = 2
START_TIMEOUT_S = 20.0


@dataclass
class PageServer:
    """A server with a bound port: `url` is valid before it runs."""

    url: str
    server: uvicorn.Server
    socket: socket.socket

    @property
    def tunnel(self) -> tuple[str, str]:
        """The ssh command that forwards the page to another machine, and its address there."""
        host, port = self.socket.getsockname()[:2]
        target = LOCAL_HOST if host in ("0.0.0.0", "::") else bracketed(host)
        query = self.url.partition("?")[2]
        command = f"ssh -N -L {port}:{target}:{port} {socket.gethostname()}"
        return command, f"http://{LOCAL_HOST}:{port}/?{query}"

    def run(self) -> None:
        """Serve until stopped or interrupted by Ctrl-C."""
        try:
            with Stop(keyboard_interrupt, signal.SIGINT), _HangUp(self.server):
                self.server.run(sockets=[self.socket])
        except KeyboardInterrupt as error:
            if error.args:  # another signal
                raise
        finally:
            self.socket.close()

    @contextlib.contextmanager
    def in_background(self) -> Iterator[str]:
        """Serve from a thread while the block runs; yields the address."""
        thread = self.start()
        try:
            yield self.url
        finally:
            self.stop()
            thread.join(START_TIMEOUT_S)

    def start(self) -> threading.Thread:
        """Serve from a daemon thread; returns once the server accepts requests."""
        thread = threading.Thread(target=self.run, daemon=True, name="thresher-view")
        thread.start()
        end = time.monotonic() + START_TIMEOUT_S
        while not self.server.started:
            if not thread.is_alive() or time.monotonic() > end:
                raise ThresherError("the server did not start")
            time.sleep(0.01)
        return thread

    def stop(self) -> None:
        """Ask the server to stop; returns at once."""
        self.server.should_exit = True


def create_server(
    workspace: Workspace, config: ServerConfig | None = None, embed: bool = False
) -> PageServer:
    """Bind the address (by default a free port of 127.0.0.1) and build the application.

    The address has a new token. With `embed` the page may be in a frame of a notebook.
    """
    config = config or ServerConfig()
    options.validate(config)
    bound = _bind(config.host, config.port)
    port = bound.getsockname()[1]
    token = secrets.token_urlsafe(24)
    hub = EventHub(workspace)
    app = build_app(hub, token, hosts_for(config.host, port), embed)
    settings = uvicorn.Config(
        app,
        http=_TimedProtocol,
        log_level="warning",
        access_log=False,
        server_header=False,
        # Nothing stands in front of this server: its own scheme and client are the true ones.
        proxy_headers=False,
        timeout_graceful_shutdown=STOP_TIMEOUT_S,
        h11_max_incomplete_event_size=64 * 1024,
    )
    host = socket.gethostname() if config.host in ("0.0.0.0", "::") else config.host
    url = f"http://{bracketed(host)}:{port}/?token={token}"
    return PageServer(url, _Server(settings, hub), bound)


class _Server(uvicorn.Server):
    """uvicorn that ends the event streams as soon as it is asked to stop."""

    def __init__(self, config: uvicorn.Config, hub: EventHub) -> None:
        super().__init__(config)
        self.hub = hub

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.hub.close()
        await super().shutdown(sockets)


class _HangUp(Stop):
    """A block in which the end of the terminal stops a server as SIGTERM does."""

    def __init__(self, server: uvicorn.Server) -> None:
        super().__init__(keyboard_interrupt, signal.SIGHUP)
        self._server = server

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._server.handle_exit(signal.SIGTERM, frame)


class _TimedProtocol(H11Protocol):
    """HTTP/1.1 that closes a connection whose request does not arrive in time."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._set_deadline()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._set_deadline()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def _set_deadline(self) -> None:
        """Start the timer where a request is incomplete; stop it where it is complete."""
        idle = self.timeout_keep_alive_task is not None and self.conn.their_state is h11.IDLE
        complete = self.conn.their_state not in (h11.IDLE, h11.SEND_BODY)
        if idle or complete:
            self._cancel_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_TIMEOUT_S, self.transport.abort)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(128)
    except (socket.gaierror, UnicodeError):
        what = f'host "{host}" is not an address of this machine'
        raise InvalidValueError(what, parameter="host") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            fix = "choose another, or 0 for a free one"
            raise InvalidValueError(f"port {port} is in use", fix, "port") from None
        raise InvalidValueError(f"cannot listen on {host}:{port} ({error.strerror})") from None
    return bound
