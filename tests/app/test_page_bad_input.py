"""Selections that are hard to show: the page shows them or says why not, and is never blank."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from page_eyes import counts, picture, wait_for
from page_site import Opener, Serve

from thresher.app.selection_view import SelectionView
from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.data.sources.base import Block
from thresher.data.write import WriteOptions, write_pack
from thresher.errors import ThresherError

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytest_plugins = ("page_fixtures",)

LONG = "a very long name of a class " * 10 + "that never ends here"
RIGHT_TO_LEFT = "חתול"
GROUND = (251, 251, 249)


@dataclass
class Odd:
    """As many classes as asked for, the first with names that are hard to show."""

    count: int
    name: str = "odd"
    image_shape: tuple[int, int, int] | None = (2, 2, 1)
    classes: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.classes = [LONG, RIGHT_TO_LEFT, *(f"class {n}" for n in range(2, self.count))]

    def key(self) -> str:
        return f"odd {self.count}"

    def chunks(self) -> list[str]:
        return ["all"]

    def read(self, chunk: str) -> Iterator[Block]:
        n = 2 * len(self.classes)
        yield Block(
            ids=[f"odd/{row:05d}" for row in range(n)],
            labels=np.arange(n) % len(self.classes),
            splits=["train"] * n,
            images=np.zeros((n, 2, 2, 1), np.uint8),
        )


def pack_of(classes: int, folder: Path) -> Pack:
    return write_pack(Odd(classes), folder / "pack", WriteOptions(processes=1))


@pytest.fixture(scope="module")
def two_classes(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return pack_of(2, tmp_path_factory.mktemp("two"))


def save(pack: Pack, xy: np.ndarray | None, path: Path, rows: int | None = None) -> Path:
    n = len(pack) if rows is None else rows
    Selection(
        ids=pack.ids.to_pylist()[:n],
        labels=pack.labels[:n],
        keep=np.arange(n) % 5 > 0,
        score=np.arange(n, 0, -1).astype(np.float32),
        reason=[""] * n,
        fingerprint=pack.fingerprint,
        x=None if xy is None else xy[0, :n],
        y=None if xy is None else xy[1, :n],
        meta={"data": str(pack.root)},
    ).save(path)
    return path


def assert_usable(page: "Page", samples: int) -> None:
    """Points are drawn, nothing overflows, and the first sample can be judged."""
    page.wait_for_selector(".filter-panel[data-ready]")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    drawn = np.abs(picture(page)[110:650, 290:900] - GROUND).max(axis=2) > 20
    assert drawn.any()
    for number, name in enumerate([LONG, RIGHT_TO_LEFT][:samples]):
        page.keyboard.press("ArrowRight")
        page.wait_for_selector(f'.card.large .id:text-is("odd/{number:05d}")')
        assert page.inner_text(".card.large .name b") == name
        card = page.locator(".card.large").bounding_box()
        assert card is not None
        assert card["x"] + card["width"] <= 1280
    page.keyboard.press("d")
    wait_for(page, "hand", 1)
    page.keyboard.press("u")
    page.wait_for_selector("#numbers .part.hand", state="detached")
    page.click("#tab-analysis")
    page.wait_for_selector(".analysis .bar-row")


# The most classes once: their list takes the page seconds.
@pytest.mark.parametrize(
    ("kind", "classes"),
    [("spread", 4096), ("one place", 512), ("no numbers", 512)],
    ids=["spread", "one place", "no numbers"],
)
def test_many_classes_long_and_right_to_left_names(
    tmp_path: Path, serve: Serve, look: Opener, kind: str, classes: int
) -> None:
    pack = pack_of(classes, tmp_path)
    n = len(pack)
    xy = np.random.default_rng(0).normal(size=(2, n)).astype(np.float32)
    if kind == "one place":
        xy[:] = 3
    if kind == "no numbers":
        xy[:, ::7] = np.nan
    path = save(pack, xy, tmp_path / "odd.parquet")
    page = look(serve(path))
    assert page.locator(".classes li").count() == classes
    assert_usable(page, n)


def test_a_name_from_right_to_left_stays_in_its_place(
    two_classes: Pack, tmp_path: Path, serve: Serve, look: Opener
) -> None:
    """A sample of the one class among the other: both names, the arrow between them."""
    xy = np.array([[0, 0, 1, 0.1], [0, 0.1, 1, 0]], np.float32)
    path = save(two_classes, xy, tmp_path / "two.parquet")
    page = look(serve(path))
    page.wait_for_selector(".cell .among")
    caption = page.locator('.cell[data-id="odd/00002"] .label')
    assert caption.inner_text().split("→")[1].strip() == RIGHT_TO_LEFT
    own, other = (caption.locator("bdi").nth(n).bounding_box() for n in range(2))
    assert own is not None
    assert other is not None
    assert (own["y"], own["x"]) < (other["y"], other["x"] + 1)


@pytest.mark.parametrize("kind", ["one point", "two at one place", "without a map", "infinite"])
def test_few_points_can_be_found_zoomed_and_lassoed(
    two_classes: Pack, tmp_path: Path, serve: Serve, look: Opener, kind: str
) -> None:
    rows = 1 if kind == "one point" else 2
    xy = np.full((2, rows), 7, np.float32)
    if kind == "infinite":
        xy[0, 1] = np.inf
    path = save(two_classes, None if kind == "without a map" else xy, tmp_path / "s.parquet", rows)
    page = look(serve(path))
    assert sum(counts(page).values()) == rows
    assert_usable(page, rows)
    page.keyboard.press("Escape")
    page.keyboard.press("f")
    page.wait_for_timeout(400)
    box = page.locator(".map").bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.wheel(0, 240)
    page.wait_for_timeout(300)
    page.keyboard.press("f")
    page.wait_for_timeout(400)
    left, right = box["x"] + 3, box["x"] + box["width"] - 3
    top, bottom = box["y"] + 60, box["y"] + box["height"] - 60
    page.keyboard.press("l")
    page.mouse.move(left, top)
    page.mouse.down()
    for corner in ((right, top), (right, bottom), (left, bottom), (left, top)):
        page.mouse.move(*corner, steps=8)
    page.mouse.up()
    page.wait_for_selector(f'.gallery-title:has-text("{rows} lassoed")')
    for colour in page.locator("#colour option").all():
        page.select_option("#colour", str(colour.get_attribute("value")))
        page.wait_for_selector(".map:not([data-stale])")


@pytest.mark.slow
def test_more_classes_than_the_page_can_number_are_refused(tmp_path: Path) -> None:
    pack = write_pack(Odd(2**15 + 1), tmp_path / "pack", WriteOptions(processes=1))
    path = tmp_path / "s.parquet"
    n = len(pack.labels)
    Selection(
        *(pack.ids.to_pylist(), pack.labels, np.ones(n, bool), np.zeros(n), [""] * n),
        fingerprint=pack.fingerprint,
        meta={"data": str(pack.root)},
    ).save(path)
    with pytest.raises(ThresherError, match="up to 32,768 classes, but odd has 32,769"):
        SelectionView(path)
