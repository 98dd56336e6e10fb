"""A real selection of CIFAR-10, a real server over it, and Debian's Chromium to look at it."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from page_site import Few, Made, Opener, Site, select

from thresher.app.server import create_server
from thresher.app.workspace import Workspace
from thresher.data.pack import Pack
from thresher.data.write import WriteOptions, write_pack

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"


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


@pytest.fixture
def few_site(few_cifar: Made, tmp_path: Path) -> Iterator[Site]:
    """A server over a fresh copy of the selection of those few."""
    made = few_cifar.copy(tmp_path)
    with create_server(Workspace([made.path])).in_background() as url:
        yield Site(url, made)


@pytest.fixture
def site(some_cifar: Made, tmp_path: Path) -> Iterator[Site]:
    """A server over a fresh copy of the small selection."""
    made = some_cifar.copy(tmp_path)
    with create_server(Workspace([made.path])).in_background() as url:
        yield Site(url, made)


@pytest.fixture
def whole_site(whole_cifar: Made, tmp_path: Path) -> Iterator[Site]:
    """A server over a fresh copy of the selection of all training images."""
    made = whole_cifar.copy(tmp_path)
    with create_server(Workspace([made.path])).in_background() as url:
        yield Site(url, made)


@pytest.fixture
def look(chromium: "Browser", request: pytest.FixtureRequest) -> Iterator[Opener]:
    """Open an address in a window; fails the test at its end if the console showed an error.

    The last state of each window is kept under build/screenshots.
    """
    pages: list[Page] = []
    errors: list[str] = []

    def opened(
        url: str, width: int = 1280, height: int = 720, theme: str = "light", drawn: bool = True
    ) -> "Page":
        page = chromium.new_page(viewport={"width": width, "height": height})
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on(
            "console",
            lambda said: errors.append(said.text) if said.type == "error" else None,
        )
        pages.append(page)
        page.goto(f"{url}{'&' if '?' in url else '?'}theme={theme}")
        page.wait_for_selector("#page.ready")
        if drawn:
            page.wait_for_selector(".map[data-drawn]")
        return page

    yield opened
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for number, page in enumerate(pages):
        if page.is_closed():
            continue
        name = request.node.name.replace("[", "-").replace("]", "")
        page.screenshot(path=SCREENSHOTS / f"{name}-{number}.png")
        page.close()
    assert errors == []
