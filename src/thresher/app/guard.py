"""Checks in front of every request: token, Host, Origin and size; and the headers of every answer.

- The API and the page need the random token of the address; the files of the bundle do not.
- `Host` must name this server, which defeats DNS rebinding; so must `Origin`, if given.
- A body may have `BODY_LIMIT` bytes and all unfinished ones together `BODIES_LIMIT`, counted as
  they arrive, whatever Content-Length says.
- The content policy allows scripts, styles and requests of this origin only, and nothing inline.
"""

import contextlib
import ipaddress
import json
import secrets
import socket
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_LIMIT = 32 * 2**20
BODIES_LIMIT = 64 * 2**20
TOO_LARGE = f"the body is larger than {BODY_LIMIT:,} bytes"
PUBLIC_PREFIX = "/assets/"
"""The bundle: the same bytes for everyone."""
FRAME_ANCESTORS = "http://localhost:* http://127.0.0.1:* https: vscode-webview:"

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
)


class SafeJSONResponse(JSONResponse):
    """JSON that can always be sent: text that is not valid Unicode is replaced by "?"."""

    def render(self, content: Any) -> bytes:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", "replace")


class BodyRefusedError(Exception):
    """A body is too large, alone or together with the other unfinished ones."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.response = _refusal(status, message)


class Guard:
    """ASGI middleware: a refused request never reaches a route.

    `hosts` are the accepted values of the `Host` header, from `hosts_for`. With `embed` the page
    may be in a frame of a notebook.
    """

    def __init__(self, app: ASGIApp, token: str, hosts: Iterable[str], embed: bool = False) -> None:
        self.app = app
        self.token = token.encode()
        self.hosts = {host.lower() for host in hosts}
        self.policy = POLICY + "frame-ancestors " + (FRAME_ANCESTORS if embed else "'none'")
        self._received = 0
        """Bytes of the bodies of all requests under way."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            # No websockets here; the lifespan of the server passes through.
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        send = self._with_headers(send)
        refusal = self._check(scope)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            arrived = len(message.get("body", b""))
            size += arrived
            self._received += arrived
            if self._received > BODIES_LIMIT:
                raise BodyRefusedError(503, "too many large requests at once, try again later")
            if size > BODY_LIMIT:
                raise BodyRefusedError(413, TOO_LARGE)
            return message

        try:
            await self.app(scope, counted, send)
        finally:
            self._received -= size

    def _check(self, scope: Scope) -> SafeJSONResponse | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        # Bound to all interfaces: accept any address of the machine, but only its own names.
        if host.lower() not in self.hosts and not ("*" in self.hosts and _is_address(host)):
            return _refusal(403, "this Host is not served here")
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"{scope['scheme']}://{host}".lower():
            return _refusal(403, "requests from another Origin are refused")
        if not scope["path"].startswith(PUBLIC_PREFIX):
            given = _given_token(scope, headers)
            if given is None:
                return _refusal(401, "the token is missing: open the address as it was printed")
            if not secrets.compare_digest(given.encode(), self.token):
                return _refusal(403, "the token is wrong: open the address as it was printed")
        length = headers.get("content-length", "0")
        if not length.isdigit() or len(length) > 18 or int(length) > BODY_LIMIT:
            return _refusal(413, TOO_LARGE)
        return None

    def _with_headers(self, send: Send) -> Send:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Content-Security-Policy"] = self.policy
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Referrer-Policy"] = "no-referrer"
                headers["Cross-Origin-Resource-Policy"] = "same-origin"
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        return send_with_headers


def hosts_for(bound: str, port: int) -> set[str]:
    """Return the accepted `Host` values of a server bound to `bound`; "*" adds all addresses."""
    names = {"127.0.0.1", "localhost", "[::1]"}
    if bound not in ("127.0.0.1", "localhost", "::1"):
        names |= {bracketed(bound), socket.gethostname(), socket.getfqdn()}
    hosts = {f"{name}:{port}" for name in names}
    if bound in ("0.0.0.0", "::"):
        hosts.add("*")
    return hosts


def bracketed(host: str) -> str:
    """Return a host as it is written in an address: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def _is_address(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(host.rsplit(":", 1)[0].strip("[]")))
    return False


def _given_token(scope: Scope, headers: Headers) -> str | None:
    """From `Authorization: Bearer …`, or `?token=…` where no header can be set (images)."""
    kind, _, value = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and value:
        return value.strip()
    query = parse_qs(scope["query_string"].decode("latin-1"))
    return query["token"][0] if "token" in query else None


def _refusal(status: int, message: str) -> SafeJSONResponse:
    # The rest of a refused body is not read, so the connection has to end.
    return SafeJSONResponse({"error": message}, status, headers={"Connection": "close"})
