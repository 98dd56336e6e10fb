"""The static export: the same page, from a plain file server, read-only."""

import functools
import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
from page_site import Made, Opener

from thresher.data.overrides import OverrideLog
from thresher.data.selection import Selection
from thresher.paths import SelectionPaths

pytest_plugins = ("page_fixtures",)

Run = Callable[..., CompletedProcess[str]]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def exported(some_cifar: Made, tmp_path: Path, thresher: Run) -> tuple[Made, Path]:
    """An export, made by the command line, of a selection with one decision, and of another."""
    made = some_cifar.copy(tmp_path)
    selection = Selection.load(made.path)
    log = OverrideLog(SelectionPaths(made.path).overrides)
    log.decide(selection.ids[:1], not selection.keep[0], "exported", [bool(selection.keep[0])])
    other = some_cifar.copy(tmp_path, "other")
    done = thresher("view", made.path, other.path, "--export", tmp_path / "site", "--json")
    assert done.returncode == 0, done.stderr
    return made, tmp_path / "site"


@pytest.fixture
def address(exported: tuple[Made, Path]) -> Iterator[str]:
    handler = functools.partial(_Quiet, directory=str(exported[1]))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


def test_an_export_opens_from_a_plain_file_server(
    exported: tuple[Made, Path], address: str, look: Opener, thresher: Run
) -> None:
    made, folder = exported
    selection = Selection.load(made.path)
    page = look(address)
    dropped = page.locator("#numbers .part.dropped")
    assert dropped.get_attribute("data-count") == str(selection.dropped)
    assert page.locator("#numbers .part.hand").get_attribute("data-count") == "1"
    assert page.locator("#undo").count() == page.locator("#use").count() == 0

    page.keyboard.press("ArrowRight")
    row = int(np.argsort(-selection.score, kind="stable")[0])
    page.wait_for_selector(f'.card.large .id:text-is("{selection.ids[row]}")')
    page.wait_for_selector(".card.large canvas.image[data-shown]")
    drawn = page.locator(".card.large canvas.image").evaluate(
        "c => Array.from(c.getContext('2d').getImageData(0, 0, c.width, c.height).data)"
    )
    pixels = np.array(drawn, np.float64).reshape(32, 32, 4)[:, :, :3]
    original = made.pack.view(int(made.pack.positions([selection.ids[row]])[0]))
    assert np.abs(pixels - original).mean() < 12, "the right image, up to its compression"

    page.keyboard.press("d")
    page.fill("#share", "0.3")
    noise = made.graph.noise(made.graph.eps_for_share(0.3))
    expected = noise.copy()
    expected[0] = not selection.keep[0]
    page.wait_for_selector(f'#numbers .part.dropped[data-count="{expected.sum()}"]')
    page.click("#reset")
    page.click("#tab-compare")
    page.select_option("#compare-with", "other")
    page.wait_for_selector("#jaccard")
    page.click("#tab-log")
    page.wait_for_selector('.history q:text-is("exported")')
    assert len(OverrideLog(SelectionPaths(made.path).overrides).read()) == 1

    text = "".join(p.read_text() for p in folder.rglob("*.json")) + page.content()
    assert str(made.pack.root) not in text, "an export tells nothing of this machine"
    again = thresher("view", made.path, "--export", folder)
    assert again.returncode == 2
    assert "exists already" in again.stderr
