"""More points than are prepared before the map is shown: it draws all the same, and answers."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from page_eyes import counts, picture, until, wait_for
from page_site import Opener, Serve

from thresher.data.selection import Selection
from thresher.data.sources.base import Block
from thresher.data.write import WriteOptions, write_pack
from thresher.select.cluster import ClassGraph

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytest_plugins = ("page_fixtures",)

MANY = 301_000


class Dots:
    """Images of four pixels, as many as one likes."""

    def __init__(self) -> None:
        self.name, self.classes = "dots", ["even", "odd"]
        self.image_shape: tuple[int, int, int] | None = (2, 2, 1)

    def key(self) -> str:
        return f"dots {MANY}"

    def chunks(self) -> list[str]:
        return ["all"]

    def read(self, chunk: str) -> Iterator[Block]:
        rows = np.arange(MANY)
        yield Block(
            ids=[f"dot/{row:06d}" for row in rows],
            labels=rows % 2,
            splits=["train"] * MANY,
            images=np.tile((rows % 251).astype(np.uint8)[:, None, None, None], (1, 2, 2, 1)),
        )


def test_three_hundred_thousand_points(tmp_path: Path, serve: Serve, look: Opener) -> None:
    pack = write_pack(Dots(), tmp_path / "pack", WriteOptions(processes=1))
    random = np.random.default_rng(0)
    xy = random.normal(size=(MANY, 2)).astype(np.float32)
    Selection(
        ids=pack.ids.to_pylist(),
        labels=pack.labels,
        keep=random.random(MANY) > 0.1,
        score=random.random(MANY).astype(np.float32),
        reason=[""] * MANY,
        fingerprint=pack.fingerprint,
        x=xy[:, 0],
        y=xy[:, 1],
        meta={"data": str(pack.root)},
    ).save(tmp_path / "many.parquet")
    page = look(serve(tmp_path / "many.parquet"))
    assert page.locator(".map .empty").count() == 0
    assert sum(counts(page).values()) == MANY
    page.wait_for_selector(".filter-panel[data-ready]")
    graph = ClassGraph(xy.astype(np.float64), pack.labels, 5)
    page.fill("#share", "0.2")
    wait_for(page, "dropped", int(graph.noise(graph.eps_for_share(0.2)).sum()))

    page.wait_for_selector(".map[data-indexed]")
    box = page.locator(".map").bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x - 30, y)
    page.mouse.move(x, y, steps=4)
    page.wait_for_selector(".card.hover .id")

    # While the map moves a sample of the points may be drawn; once it stands, all of them.
    page.mouse.move(box["x"] + 60, box["y"] + 120)
    page.wait_for_selector(".card.hover", state="hidden")
    still = seen(page, box)
    page.mouse.down()
    page.mouse.move(box["x"] + 160, box["y"] + 120, steps=5)
    page.mouse.up()
    until(lambda: changed(page, box, still) > 0.05)
    page.keyboard.press("f")
    until(lambda: changed(page, box, still) < 0.01)


def changed(page: "Page", box: Any, before: np.ndarray) -> float:
    """The share of pixels that differ from before."""
    return float((np.abs(seen(page, box) - before).max(axis=2) > 30).mean())


def seen(page: "Page", box: Any) -> np.ndarray:
    """The middle of the map once it stands still, (height, width, 3)."""
    page.wait_for_selector(".map:not([data-thinned])")
    left, top = int(box["x"]), int(box["y"]) + 100
    return picture(page)[top : top + 400, left + 100 : left + 500]
