"""The gallery: what a tile says, and groups of suspects."""

import re

import numpy as np
from page_eyes import until, wait_for
from page_site import Opener, Site

from thresher.app.map_layout import MapLayout, neighbourhood_labels
from thresher.data.selection import Selection

pytest_plugins = ("page_fixtures",)


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
    page.select_option("#sort", "neighbourhood")
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

    def focused() -> int:
        return selection.ids.index(page.inner_text(".card.large .id"))

    def headings() -> list[str]:
        return page.locator(".gallery .section:visible").all_inner_texts()

    until(lambda: (selection.labels[focused()], among[focused()]) != (label, other))
    until(lambda: any(names[selection.labels[focused()]] in text for text in headings()))
    page.keyboard.press("End")
    until(lambda: bool(re.fullmatch(r"[\d,]+ \w+, among its own", headings()[-1])))


def test_a_review_of_dropped_samples_goes_on_after_each_decision(site: Site, look: Opener) -> None:
    selection = Selection.load(site.made.path)
    order = [row for row in np.argsort(-selection.score, kind="stable") if not selection.keep[row]]
    dropped = [selection.ids[row] for row in order]
    page = look(site.url)
    page.select_option("#show", "dropped")
    page.focus("#gallery")
    for _ in range(20):
        page.keyboard.press("ArrowRight")
    page.wait_for_selector(f'.card.large .id:text-is("{dropped[19]}")')
    scrolled = page.locator("#gallery").evaluate("gallery => gallery.scrollTop")
    assert scrolled > 0
    # The kept sample leaves the gallery. What follows it is next, and what was in sight stays.
    page.keyboard.press("k")
    wait_for(page, "dropped", len(dropped) - 1)
    assert page.locator("#gallery").evaluate("gallery => gallery.scrollTop") == scrolled
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(f'.card.large .id:text-is("{dropped[20]}")')
    page.keyboard.press("k")
    wait_for(page, "dropped", len(dropped) - 2)
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector(f'.card.large .id:text-is("{dropped[18]}")')
    assert np.flatnonzero(Selection.load(site.made.path).keep != selection.keep).tolist() == sorted(
        int(row) for row in order[19:21]
    )
