"""Make the pictures and the recording of the page for the README, into docs/images/.

    python tools/screenshots.py --run RUN           # a map of CIFAR-10 by a network trained on it
    python tools/screenshots.py SEL.parquet         # any selection with a map

The pictures show the real page in Chromium on a real selection: the map, a lasso with its gallery,
the filter's controls and the analysis on the dark page, and a recording in which eps is moved and
images are judged.
"""

import argparse
import io
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
SIZE = (1440, 860)
SAMPLES = 6_000
RECORDED = (960, 573)
"""Size of the recording."""
FRAME_MS = 110


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("selection", nargs="?", type=Path)
    parser.add_argument("--run", type=Path, help="a training run on cifar10")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    if (options.selection is None) == (options.run is None):
        parser.error("give a selection, or --run")
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        # A copy: the pictures must not add decisions to someone's selection.
        path = Path(folder) / "network.parquet"
        if options.selection is None:
            cifar(options.run, path)
        else:
            for suffix in (".parquet", ".json"):
                shutil.copy(options.selection.with_suffix(suffix), path.with_suffix(suffix))
        shoot(path, options.out)


def cifar(run: Path, path: Path) -> None:
    """The network filter's map of some training images of CIFAR-10, by the features of a run."""
    from thresher.models.embed import features_of_run
    from thresher.select.filters.network import NetworkFilter
    from thresher.select.inputs import FilterInputs
    from thresher.select.run import as_selection

    pack = Pack.open("cifar10")
    rows = pack.indices("train")[:SAMPLES]
    features = np.asarray(features_of_run(run, pack).array[:SAMPLES], np.float32)
    ids = pack.ids.take(rows).to_pylist()
    labels, classes = pack.labels[rows], pack.classes
    inputs = FilterInputs(ids=ids, labels=labels, features=features, classes=classes)
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
            if theme == "light":
                hover(page, path)
                page.screenshot(path=out / "map-light.png")
                print(f"{out}/map-light.png", flush=True)
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
        page = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]})
        page.goto(f"{url}&theme=light")
        page.wait_for_selector(".map[data-drawn]")
        record(page, path, out / "page.webp")
        browser.close()


def record(page: "Page", path: Path, file: Path) -> None:
    """Record how eps is moved and how images are judged."""
    from PIL import Image

    frames: list[Image.Image] = []

    def frame(count: int = 1, wait: int = 60) -> None:
        page.wait_for_timeout(wait)
        image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        frames.extend([image.resize(RECORDED, Image.Resampling.LANCZOS)] * count)

    page.select_option("#colour", "decision")
    frame(8, 1000)
    start = int(page.input_value("#eps"))
    for step in [*range(start, start + 60, 6), *range(start + 60, start - 60, -6), start]:
        page.fill("#eps", str(step))
        frame()
    frame(6)
    page.select_option("#colour", "class")
    hover(page, path)
    frame(8)
    lasso(page)
    frame(8)
    for key in ("ArrowRight", "d", "ArrowRight", "k", "ArrowRight", "d", "ArrowRight", "u"):
        page.keyboard.press(key)
        frame(4, 250)
    frame(10)
    options = {"duration": FRAME_MS, "loop": 0, "quality": 55, "method": 4}
    frames[0].save(file, save_all=True, append_images=frames[1:], **options)
    print(f"{file}: {len(frames)} frames, {file.stat().st_size / 1e6:.1f} MB", flush=True)


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
