"""What the colours on the map mean: votes, dropped samples, two selections compared."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from page_eyes import blended, colour_at, lonely, picture, screen_of
from page_site import Made, Opener, Serve, Site

from thresher.data.selection import Selection

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytest_plugins = ("page_fixtures",)

CLASSES = ["#4c86c6", "#ef8b3a", "#e0565b", "#45b3a8", "#5aa64e",
           "#e2bd3a", "#a874c4", "#f58fb0", "#a5745a", "#7d8be8"]  # fmt: skip
GREY = "#b3b9c2"
NEAR = 14
"""How far a channel may be off: a point's middle falls between pixels."""


@pytest.fixture
def voted(some_cifar: Made, tmp_path: Path, serve: Serve) -> Site:
    """Selection A with vote shares, and B, which drops some others; both open."""
    made = some_cifar.copy(tmp_path, "a")
    whole = Selection.load(made.path)
    random = np.random.default_rng(3)
    votes = (random.permutation(len(whole.ids)) / (len(whole.ids) - 1)).astype(np.float32)
    replace(whole, votes=votes, path=None).save(tmp_path / "voted.parquet")
    keep = whole.keep.copy()
    keep[np.flatnonzero(~keep)[::2]] = True
    keep[np.flatnonzero(whole.keep)[::9]] = False
    replace(whole, keep=keep, path=None).save(tmp_path / "b.parquet")
    made = replace(made, path=tmp_path / "voted.parquet")
    return Site(serve(made.path, tmp_path / "b.parquet"), made)


def places(page: "Page", site: Site) -> tuple[Selection, np.ndarray, dict[str, Any]]:
    """The selection, its samples' places on the screen, and the map's box."""
    selection = Selection.load(site.made.path)
    screen = screen_of(page, site.made, selection.ids)
    page.keyboard.press("Escape")
    page.wait_for_selector(".marks .ring", state="detached")
    box = page.locator(".map").bounding_box()
    assert box is not None
    return selection, screen, dict(box)


def test_vote_share_is_coloured_by_rank(voted: Site, look: Opener) -> None:
    page = look(voted.url)
    selection, screen, box = places(page, voted)
    page.select_option("#colour", "votes")
    page.wait_for_selector(".legend .ramp")
    assert page.locator(".legend .ramp").count() == 1
    assert page.inner_text(".legend").split()[0] == "0.000"
    assert "1.00" in page.inner_text(".legend")
    seen = picture(page)
    assert selection.votes is not None
    by_votes = np.argsort(selection.votes)
    few, many = (lonely(screen, rows, box, 12) for rows in (by_votes, by_votes[::-1]))
    assert selection.votes[few] < 0.2 < 0.8 < selection.votes[many]
    low, high = colour_at(seen, screen[few]), colour_at(seen, screen[many])
    # From dark violet to yellow: more votes, more green and red, less of a difference to blue.
    assert low[1] < 120 < 180 < high[1]
    assert low[2] > low[1]
    assert high[2] < high[1]


def test_dropped_samples_are_grey_outlined_or_like_the_rest(voted: Site, look: Opener) -> None:
    page = look(voted.url)
    selection, screen, box = places(page, voted)
    row = lonely(screen, np.flatnonzero(~selection.keep), box, 14)
    kept = lonely(screen, np.flatnonzero(selection.keep), box, 8)
    own = CLASSES[selection.labels[row]]
    wanted = {"grey": blended(GREY, 0.6), "plain": blended(own, 0.82), "ring": blended(own, 0)}
    for style, colour in wanted.items():
        page.select_option("#dropped-style", style)
        seen = picture(page)
        assert np.abs(colour_at(seen, screen[row]) - colour).max() <= NEAR, style
        beside = colour_at(seen, screen[kept])
        assert np.abs(beside - blended(CLASSES[selection.labels[kept]], 0.82)).max() <= NEAR
    # A ring has its class's colour around an empty middle.
    column, line = np.floor(screen[row]).astype(int)
    around = seen[line - 6 : line + 7, column - 6 : column + 7].reshape(-1, 3)
    assert np.abs(around - blended(own, 1)).max(axis=1).min() <= 2 * NEAR
    assert page.locator(".legend .swatch.hollow").count() == 1
    # Each colouring has a choice of its own.
    page.select_option("#colour", "score")
    assert page.input_value("#dropped-style") == "plain"
    page.select_option("#colour", "class")
    assert page.input_value("#dropped-style") == "ring"


def test_two_selections_side_by_side(voted: Site, look: Opener) -> None:
    page = look(voted.url)
    a, screen, box = places(page, voted)
    b = Selection.load(voted.made.path.with_name("b.parquet"))
    page.click("#tab-compare")
    page.select_option("#compare-with", "b")
    page.wait_for_selector("#jaccard")
    groups = {
        "both keep": a.keep & b.keep,
        "both drop": ~a.keep & ~b.keep,
        "only A drops": ~a.keep & b.keep,
        "only B drops": a.keep & ~b.keep,
    }
    for name, rows in groups.items():
        text = page.locator(f'[data-group="{name}"] b').inner_text()
        assert int(text.replace(",", "")) == rows.sum() > 0
    union = (~a.keep | ~b.keep).sum()
    share = 100 * groups["both drop"].sum() / union
    assert f"both drop {share:.1f} %" in page.inner_text("#jaccard")

    assert page.input_value("#colour") == "comparison"
    seen = picture(page)
    for name, colour in (("only A drops", "#e8643c"), ("only B drops", "#2fa866")):
        row = lonely(screen, np.flatnonzero(groups[name]), box, 8)
        assert np.abs(colour_at(seen, screen[row]) - blended(colour, 0.85)).max() <= NEAR, name

    for side, name in enumerate(("only A drops", "only B drops")):
        ids = {a.ids[row] for row in np.flatnonzero(groups[name])}
        labels = page.locator(".pair > div").nth(side).locator("button").all()
        shown = {str(label.get_attribute("aria-label")).split(", ")[-1] for label in labels}
        assert shown <= ids
        assert len(shown) == min(60, len(ids))
    page.click('[data-group="only A drops"]')
    page.wait_for_selector(
        f'.gallery-title:has-text("{groups["only A drops"].sum()} only A drops")'
    )
