"""Every colouring of the map, in both themes and by both renderers, looks as it did.

A reference is the map in cells of 8 × 8 pixels, as a small picture. If a change is intended, copy
the new pictures from build/pictures to tests/app/pictures.
"""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from page_eyes import screenshot
from page_site import Made, Opener
from PIL import Image

from thresher.app.server import create_server
from thresher.app.workspace import Workspace
from thresher.data.overrides import OverrideLog
from thresher.data.selection import Selection
from thresher.paths import SelectionPaths

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytest_plugins = ("page_fixtures",)

POINTS = 300
CELL = 8
COLOURINGS = ("class", "decision", "cluster", "neighbourhood", "score", "votes", "comparison")
REFERENCES = Path(__file__).parent / "pictures"
WRITTEN = Path(__file__).parents[2] / "build" / "pictures"
MEAN_LIMIT, CELL_LIMIT = 0.5, 12
"""How far the mean of all cells and a single cell may be off, of 255."""
SHOW = """value => {
  const select = document.querySelector('#colour');
  select.value = value;
  select.dispatchEvent(new Event('change'));
  document.querySelector('.legend').style.visibility = 'hidden';
}"""


@pytest.fixture(scope="module")
def drawn_site(few_cifar: Made, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Points at seeded places with every column that a colouring needs, and another selection."""
    folder = tmp_path_factory.mktemp("drawn")
    pack = few_cifar.pack
    rows = pack.indices("train")[:POINTS]
    random = np.random.Generator(np.random.Philox(key=11))
    labels = pack.labels[rows]
    centres = random.uniform(-8, 8, (10, 2))
    xy = (centres[labels] + random.normal(size=(POINTS, 2))).astype(np.float32)

    def save(name: str, dropped: float) -> Selection:
        return Selection(
            ids=pack.ids.take(rows).to_pylist(),
            labels=labels,
            keep=random.random(POINTS) > dropped,
            score=random.random(POINTS).astype(np.float32),
            reason=[""] * POINTS,
            fingerprint=pack.fingerprint,
            x=xy[:, 0],
            y=xy[:, 1],
            cluster=random.integers(-1, 30, POINTS),
            votes=random.random(POINTS).astype(np.float32),
            meta={"data": str(pack.root), "method": "network"},
        ).save(folder / f"{name}.parquet")

    first, other = save("first", 0.3), save("other", 0.4)
    log = OverrideLog(SelectionPaths(folder / "first.parquet").overrides)
    log.decide(first.ids[:20], True, "", first.keep[:20].tolist())
    paths = [path for path in (first.path, other.path) if path is not None]
    with create_server(Workspace(paths)).in_background() as url:
        yield url


def cells(page: "Page") -> np.ndarray:
    """The map as mean colours of its cells, (45, 60, 3) uint8."""
    page.wait_for_selector(".map:not([data-stale]):not([data-thinned])")
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
    box = page.locator(".map").bounding_box()
    assert box is not None
    assert (box["width"], box["height"]) == (480, 360)
    shot = Image.open(io.BytesIO(screenshot(page, box))).convert("RGB")
    pixels = np.asarray(shot, np.float64).reshape(360 // CELL, CELL, 480 // CELL, CELL, 3)
    return np.round(pixels.mean(axis=(1, 3))).astype(np.uint8)


def differs(seen: np.ndarray, wanted: np.ndarray) -> bool:
    error = np.abs(seen.astype(int) - wanted.astype(int))
    return error.mean() > MEAN_LIMIT or error.max() > CELL_LIMIT


@pytest.mark.parametrize("renderer", ["canvas", "webgl2"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_colouring_looks_as_it_did(
    drawn_site: str, look: Opener, theme: str, renderer: str
) -> None:
    page = look(f"{drawn_site}&graphics={renderer}", width=1122, height=408, theme=theme)
    page.emulate_media(reduced_motion="reduce")
    page.wait_for_selector(f".map[data-renderer={renderer}]")
    page.wait_for_selector(".cell .among")
    page.click("#tab-compare")
    page.select_option("#compare-with", "other")
    page.wait_for_selector("#jaccard")
    # Toolbar and legend are as large as the fonts make them, so the map is fitted without them.
    page.evaluate("for (const e of document.querySelectorAll('.toolbar, .legend')) e.hidden = true")
    page.keyboard.press("f")
    page.wait_for_timeout(100)
    WRITTEN.mkdir(parents=True, exist_ok=True)
    wrong = []
    for colouring in COLOURINGS:
        page.evaluate(SHOW, colouring)
        seen = cells(page)
        name = f"{colouring}-{theme}.png"
        if renderer == "canvas":
            Image.fromarray(seen).save(WRITTEN / name)
        reference = REFERENCES / name
        if not reference.is_file() or differs(seen, np.asarray(Image.open(reference))):
            wrong.append(name)
    assert wrong == []


def test_a_wrong_colour_would_be_noticed() -> None:
    """Any two references differ by more than the tolerance."""
    names = [f"{colouring}-{theme}.png" for colouring in COLOURINGS for theme in ("light", "dark")]
    assert sorted(path.name for path in REFERENCES.iterdir()) == sorted(names)
    pictures = [np.asarray(Image.open(REFERENCES / name)) for name in names]
    for at, one in enumerate(pictures):
        assert all(differs(one, other) for other in pictures[:at]), names[at]
