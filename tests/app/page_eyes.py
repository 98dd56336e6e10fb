"""Looking at the page: what it says, where samples stand on the screen, which colour they have."""

import base64
import io
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from page_site import Made

if TYPE_CHECKING:
    from playwright.sync_api import CDPSession, FloatRect, Page

_sessions: "weakref.WeakKeyDictionary[Page, CDPSession]" = weakref.WeakKeyDictionary()


def counts(page: "Page") -> dict[str, int]:
    """What the header says: kept, dropped and, if any, by hand."""
    parts = page.locator("#numbers .part").all()
    return {
        str(part.get_attribute("class")).split()[1]: int(part.get_attribute("data-count") or -1)
        for part in parts
    }


def wait_for(page: "Page", kind: str, value: int) -> None:
    page.wait_for_selector(f'#numbers .part.{kind}[data-count="{value}"]')


def until(holds: Callable[[], bool], what: str = "") -> None:
    """Look again until it holds: the page moves in its own time."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def focus_by_search(page: "Page", id: str) -> tuple[float, float]:
    """Look a sample up by its id; gives where the ring around it stands on the screen."""
    page.fill("#search", id)
    page.press("#search", "Enter")
    page.wait_for_selector(f'.card.large .id:text-is("{id}")')
    page.wait_for_selector(".marks .ring")
    box = page.locator(".map").bounding_box()
    assert box is not None
    ring = page.locator(".marks .ring")
    return (
        box["x"] + float(ring.get_attribute("cx") or 0),
        box["y"] + float(ring.get_attribute("cy") or 0),
    )


def screen_of(page: "Page", made: Made, ids: list[str]) -> np.ndarray:
    """Every sample's place on the screen, (n, 2), learnt from where three of them are shown."""
    rows = [int(np.argmin(made.xy[:, 0])), int(np.argmax(made.xy[:, 0]))]
    rows.append(int(np.argmax(made.xy[:, 1])))
    shown = np.array([focus_by_search(page, ids[row]) for row in rows])
    known = np.column_stack([made.xy[rows], np.ones(3)])
    affine = np.linalg.solve(known.astype(np.float64), shown)
    return np.column_stack([made.xy, np.ones(len(made.xy))]) @ affine


def lonely(screen: np.ndarray, rows: np.ndarray, box: dict[str, Any], gap: float) -> int:
    """A row among `rows` on the open map whose nearest neighbour is `gap` pixels away or more."""
    from scipy.spatial import KDTree

    x, y = screen.T
    alone = (box["x"] + 60 < x) & (x < box["x"] + box["width"] - 60)
    alone &= (box["y"] + 70 < y) & (y < box["y"] + box["height"] - 60)
    alone &= KDTree(screen).query(screen, k=2)[0][:, 1] > gap
    found = rows[alone[rows]]
    assert len(found), "no sample stands alone on this map"
    return int(found[0])


def screenshot(page: "Page", clip: "FloatRect | None" = None) -> bytes:
    """Return a PNG of the window, written in half of the time that Playwright's takes."""
    if page not in _sessions:
        _sessions[page] = page.context.new_cdp_session(page)
    options: dict[str, Any] = {"format": "png", "optimizeForSpeed": True}
    if clip is not None:
        options["clip"] = {**clip, "scale": 1}
    return base64.b64decode(_sessions[page].send("Page.captureScreenshot", options)["data"])


def picture(page: "Page", clip: "FloatRect | None" = None) -> np.ndarray:
    """Pixels of the window, (height, width, 3), once the map shows what the page says."""
    from PIL import Image

    # A slow machine shows a sample of the points for a moment after a change.
    page.wait_for_selector(".map:not([data-stale]):not([data-thinned])")
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
    image = Image.open(io.BytesIO(screenshot(page, clip))).convert("RGB")
    return np.asarray(image).astype(np.int16)


def colour_at(picture: np.ndarray, place: np.ndarray) -> np.ndarray:
    """The colour under a place on the screen, (3,)."""
    column, row = np.floor(place).astype(int)
    return picture[row, column]


def blended(colour: str, opacity: float, ground: str = "#fbfbf9") -> np.ndarray:
    """A colour drawn over the map's ground, (3,)."""
    over, under = (np.array([int(c[n : n + 2], 16) for n in (1, 3, 5)]) for c in (colour, ground))
    return opacity * over + (1 - opacity) * under
