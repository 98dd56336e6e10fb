"""What an outsider may try: each is refused, and the images stay where they are."""

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from urllib.parse import urlparse

import httpx
import pyarrow as pa
import pytest
from page_site import Made, Site

from thresher.app import arrow, server
from thresher.app.guard import BODIES_LIMIT, BODY_LIMIT, hosts_for
from thresher.app.server import create_server
from thresher.app.workspace import Workspace
from thresher.data.overrides import OverrideLog
from thresher.data.selection import Selection
from thresher.paths import SelectionPaths

pytest_plugins = ("page_fixtures",)

Run = Callable[..., CompletedProcess[str]]

API = ["/api/info", "/api/points", "/api/state", "/api/log", "/api/knobs", "/api/events", "/"]
POSTS = ["/api/overrides", "/api/undo", "/api/redo", "/api/preview", "/api/use"]
HTTP = httpx.Client(limits=httpx.Limits(max_keepalive_connections=0), verify=False)
"""A connection for each request, without reading the machine's certificates for each."""


@pytest.fixture(scope="module")
def site(some_cifar: Made, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One server for all: none of this should change anything."""
    made = some_cifar.copy(tmp_path_factory.mktemp("guarded"))
    with create_server(Workspace([made.path])).in_background() as url:
        yield Site(url, made)


def asked(site: Site, path: str, **headers: str) -> httpx.Response:
    given = {"Authorization": f"Bearer {site.token}", **headers}
    return HTTP.get(site.base + path, headers=given)


def posted(site: Site, path: str, content: bytes, kind: str = "application/json") -> httpx.Response:
    given = {"Authorization": f"Bearer {site.token}", "Content-Type": kind}
    return HTTP.post(site.base + path, headers=given, content=content, timeout=30)


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


@pytest.mark.slow
def test_without_the_token_nothing_is_told(site: Site) -> None:
    for path in API:
        answer = HTTP.get(site.base + path)
        assert answer.status_code == 401, path
        assert b"cifar10" not in answer.content
    for path in POSTS:
        assert HTTP.post(site.base + path, content=b"{}").status_code == 401, path
    assert HTTP.get(f"{site.base}/assets/page.js").status_code == 200


@pytest.mark.parametrize("token", ["", "x", "A" * 32, "ü" * 8])
def test_a_wrong_token_is_refused(site: Site, token: str) -> None:
    assert HTTP.get(f"{site.base}/api/points", params={"token": token}).status_code in (401, 403)
    given = {b"Authorization": b"Bearer" + (b" " + token.encode() if token else b"")}
    assert HTTP.get(f"{site.base}/api/points", headers=given).status_code in (401, 403)


def test_the_right_token_opens(site: Site) -> None:
    assert asked(site, "/api/points").status_code == 200
    assert HTTP.get(f"{site.base}/api/points", params={"token": site.token}).status_code == 200


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


@pytest.mark.slow
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
        (b'{"ids": ["\\ud800"], "keep": true}', "application/json"),
        (
            json.dumps({"ids": selection.ids[:1], "keep": True, "reason": "a\ud800"}).encode(),
            "application/json",
        ),
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_lone_surrogate_in_an_old_log_is_replaced(
    some_cifar: Made, tmp_path: Path, thresher: Run
) -> None:
    """JSON allows it, UTF-8 does not: the log must not answer 500 from then on."""
    made = some_cifar.copy(tmp_path)
    id = Selection.load(made.path).ids[0]
    line = f'{{"kind": "set", "ids": ["{id}"], "keep": false, "reason": "a\\ud800b", "time": 1}}\n'
    SelectionPaths(made.path).overrides.write_text(line)
    with create_server(Workspace([made.path])).in_background() as url:
        site = Site(url, made)
        for path in ("/api/log", f"/api/sample/{id}", "/api/state"):
            assert asked(site, path).status_code == 200
        assert asked(site, "/api/log").json()["entries"][0]["reason"] == "a?b"
    Selection.load(made.path).save(tmp_path / "saved.parquet")
    done = thresher("view", made.path, "--export", tmp_path / "site")
    assert done.returncode == 0, done.stderr


def test_settings_in_the_sidecar_that_json_forbids(some_cifar: Made, tmp_path: Path) -> None:
    made = some_cifar.copy(tmp_path)
    sidecar = made.path.with_suffix(".json")
    meta = json.loads(sidecar.read_text())
    odd = {"high": float("inf"), "low": float("nan"), "text": "NaN and Infinity"}
    sidecar.write_text(json.dumps({**meta, "odd": odd}))
    with create_server(Workspace([made.path])).in_background() as url:
        answer = asked(Site(url, made), "/api/info")
    assert answer.json()["settings"]["odd"] == {**odd, "high": None, "low": None}


def test_forwarded_headers_are_ignored(site: Site) -> None:
    """They would let a page on https://HOST of the same port pass the check of Origin."""
    origin = site.base.replace("http://", "https://")
    forwarded = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "10.0.0.1"}
    assert asked(site, "/api/info", Origin=origin, **forwarded).status_code == 403
    assert asked(site, "/api/info", Origin=site.base, **forwarded).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HTTP/1.1\r\nHost: x", b"HEAD+BODY"],
    ids=["nothing", "half a head", "half a body"],
)
def test_an_unfinished_request_is_closed(
    some_cifar: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    assert server.REQUEST_TIMEOUT_S == 10
    monkeypatch.setattr(server, "REQUEST_TIMEOUT_S", 1.0)
    made = some_cifar.copy(tmp_path)
    with create_server(Workspace([made.path])).in_background() as url:
        site = Site(url, made)
        if sent == b"HEAD+BODY":
            sent = head(site, "/api/overrides", "POST", "Content-Length: 100\r\n") + b"half"
        parts = urlparse(site.base)
        with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=20) as line:
            begun = time.monotonic()
            line.sendall(sent)
            end = begun + 0.7
            while sent and time.monotonic() < end:
                time.sleep(0.3)
                line.sendall(b"x")  # slowly arriving bytes do not extend the time
            with contextlib.suppress(ConnectionResetError):
                assert line.recv(65536) == b""
            assert 0.8 < time.monotonic() - begun < 10
        with (
            httpx.Client(base_url=site.base, params={"token": site.token}) as http,
            http.stream("GET", "/api/events") as events,
        ):
            first = next(events.iter_raw())
            assert first.startswith(b"retry")
            time.sleep(1.5)
            assert not events.is_closed, "an answer may take longer than a request"
            assert http.get("/api/info").status_code == 200


