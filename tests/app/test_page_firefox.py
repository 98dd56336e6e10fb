"""The page in Firefox: the map is drawn, and an image is judged with the keyboard."""

from collections.abc import Iterator

import numpy as np
import pytest
from marionette import Firefox, find_firefox, running_firefox
from page_site import Site

from thresher.data.overrides import OverrideLog
from thresher.data.selection import Selection
from thresher.paths import SelectionPaths

pytest_plugins = ("page_fixtures",)

COLOURS = """(() => {
  const points = document.querySelector('.map canvas.points');
  const copy = document.createElement('canvas');
  [copy.width, copy.height] = [points.width, points.height];
  const context = copy.getContext('2d');
  context.drawImage(points, 0, 0);
  const data = new Uint32Array(context.getImageData(0, 0, copy.width, copy.height).data.buffer);
  return new Set(data).size;
})()"""


@pytest.fixture
def firefox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firefox]:
    program = find_firefox()
    if program is None:
        pytest.skip("firefox-esr is not installed")
    with running_firefox(program, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.mark.slow  # starts a browser
@pytest.mark.xdist_group("browser")
def test_the_map_is_drawn_and_a_decision_is_stored(few_site: Site, firefox: Firefox) -> None:
    selection = Selection.load(few_site.made.path)
    firefox.open(few_site.url)
    assert "Firefox" in firefox.evaluate("navigator.userAgent")
    firefox.wait_for("document.querySelector('.map[data-drawn]') !== null")
    # Ten classes over a ground, blended at the edges: a blank map has one colour.
    assert firefox.evaluate(COLOURS) > 30
    firefox.wait_for("document.querySelector('.filter-panel[data-ready]') !== null")
    firefox.wait_for("document.querySelectorAll('.cell canvas[data-shown]').length > 8")

    firefox.press("\ue014")  # the right arrow: the most suspicious sample
    row = int(np.argsort(-selection.score, kind="stable")[0])
    id = firefox.wait_for("document.querySelector('.card.large .id')?.textContent")
    assert id == selection.ids[row]
    firefox.press("k" if not selection.keep[row] else "d")
    firefox.wait_for("document.querySelector('#numbers .part.hand[data-count=\"1\"]') !== null")
    (entry,) = OverrideLog(SelectionPaths(few_site.made.path).overrides).read()
    assert (list(entry.ids), entry.keep) == ([id], not selection.keep[row])

    # The tabs, and the other theme with its light-dark() colours.
    firefox.evaluate("document.querySelector('#tab-analysis').click()")
    assert firefox.wait_for("document.querySelectorAll('.bar-row').length") == 10
    grounds = set()
    for _ in range(2):
        firefox.evaluate("document.querySelector('#theme').click()")
        grounds.add(firefox.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert grounds == {"rgb(15, 18, 22)", "rgb(241, 241, 238)"}
