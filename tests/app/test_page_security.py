"""What an outsider may try: each is refused, and the images stay where they are."""

import json
import socket
from collections.abc import Iterator
from urllib.parse import urlparse

import httpx
import pyarrow as pa
import pytest
from page_site import Made, Site

from thresher.app import arrow
from thresher.app.desk import Desk
from thresher.app.security import BODY_LIMIT, hosts_for
from thresher.app.serve import prepare
from thresher.data.overrides import OverrideLog
from thresher.data.selection import Selection
from thresher.paths import SelectionPaths

pytest_plugins = ("page_fixtures",)

API = ["/api/info", "/api/points", "/api/state", "/api/log", "/api/knobs", "/api/events", "/"]
POSTS = ["/api/overrides", "/api/undo", "/api/redo", "/api/preview", "/api/use"]


@pytest.fixture(scope="module")
def site(some_cifar: Made, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One server for all: none of this should change anything."""
    made = some_cifar.copy(tmp_path_factory.mktemp("guarded"))
    with prepare(Desk([made.path])).in_background() as url:
        yield Site(url, made)


def asked(site: Site, path: str, **headers: str) -> httpx.Response:
    given = {"Authorization": f"Bearer {site.token}", **headers}
    return httpx.get(site.base + path, headers=given)


def posted(site: Site, path: str, content: bytes, kind: str = "application/json") -> httpx.Response:
    given = {"Authorization": f"Bearer {site.token}", "Content-Type": kind}
    return httpx.post(site.base + path, headers=given, content=content, timeout=30)


def raw(site: Site, request: bytes) -> bytes:
    """Send bytes as they are: clients tidy up paths before they send them."""
    parts = urlparse(site.base)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=20) as line:
        line.sendall(request)
        answer = b""
        while piece := line.recv(65536):
            answer += piece
    return answer


def head(site: Site, path: str, method: str = "GET", more: str = "") -> bytes:
    host = urlparse(site.base).netloc
    return (
        f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
        f"Authorization: Bearer {site.token}\r\n{more}\r\n"
    ).encode()


def test_without_the_token_nothing_is_told(site: Site) -> None:
    for path in API:
        answer = httpx.get(site.base + path)
        assert answer.status_code == 401, path
        assert b"cifar10" not in answer.content
    for path in POSTS:
        assert httpx.post(site.base + path, content=b"{}").status_code == 401, path
    assert httpx.get(f"{site.base}/assets/page.js").status_code == 200


@pytest.mark.parametrize("token", ["", "x", "A" * 32, "ü" * 8])
def test_a_wrong_token_is_refused(site: Site, token: str) -> None:
    assert httpx.get(f"{site.base}/api/points", params={"token": token}).status_code in (401, 403)
    given = {b"Authorization": b"Bearer" + (b" " + token.encode() if token else b"")}
    assert httpx.get(f"{site.base}/api/points", headers=given).status_code in (401, 403)


def test_the_right_token_opens(site: Site) -> None:
    assert asked(site, "/api/points").status_code == 200
    assert httpx.get(f"{site.base}/api/points", params={"token": site.token}).status_code == 200


def test_another_origin_is_refused(site: Site) -> None:
    assert asked(site, "/api/info", Origin="http://evil.example").status_code == 403
    assert asked(site, "/api/info", Origin="null").status_code == 403
    assert asked(site, "/api/info", Origin=site.base).status_code == 200


def test_another_host_is_refused(site: Site) -> None:
    """A name of the attacker's that resolves to this machine (DNS rebinding)."""
    port = urlparse(site.base).port
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", "127.0.0.1:1", ""):
        assert asked(site, "/api/info", Host=host).status_code in (400, 403), host
    assert asked(site, "/api/info", Host=f"localhost:{port}").status_code == 200


def test_hosts_when_bound_to_all_interfaces() -> None:
    assert "*" not in hosts_for("127.0.0.1", 1)
    assert "*" in hosts_for("0.0.0.0", 1)
    assert "gpu-box:1" in hosts_for("gpu-box", 1)


@pytest.mark.parametrize(
    "path",
    [
        "/api/image/../../../../etc/passwd",
        "/api/image/..%2f..%2f..%2fetc%2fpasswd",
        "/api/image//etc/passwd",
        "/api/image/%2e%2e/%2e%2e/pack.json",
        "/api/sample/../../pack.json",
        "/assets/../../../../etc/passwd",
        "/assets/..%2f..%2fserver.py",
        "/assets/%2e%2e/bundle.py",
        "/assets/../index.html%00.js",
        "/../../../etc/passwd",
    ],
)
def test_no_path_leads_to_a_file(site: Site, path: str) -> None:
    answer = raw(site, head(site, path))
    assert answer.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400"))
    assert b"root:" not in answer
    assert b"import" not in answer


def test_malformed_bodies_are_refused_and_nothing_is_written(site: Site) -> None:
    selection = Selection.load(site.made.path)
    kind = arrow.MEDIA_TYPE
    good = arrow.encode({"id": pa.array(selection.ids[:3])}, {"keep": False, "reason": ""})
    bodies = [
        (b"", kind),
        (b"not arrow at all", kind),
        (good[: len(good) // 2], kind),
        (good[:40] + b"\xff" * 64 + good[104:], kind),
        (arrow.encode({"row": pa.array([1, 2])}, {"keep": True}), kind),
        (arrow.encode({"id": pa.array([1, 2])}, {"keep": True}), kind),
        (arrow.encode({"id": pa.array(["a", None])}, {"keep": True}), kind),
        (arrow.encode({"id": pa.array(["no such id"])}, {"keep": True}), kind),
        (arrow.encode({"id": pa.array(selection.ids[:3])}, {"keep": "yes"}), kind),
        (b"{", "application/json"),
        (b"[]", "application/json"),
        (b"[" * 100_000, "application/json"),
        (b'{"ids": "abc", "keep": true}', "application/json"),
        (b'{"ids": [], "keep": true}', "application/json"),
        (b'{"ids": [1], "keep": true}', "application/json"),
        (json.dumps({"ids": selection.ids[:1], "keep": 1}).encode(), "application/json"),
        (
            json.dumps({"ids": selection.ids[:1], "keep": True, "reason": "x" * 600}).encode(),
            "application/json",
        ),
    ]
    for body, its_kind in bodies:
        answer = posted(site, "/api/overrides", body, its_kind)
        assert answer.status_code in (400, 404), (body[:60], answer.text)
        assert "error" in answer.json()
    assert OverrideLog(SelectionPaths(site.made.path).overrides).read() == []
    assert posted(site, "/api/overrides", good, kind).status_code == 200


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "no such"},
        {"share": 2},
        {"share": "much"},
        {"share": True},
        {"eps": -1},
        {"min_samples": 0},
        {"min_samples": 10**9},
        {"min_samples": 2.5},
        {"knee": "yes"},
        {"seed": -1},
        {"no such knob": 1},
        {"method": "votes", "share": 0.1},
    ],
)
def test_impossible_settings_are_refused(site: Site, settings: dict[str, object]) -> None:
    for path in ("/api/preview", "/api/use"):
        body = json.dumps({**settings, "name": "x"} if path == "/api/use" else settings)
        assert posted(site, path, body.encode()).status_code == 400
    assert not site.made.path.with_name("x.parquet").exists()


