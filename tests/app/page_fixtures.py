"""A real selection of CIFAR-10, a real server over it, and Debian's Chromium to look at it."""

import contextlib
import functools
import http.server
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from page_eyes import screenshot
from page_site import Few, Made, Opener, Serve, Site, select

from thresher.app.server import PageServer, ServerConfig, create_server
from thresher.app.workspace import Workspace
from thresher.data.pack import Pack
from thresher.data.write import WriteOptions, write_pack
from thresher.errors import InvalidValueError

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell `look`, which ends after the test, whether it failed."""
    report = yield
    item.stash[_FAILED] = report.failed
    return report


@pytest.fixture(scope="session")
def whole_cifar(cifar10: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """All 50,000 training images."""
    pack = Pack.open(cifar10)
    return select(pack, pack.indices("train"), tmp_path_factory.mktemp("whole") / "whole.parquet")


@pytest.fixture(scope="session")
def some_cifar(cifar10: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """3,000 of them, for what is about files rather than numbers."""
    pack = Pack.open(cifar10)
    return select(
        pack, pack.indices("train")[:3000], tmp_path_factory.mktemp("some") / "some.parquet"
    )


@pytest.fixture(scope="session")
def few_cifar(cifar10: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A pack of 600 training and 100 test images of it, for what trains."""
    folder = tmp_path_factory.mktemp("few")
    pack = write_pack(Few(Pack.open(cifar10)), folder / "pack", WriteOptions(processes=1))
    return select(pack, pack.indices("train"), folder / "few.parquet")


@pytest.fixture(scope="session")
def ports() -> list[int]:
    """Free ports, used again by `serve`: at a known address the browser need not compile scripts.

    A page takes a sixth less processor time.
    """
    return []


@pytest.fixture
def serve(ports: list[int]) -> Iterator[Serve]:
    """Serve selections, or an exported folder, until the windows of `look` are empty again."""
    with contextlib.ExitStack() as servers:

        def address(*paths: Path) -> str:
            if paths[0].is_dir():
                return servers.enter_context(file_server(paths[0]))
            server = server_at(ports.pop() if ports else 0, Workspace(list(paths)))
            servers.callback(ports.append, server.socket.getsockname()[1])
            return servers.enter_context(server.in_background())

        yield address


def server_at(port: int, workspace: Workspace) -> PageServer:
    """Return a server at a port, or at another one if a process has taken it meanwhile."""
    try:
        return create_server(workspace, ServerConfig(port=port))
    except InvalidValueError:
        return create_server(workspace)


@contextlib.contextmanager
def file_server(folder: Path) -> Iterator[str]:
    """Serve the files of a folder as they are."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def few_site(few_cifar: Made, tmp_path: Path, serve: Serve) -> Site:
    """A server over a fresh copy of the selection of those few."""
    made = few_cifar.copy(tmp_path)
    return Site(serve(made.path), made)


@pytest.fixture
def site(some_cifar: Made, tmp_path: Path, serve: Serve) -> Site:
    """A server over a fresh copy of the small selection."""
    made = some_cifar.copy(tmp_path)
    return Site(serve(made.path), made)


@pytest.fixture
def whole_site(whole_cifar: Made, tmp_path: Path, serve: Serve) -> Site:
    """A server over a fresh copy of the selection of all training images."""
    made = whole_cifar.copy(tmp_path)
    return Site(serve(made.path), made)


@pytest.fixture(scope="session")
def windows(chromium: "Browser") -> "list[Page]":
    """Empty windows of one browser, used again by `look`: a new one takes seconds of a core."""
    return []


@pytest.fixture
def look(
    chromium: "Browser", windows: "list[Page]", serve: Serve, request: pytest.FixtureRequest
) -> Iterator[Opener]:
    """Open an address in a window; fails the test at its end if the console showed an error.

    The last state of each window of a failed test is kept under build/screenshots.
    """
    pages: list[Page] = []
    errors: list[str] = []

    def on_error(error: object) -> None:
        errors.append(str(error))

    def on_console(said: "ConsoleMessage") -> None:
        if said.type == "error":
            errors.append(said.text)

    def opened(
        url: str, width: int = 1280, height: int = 720, theme: str = "light", drawn: bool = True
    ) -> "Page":
        page = windows.pop() if windows else chromium.new_page()
        page.set_viewport_size({"width": width, "height": height})
        page.set_default_timeout(60_000)
        page.on("pageerror", on_error)
        page.on("console", on_console)
        pages.append(page)
        page.goto(f"{url}{'&' if '?' in url else '?'}theme={theme}")
        page.wait_for_selector("#page.ready")
        if drawn:
            page.wait_for_selector(".map[data-drawn]")
        return page

    yield opened
    failed = request.node.stash[_FAILED] or errors
    for number, page in enumerate(pages):
        if page.is_closed():
            continue
        if failed:
            SCREENSHOTS.mkdir(parents=True, exist_ok=True)
            name = request.node.name.replace("[", "-").replace("]", "")
            (SCREENSHOTS / f"{name}-{number}.png").write_bytes(screenshot(page))
        empty(page)
        page.remove_listener("pageerror", on_error)
        page.remove_listener("console", on_console)
        windows.append(page)
    assert errors == []


@pytest.fixture
def window(
    chromium: "Browser", windows: "list[Page]", serve: Serve, request: pytest.FixtureRequest
) -> "Iterator[Page]":
    """A window for tests of failed requests, about which the console shows errors."""
    page = windows.pop() if windows else chromium.new_page()
    page.set_viewport_size({"width": 1280, "height": 720})
    page.set_default_timeout(60_000)
    yield page
    if request.node.stash[_FAILED]:
        page.close()
        return
    page.unroute_all()
    empty(page)
    windows.append(page)


def empty(page: "Page") -> None:
    """Leave nothing of a test in a window."""
    page.evaluate("localStorage.clear()")
    page.goto("about:blank")
    page.mouse.move(0, 0)
    page.emulate_media(reduced_motion="null")
    page.context.clear_cookies()
