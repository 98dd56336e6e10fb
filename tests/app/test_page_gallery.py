"""The gallery: what a tile says, groups of suspects, and classes that are hard to show."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from page_eyes import picture
from page_site import Opener, Site

from thresher.app.map_layout import MapLayout, neighbourhood_labels
from thresher.app.server import create_server
from thresher.app.workspace import Workspace
from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.data.sources.base import Block
from thresher.data.write import WriteOptions, write_pack

pytest_plugins = ("page_fixtures",)

LONG = "a very long name of a class " * 10 + "that does not end"
RIGHT_TO_LEFT = "חתול"


def surroundings(selection: Selection) -> np.ndarray:
    assert selection.x is not None
    assert selection.y is not None
    return neighbourhood_labels(MapLayout(selection.x, selection.y, "map"), selection.labels)


def test_a_tile_tells_its_label_and_what_it_lies_among(site: Site, look: Opener) -> None:
    selection = Selection.load(site.made.path)
    among = surroundings(selection)
    names = site.made.pack.classes
    page = look(site.url)
    page.wait_for_selector(".cell .among")
    cells = page.locator(".cell:visible").all()
    assert len(cells) > 12
    strangers = 0
    for cell in cells:
        row = selection.ids.index(str(cell.get_attribute("data-id")))
        label, other = names[selection.labels[row]], names[among[row]]
        text = " ".join(cell.locator(".label").inner_text().split())
        strangers += label != other
        assert text == (label if label == other else f"{label} → {other}")
        told = str(cell.get_attribute("aria-label"))
        assert (f"lies among {other}" in told) == (label != other)
    assert strangers > 0


def test_suspects_are_grouped_by_label_and_surroundings(site: Site, look: Opener) -> None:
    selection = Selection.load(site.made.path)
    among = surroundings(selection)
    names = site.made.pack.classes
    pairs = np.zeros((10, 10), int)
    np.add.at(pairs, (selection.labels, among), 1)
    off = np.where(np.eye(10, dtype=bool), 0, pairs)
    label, other = np.unravel_index(np.argmax(off), off.shape)
    page = look(site.url)
    page.wait_for_selector(".cell .among")
    page.select_option("#sort", "place")
    heading = f"{off.max()} labelled {names[label]}, lies among {names[other]}"
    assert page.locator(".gallery .section:visible").first.inner_text() == heading
    group = np.flatnonzero((selection.labels == label) & (among == other))
    most = group[np.argsort(-selection.score[group], kind="stable")]
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(f'.card.large .id:text-is("{selection.ids[most[0]]}")')
    assert page.inner_text(".card.large .name .among").split() == ["→", names[other]]
    # Down through the group and into the next: its heading comes into sight.
    for _ in range(len(group) // 2):
        page.keyboard.press("ArrowDown")
    page.wait_for_timeout(300)
    row = selection.ids.index(page.inner_text(".card.large .id"))
    assert (selection.labels[row], among[row]) != (label, other)
    shown = page.locator(".gallery .section:visible").all_inner_texts()
    assert any(names[selection.labels[row]] in text for text in shown)
    page.keyboard.press("End")
    page.wait_for_timeout(300)
    last = page.locator(".gallery .section:visible").last.inner_text()
    assert re.fullmatch(r"[\d,]+ \w+, among its own", last)


@dataclass
class Odd:
    """As many classes as a label can have here, some with names that are hard to show."""

    name: str = "odd"
    image_shape: tuple[int, int, int] | None = (2, 2, 1)
    classes: list[str] = field(
        default_factory=lambda: [LONG, RIGHT_TO_LEFT, *(f"class {n}" for n in range(2, 4096))]
    )

    def key(self) -> str:
        return "odd"

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


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return write_pack(Odd(), tmp_path_factory.mktemp("odd") / "pack", WriteOptions(processes=1))


@pytest.mark.parametrize("kind", ["spread", "one place", "no numbers"])
def test_many_classes_long_and_right_to_left_names(
    odd: Pack, tmp_path: Path, look: Opener, kind: str
) -> None:
    n = len(odd)
    xy = np.random.default_rng(0).normal(size=(2, n)).astype(np.float32)
    if kind == "one place":
        xy[:] = 3
    if kind == "no numbers":
        xy[:, ::7] = np.nan
    Selection(
        ids=odd.ids.to_pylist(),
        labels=odd.labels,
        keep=np.arange(n) % 5 > 0,
        score=np.arange(n, 0, -1).astype(np.float32),
        reason=[""] * n,
        fingerprint=odd.fingerprint,
        x=xy[0],
        y=xy[1],
        meta={"data": str(odd.root)},
    ).save(tmp_path / "odd.parquet")
    with create_server(Workspace([tmp_path / "odd.parquet"])).in_background() as url:
        page = look(url)
        page.wait_for_selector(".knobs[data-ready]")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        ground = (251, 251, 249)
        drawn = np.abs(picture(page)[110:650, 290:900] - ground).max(axis=2) > 20
        assert drawn.any()
        assert page.locator(".classes li").count() == 4096
        for number, name in enumerate((LONG, RIGHT_TO_LEFT)):
            page.keyboard.press("ArrowRight")
            page.wait_for_selector(f'.card.large .id:text-is("odd/{number:05d}")')
            assert page.inner_text(".card.large .name b") == name
            card = page.locator(".card.large").bounding_box()
            assert card is not None
            assert card["x"] + card["width"] <= 1280
        page.click("#tab-reading")
        page.wait_for_selector(".reading .bar-row")
        page.close()