@pytest.mark.parametrize(
    "name", ["", "..", "../up", "/etc/x", "a/b", ".hidden", "a\x00b", "a" * 101, "chosen", None, 5]
)
def test_a_new_selection_is_written_beside_the_old_one_or_not_at_all(
    site: Site, name: object
) -> None:
    before = sorted(path.name for path in site.made.path.parent.iterdir())
    body = json.dumps({"share": 0.1, "name": name}).encode()
    assert posted(site, "/api/use", body).status_code == 400
    assert sorted(path.name for path in site.made.path.parent.iterdir()) == before


def test_a_huge_body_is_cut_off(site: Site) -> None:
    size = 100 * 2**20
    answer = raw(site, head(site, "/api/overrides", "POST", f"Content-Length: {size}\r\n"))
    assert answer.startswith(b"HTTP/1.1 413")

    parts = urlparse(site.base)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=30) as line:
        line.sendall(head(site, "/api/overrides", "POST", "Transfer-Encoding: chunked\r\n"))
        piece = b"100000\r\n" + b"x" * 2**20 + b"\r\n"
        sent = 0
        try:
            for _ in range(100):
                line.sendall(piece)
                sent += 2**20
        except (BrokenPipeError, ConnectionResetError):
            pass
        try:
            answer = line.recv(65536)
        except ConnectionResetError:
            answer = b""
    assert sent < size or answer.startswith(b"HTTP/1.1 413")
    assert answer == b"" or b" 413 " in answer.split(b"\r\n")[0]
    assert asked(site, "/api/info").status_code == 200, "the server goes on"
    assert size > BODY_LIMIT


@pytest.mark.parametrize("rows", ["", "x", "-1", "1,,2", "3000", "1e3", ",".join(["1"] * 257)])
def test_sprites_are_of_rows_that_exist(site: Site, rows: str) -> None:
    assert asked(site, f"/api/sprite?rows={rows}").status_code == 400


def test_what_every_answer_says(site: Site) -> None:
    for path in ("/", "/api/info", "/assets/page.js", "/api/image/none"):
        headers = asked(site, path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in headers
    assert "server" not in asked(site, "/").headers
    page = asked(site, "/").text
    assert "<script>" not in page
    assert "onclick" not in page
    assert str(site.made.pack.root) not in asked(site, "/api/info").text
