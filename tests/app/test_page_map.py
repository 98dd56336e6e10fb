"""The map's two renderers, and moving around on it."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from page_eyes import focus_by_search, lonely, picture, screen_of, until, wait_for
from page_site import Opener, Site

from thresher.data.overrides import OverrideLog
from thresher.data.selection import Selection
from thresher.paths import SelectionPaths

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytest_plugins = ("page_fixtures",)

COLOURINGS = ["class", "decision", "cluster", "neighbourhood", "score"]
RENDERERS = ["canvas", "webgl2"]


def points(page: "Page") -> np.ndarray:
    """The pixels of the map, without what stands over it."""
    box = page.locator(".map").bounding_box()
    assert box is not None
    left, top = int(box["x"]) + 4, int(box["y"]) + 60
    width, height = int(box["width"]) - 8, int(box["height"]) - 120
    return picture(page, {"x": left, "y": top, "width": width, "height": height})


def opened(look: Opener, site: Site, renderer: str, **window: Any) -> "Page":
    page = look(f"{site.url}&graphics={renderer}", **window)
    assert page.locator(".map").get_attribute("data-renderer") == renderer
    return page


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_both_renderers_draw_the_same(site: Site, look: Opener, theme: str) -> None:
    """Every colouring and every way to draw dropped samples; one is the other's reference."""
    window = {"width": 1000, "height": 560, "theme": theme}
    canvas, webgl = (opened(look, site, renderer, **window) for renderer in RENDERERS)
    ground = np.array((251, 251, 249) if theme == "light" else (20, 23, 28), np.int16)
    for colour in COLOURINGS:
        for page in (canvas, webgl):
            page.select_option("#colour", colour)
        for style in ("grey", "ring", "plain"):
            for page in (canvas, webgl):
                page.select_option("#dropped-style", style)
            a, b = points(canvas), points(webgl)
            assert (np.abs(a - ground).max(axis=2) > 20).mean() > 0.05, "points are drawn"
            # Middles are rounded to a quarter of a pixel: only edges may differ.
            apart = np.abs(a - b)
            assert apart.mean() < 2, (colour, style)
            assert (apart.max(axis=2) > 80).mean() < 0.01, (colour, style)


def test_a_lost_context_is_restored(site: Site, look: Opener) -> None:
    page = opened(look, site, "webgl2")
    before = points(page)
    page.evaluate(
        """() => {
          const gl = document.querySelector('canvas.points').getContext('webgl2');
          globalThis.graphics = gl.getExtension('WEBGL_lose_context');
          graphics.loseContext();
        }"""
    )
    page.wait_for_timeout(200)
    # What changes meanwhile must not be lost.
    page.select_option("#colour", "decision")
    page.wait_for_timeout(200)
    page.evaluate("() => graphics.restoreContext()")
    until(lambda: np.abs(points(page) - before).mean() > 2)
    page.select_option("#colour", "class")
    until(lambda: np.abs(points(page) - before).mean() < 0.5)


@pytest.mark.parametrize("renderer", RENDERERS)
def test_the_wheel_zooms_to_the_pointer(site: Site, look: Opener, renderer: str) -> None:
    page = opened(look, site, renderer)
    selection = Selection.load(site.made.path)
    x, y = focus_by_search(page, selection.ids[7])
    ring = page.locator(".marks .ring")

    def place() -> tuple[float, float]:
        box = page.locator(".map").bounding_box()
        assert box is not None
        return (
            box["x"] + float(ring.get_attribute("cx") or 0),
            box["y"] + float(ring.get_attribute("cy") or 0),
        )

    def at_rest() -> tuple[float, float]:
        last, now = (0.0, 0.0), place()
        while now != last:
            page.wait_for_timeout(200)
            last, now = now, place()
        return now

    page.mouse.move(x, y)
    for _ in range(4):
        page.mouse.wheel(0, -240)
        page.wait_for_timeout(150)
    # A mouse stands on whole pixels, so the sample is up to one away from it, times the zoom.
    zoom = np.exp(4 * 240 * 0.0016)
    assert at_rest() == pytest.approx((x, y), abs=zoom)
    page.mouse.wheel(0, 480)
    page.wait_for_timeout(200)
    still = at_rest()
    assert still == pytest.approx((x, y), abs=np.sqrt(zoom)), "the pointer stays over the sample"
    page.wait_for_timeout(300)
    assert place() == still, "nothing moves on by itself"
    page.mouse.down()
    page.mouse.move(x + 50, y + 30, steps=4)
    page.mouse.up()
    moved = (still[0] + 50, still[1] + 30)
    until(lambda: place() == pytest.approx(moved, abs=1.5), "the map follows the hand")
    page.keyboard.press("f")
    until(lambda: place() == pytest.approx((x, y), abs=1), "fitted as at first")


