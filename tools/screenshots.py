"""Make the pictures of the page for the README, into docs/images/.

    python tools/screenshots.py                     # Fashion-MNIST by its pixels, minutes
    python tools/screenshots.py SEL.parquet         # any selection with a map

The pictures show the real page in Chromium on a real selection: the map in light and in dark, and
a lasso with its gallery.
"""

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from thresher.app.server import create_server
from thresher.app.workspace import Workspace
from thresher.data.pack import Pack
from thresher.data.selection import Selection

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "images"
MADE = ROOT / "build" / "pictures" / "fashion.parquet"
SIZE = (1440, 860)
SAMPLES = 6_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("selection", nargs="?", type=Path)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        # A copy: the pictures must not add decisions to someone's selection.
        path = Path(folder) / "network.parquet"
        chosen = options.selection or MADE
        if options.selection is None and not MADE.exists():
            chosen.parent.mkdir(parents=True, exist_ok=True)
            fashion(chosen)
        for suffix in (".parquet", ".json"):
            shutil.copy(chosen.with_suffix(suffix), path.with_suffix(suffix))
        shoot(path, options.out)


def fashion(path: Path) -> None:
    """The network filter's map of Fashion-MNIST, with the pixels as features: no training."""
    from thresher.select.filters.network import NetworkFilter
    from thresher.select.inputs import FilterInputs
    from thresher.select.run import as_selection

    pack = Pack.open("fashion-mnist")
    rows = pack.indices("train")[:SAMPLES]
    pixels = pack.images(rows).reshape(len(rows), -1).astype(np.float32)
    ids = pack.ids.take(rows).to_pylist()
    inputs = FilterInputs(ids=ids, labels=pack.labels[rows], features=pixels, classes=pack.classes)
    as_selection(NetworkFilter(drop=0.06).fit_inputs(inputs), inputs, pack).save(path)


def shoot(path: Path, out: Path) -> None:
    from playwright.sync_api import sync_playwright

    served = create_server(Workspace([path]))
    with served.in_background() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        for theme in ("light", "dark"):
            page = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]})
            page.set_default_timeout(120_000)
            page.goto(f"{url}&theme={theme}")
            page.wait_for_selector(".map[data-drawn]")
            hover(page, path)
            page.screenshot(path=out / f"map-{theme}.png")
            print(f"{out}/map-{theme}.png", flush=True)
            if theme == "light":
                lasso(page)
                page.screenshot(path=out / "gallery.png")
                print(f"{out}/gallery.png", flush=True)
            else:
                page.select_option("#colour", "decision")
                page.fill("#share", "0.15")
                page.wait_for_selector("#result b")
                page.click("#tab-analysis")
                page.wait_for_timeout(1500)
                page.screenshot(path=out / "knobs.png")
                print(f"{out}/knobs.png", flush=True)
            page.close()
        browser.close()


def hover(page: "Page", path: Path) -> None:
    """Point at a dropped sample near the middle of the map."""
    selection = Selection.load(path)
    assert selection.x is not None
    assert selection.y is not None
    middle = np.hypot(selection.x - selection.x.mean(), selection.y - selection.y.mean())
    dropped = np.flatnonzero(~selection.keep)
    row = dropped[np.argsort(middle[dropped])[len(dropped) // 3]]
    page.fill("#search", selection.ids[row])
    page.press("#search", "Enter")
    page.wait_for_selector(".marks .ring")
    page.wait_for_timeout(1500)


def lasso(page: "Page") -> None:
    """Draw around the focused sample, and wait for the gallery."""
    box = page.locator(".map").bounding_box()
    ring = page.locator(".marks .ring")
    assert box is not None
    x = box["x"] + float(ring.get_attribute("cx") or 0)
    y = box["y"] + float(ring.get_attribute("cy") or 0)
    page.keyboard.press("Escape")
    page.keyboard.press("l")
    turns = np.linspace(0, 2 * np.pi, 40)
    radius = 85 + 14 * np.sin(3 * turns)
    ring_points = np.stack([x + radius * np.cos(turns), y + 0.8 * radius * np.sin(turns)], 1)
    page.mouse.move(*ring_points[0])
    page.mouse.down()
    for point in ring_points[1:]:
        page.mouse.move(*point)
        page.wait_for_timeout(15)
    page.mouse.up()
    page.wait_for_selector('.gallery-title:has-text("lassoed")')
    page.keyboard.press("l")
    page.mouse.move(box["x"] + 5, box["y"] + box["height"] - 100)
    page.wait_for_timeout(2000)


if __name__ == "__main__":
    main()
