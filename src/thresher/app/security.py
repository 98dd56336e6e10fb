"""The guard in front of every request: who may ask, from where, how much, and what the page may do.

- the API and the page itself want the random token of the address; the bundle's files do not;
- `Host` must be one that this server goes by, so that a foreign name resolved to this machine (DNS
  rebinding) finds nothing; an `Origin`, where given, must be this server;
- a body may have `BODY_LIMIT` bytes, counted as they come, whatever Content-Length says;
- the content policy allows scripts, styles and requests of this origin only: nothing inline.
"""

import ipaddress
import secrets
import socket
from collections.abc import Iterable
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_LIMIT = 32 * 2**20
OPEN_PREFIX = "/assets/"
"""The bundle: the same bytes for everyone."""
EMBEDDERS = "http://localhost:* http://127.0.0.1:* https: vscode-webview:"

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
)


class BodyTooLarge(Exception):
    """Raised while a body is read, once it is longer than `BODY_LIMIT`; answered by `too_large`."""


def too_large() -> JSONResponse:
    return _refuse(413, f"the body is larger than {BODY_LIMIT:,} bytes")


def new_token() -> str:
    return secrets.token_urlsafe(24)


class Guard:
    """ASGI middleware; everything it refuses never reaches a route."""

    def __init__(self, app: ASGIApp, token: str, hosts: Iterable[str], embed: bool = False) -> None:
        self.app = app
        self.token = token.encode()
        self.hosts = {host.lower() for host in hosts}
        self.policy = (
            POLICY + f"frame-ancestors {EMBEDDERS if embed else chr(39) + 'none' + chr(39)}"
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            # No websockets here; the lifespan of the server passes through.
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        answer = self._dressed(send)
        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, answer)
            return
        await self.app(scope, _counted(receive), answer)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._known_host(host):
            return _refuse(403, "this Host is not served here")
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"{scope['scheme']}://{host}".lower():
            return _refuse(403, "requests of another Origin are refused")
        if not scope["path"].startswith(OPEN_PREFIX):
            given = _given_token(scope, headers)
            if given is None:
                return _refuse(401, "the token is missing: open the address as it was printed")
            if not secrets.compare_digest(given.encode(), self.token):
                return _refuse(403, "the token is wrong: open the address as it was printed")
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > BODY_LIMIT:
            return too_large()
        return None

    def _known_host(self, host: str) -> bool:
        if host.lower() in self.hosts:
            return True
        # Bound to all interfaces: any address of the machine will do, but a name must be its own.
        return "*" in self.hosts and _is_address(host)

    def _dressed(self, send: Send) -> Send:
        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Content-Security-Policy"] = self.policy
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Referrer-Policy"] = "no-referrer"
                headers["Cross-Origin-Resource-Policy"] = "same-origin"
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        return dressed


def hosts_for(bound: str, port: int) -> set[str]:
    """The values of `Host` to accept for a server bound to `bound`; "*" adds plain addresses."""
    names = {"127.0.0.1", "localhost", "[::1]"}
    if bound not in ("127.0.0.1", "localhost", "::1"):
        names |= {_bracketed(bound), socket.gethostname(), socket.getfqdn()}
    hosts = {f"{name}:{port}" for name in names}
    if bound in ("0.0.0.0", "::"):
        hosts.add("*")
    return hosts


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_address(host: str) -> bool:
    name = host.rsplit(":", 1)[0].strip("[]")
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _given_token(scope: Scope, headers: Headers) -> str | None:
    """From `Authorization: Bearer …`, or `?token=…` where a header cannot be set (images)."""
    kind, _, value = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and value:
        return value.strip()
    query = parse_qs(scope["query_string"].decode("latin-1"))
    return query["token"][0] if "token" in query else None


def _counted(receive: Receive) -> Receive:
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        if message["type"] == "http.request":
            seen += len(message.get("body", b""))
            if seen > BODY_LIMIT:
                raise BodyTooLarge
        return message

    return counted


def _refuse(status: int, why: str) -> JSONResponse:
    # The rest of a refused body is not read: say that the connection ends here.
    return JSONResponse({"error": why}, status, headers={"Connection": "close"})