@pytest.mark.slow
def test_unfinished_bodies_are_bounded_together(some_cifar: Made, tmp_path: Path) -> None:
    made = some_cifar.copy(tmp_path)
    with create_server(Workspace([made.path])).in_background() as url:
        site = Site(url, made)
        parts = urlparse(site.base)
        size = 31 * 2**20
        lines = [
            socket.create_connection((parts.hostname or "", parts.port or 0), timeout=20)
            for _ in range(6)
        ]
        try:
            answers = []
            for line in lines:
                request = head(site, "/api/overrides", "POST", f"Content-Length: {size}\r\n")
                with contextlib.suppress(ConnectionError):
                    line.sendall(request + b" " * (size - 1))
                line.settimeout(2)
                try:
                    answers.append(line.recv(65536).split(b"\r\n")[0])
                except TimeoutError:
                    answers.append(b"waiting")
                except ConnectionError:
                    answers.append(b"closed")
            held = BODIES_LIMIT // size
            assert answers[:held] == [b"waiting"] * held
            assert all(b" 503 " in answer or answer == b"closed" for answer in answers[held:])
            assert asked(site, "/api/info").status_code == 200
        finally:
            for line in lines:
                line.close()
        deadline = time.monotonic() + 10
        while True:
            answer = posted(site, "/api/overrides", b" " * size)
            if answer.status_code != 503 or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        assert answer.status_code == 400, "the memory of closed requests is free again"


@pytest.mark.parametrize(
    "query",
    [
        "sample/ID?neighbours=65",
        "sample/ID?neighbours=00000000000065",
        "sample/ID?neighbours=99999999999999999999",
        "sample/ID?neighbours=" + "9" * 5000,
        "sample/ID?neighbours=-1",
        "sample/ID?neighbours=%D9%A1",
        "knobs?min_samples=0",
        "knobs?min_samples=201",
        "knobs?min_samples=0000000000201",
        "sprite?rows=00000000000003000",
        "sprite?rows=" + "1" * 5000,
    ],
)
def test_integers_are_bounded_by_value(site: Site, query: str) -> None:
    id = Selection.load(site.made.path).ids[0]
    answer = asked(site, "/api/" + query.replace("ID", id))
    assert answer.status_code == 400
    assert "must be" in answer.json()["error"]


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