def test_shift_and_drag_is_a_lasso_over_what_is_shown(site: Site, look: Opener) -> None:
    selection = Selection.load(site.made.path)
    page = look(site.url)
    screen = screen_of(page, site.made, selection.ids)
    page.keyboard.press("Escape")
    page.locator(".classes input").nth(3).uncheck()
    low, high = np.quantile(screen, 0.3, axis=0), np.quantile(screen, 0.7, axis=0)
    page.keyboard.down("Shift")
    page.mouse.move(*low)
    page.mouse.down()
    for corner in ((high[0], low[1]), high, (low[0], high[1]), low):
        page.mouse.move(*corner, steps=10)
    assert page.locator(".marks .lasso").count() == 1
    page.mouse.up()
    page.keyboard.up("Shift")
    page.wait_for_selector('.gallery-title:has-text("lassoed")')
    assert page.locator(".marks .lasso").count() == 0
    page.click("#drop")
    page.wait_for_selector("#numbers .part.hand")
    (entry,) = OverrideLog(SelectionPaths(site.made.path).overrides).read()
    chosen = np.isin(selection.ids, entry.ids)
    assert not (selection.labels[chosen] == 3).any(), "hidden samples are not picked"
    surely = ((screen > low + 4) & (screen < high - 4)).all(axis=1) & (selection.labels != 3)
    maybe = ((screen > low - 4) & (screen < high + 4)).all(axis=1)
    assert (surely <= chosen).all()
    assert (chosen <= maybe).all()


def test_a_hidden_class_is_neither_drawn_nor_found(site: Site, look: Opener) -> None:
    selection = Selection.load(site.made.path)
    page = look(site.url)
    screen = screen_of(page, site.made, selection.ids)
    page.keyboard.press("Escape")
    box = page.locator(".map").bounding_box()
    assert box is not None
    row = lonely(screen, np.flatnonzero(selection.keep), dict(box), 16)
    page.mouse.move(*screen[row])
    page.wait_for_selector(f'.card.hover .id:text-is("{selection.ids[row]}")')
    page.mouse.move(box["x"] + 5, box["y"] + box["height"] - 70)
    page.wait_for_selector(".card.hover", state="hidden")
    page.locator(".classes input").nth(int(selection.labels[row])).uncheck()
    column, line = np.floor(screen[row]).astype(int)
    assert (picture(page)[line, column] == (251, 251, 249)).all()
    page.mouse.move(*screen[row])
    page.wait_for_timeout(300)
    assert page.locator(".card.hover").is_hidden()


@pytest.mark.parametrize("renderer", RENDERERS)
def test_dense_screens_get_all_their_pixels(site: Site, chromium: "Browser", renderer: str) -> None:
    page = chromium.new_page(viewport={"width": 1000, "height": 640}, device_scale_factor=2)
    try:
        page.goto(f"{site.url}&graphics={renderer}")
        page.wait_for_selector(".map[data-drawn]")
        size = page.locator("canvas.points").evaluate(
            "c => [c.width, c.height, c.clientWidth, c.clientHeight]"
        )
        assert size[:2] == [2 * size[2], 2 * size[3]]
        page.set_viewport_size({"width": 900, "height": 600})
        canvas = page.locator("canvas.points")
        after = [2 * (size[2] - 100), size[2] - 100]
        until(lambda: canvas.evaluate("c => [c.width, c.clientWidth]") == after)
    finally:
        page.close()


@pytest.mark.parametrize("renderer", RENDERERS)
def test_density_shows_where_points_overlap(site: Site, look: Opener, renderer: str) -> None:
    page = opened(look, site, renderer)
    plain = points(page)
    page.click("#density")
    assert page.get_attribute("#density", "aria-pressed") == "true"
    dense = points(page)
    assert np.abs(plain - dense).mean() > 1
    drawn = np.abs(dense - (251, 251, 249)).max(axis=2)
    middle = drawn[drawn.shape[0] // 3 : -drawn.shape[0] // 3, drawn.shape[1] // 3 : -300]
    assert middle.mean() > 2 * drawn.mean(), "more where more points are"
    page.fill("#share", "0.3")
    selection = Selection.load(site.made.path)
    wait_for(page, "dropped", int(site.made.graph.noise(site.made.graph.eps_for_share(0.3)).sum()))
    assert len(selection.ids) == 3000
    page.click("#density")
    page.click("#reset")
    assert np.abs(points(page) - plain).mean() < 0.5


def test_the_first_fit_leaves_room_for_the_toolbar(site: Site, look: Opener) -> None:
    selection = Selection.load(site.made.path)
    page = look(site.url, width=1100, height=800)
    screen = screen_of(page, site.made, selection.ids)
    toolbar = page.locator(".toolbar").bounding_box()
    legend = page.locator(".legend").bounding_box()
    assert toolbar is not None
    assert legend is not None
    assert screen[:, 1].min() > toolbar["y"] + toolbar["height"]
    assert screen[:, 1].max() < legend["y"]
