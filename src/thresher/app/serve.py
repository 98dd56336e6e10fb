"""Bind, tell the address, serve until told to stop."""

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import uvicorn

from thresher.app.desk import Desk
from thresher.app.security import hosts_for, new_token
from thresher.app.server import build
from thresher.errors import ThresherError

LOCAL = "127.0.0.1"
STOP_S = 2
WAIT_S = 20.0


@dataclass
class Served:
    """A server whose port is bound: its address is known before it answers."""

    url: str
    server: uvicorn.Server
    socket: socket.socket

    def run(self) -> None:
        """Serve until interrupted; Ctrl-C ends it quietly."""
        with contextlib.suppress(KeyboardInterrupt):
            self.server.run(sockets=[self.socket])
        self.socket.close()

    @contextlib.contextmanager
    def in_background(self) -> Iterator[str]:
        """Serve from a thread while the block runs; gives the address."""
        thread = self.start()
        try:
            yield self.url
        finally:
            self.stop()
            thread.join(WAIT_S)

    def start(self) -> threading.Thread:
        """Serve from a daemon thread; returns when it answers."""
        thread = threading.Thread(target=self.run, daemon=True, name="thresher-view")
        thread.start()
        end = time.monotonic() + WAIT_S
        while not self.server.started:
            if not thread.is_alive() or time.monotonic() > end:
                raise ThresherError("the server did not start")
            time.sleep(0.01)
        return thread

    def stop(self) -> None:
        self.server.should_exit = True


def prepare(desk: Desk, host: str = LOCAL, port: int = 0, embed: bool = False) -> Served:
    """Bind `host`:`port` (0: any free port) and build the application with a fresh token."""
    bound = _bind(host, port)
    port = bound.getsockname()[1]
    token = new_token()
    app = build(desk, token, hosts_for(host, port), embed)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=STOP_S,
        h11_max_incomplete_event_size=64 * 1024,
    )
    shown = socket.gethostname() if host in ("0.0.0.0", "::") else host
    shown = f"[{shown}]" if ":" in shown else shown
    return Served(f"http://{shown}:{port}/?token={token}", _Server(config), bound)


class _Server(uvicorn.Server):
    """uvicorn, ending the windows' event streams as soon as it is told to stop."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        guard = self.config.app
        guard.app.state.hub.close()  # type: ignore[union-attr]
        await super().shutdown(sockets)


def _bind(host: str, port: int) -> socket.socket:
    if not 0 <= port < 65536:
        raise ThresherError(f"there is no port {port}", "choose one below 65536, or 0 for any")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(128)
    except socket.gaierror:
        raise ThresherError(f'"{host}" is not an address of this machine') from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ThresherError(f"port {port} is taken", "choose another, or 0 for any") from None
        raise ThresherError(f"{host}:{port} cannot be bound ({error.strerror})") from None
    return bound
