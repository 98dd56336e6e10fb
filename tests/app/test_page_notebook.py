"""The page in a notebook: a real kernel, the widget's messages, and a browser without a port."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pyarrow as pa
import pytest
from notebook_host import ADDRESS, VIEW, Kernel, NotebookPage
from page_site import Made

from thresher.app import notebook
from thresher.data.overrides import OverrideLog
from thresher.data.selection import Selection
from thresher.errors import ThresherError
from thresher.paths import SelectionPaths

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytest_plugins = ("page_fixtures",)


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    pytest.importorskip("anywidget")
    manager = pytest.importorskip("jupyter_client.manager")
    running, client = manager.start_new_kernel()
    yield Kernel(client)
    client.stop_channels()
    running.shutdown_kernel(now=True)


@pytest.fixture
def made(few_cifar: Made, tmp_path: Path) -> Made:
    return few_cifar.copy(tmp_path)


def show(kernel: Kernel, made: Made) -> str:
    """Run the cell of the documentation and return the id of the widget that it displays."""
    code = f"from thresher import Selection\nSelection.load({str(made.path)!r}).show(height=700)"
    shown = kernel.run(code)
    return str(shown[VIEW]["model_id"])


@pytest.mark.slow  # a kernel and a browser
def test_a_widget_shows_the_page_and_stores_decisions_without_a_port(
    kernel: Kernel, made: Made, chromium: "Browser"
) -> None:
    comm = show(kernel, made)
    assert show(kernel, made) == comm, "a second call shows the same widget"
    window = NotebookPage(kernel, comm, chromium)
    window.until(lambda: window.shows("#page.ready .map[data-drawn]"), "the map")
    before = Selection.load(made.path)
    assert window.count("dropped") == int((~before.keep).sum())
    assert window.frame.evaluate("innerHeight") == 700

    # A decision in the page is stored as one of a served page, and an image is shown.
    window.until(lambda: window.shows(".cell"), "the gallery")
    window.frame.locator(".cell").first.click()
    window.until(lambda: window.shows(".card.large img"), "the card")
    loaded = "document.querySelector('.card.large img').naturalWidth"
    window.until(lambda: window.frame.evaluate(loaded) == 32, "the image")
    row = window.frame.locator(".card.large img").get_attribute("data-row")
    kept = bool(before.keep[int(row or -1)])
    window.page.keyboard.press("d" if kept else "k")
    window.until(lambda: window.shows(".part.hand"), "the decision")
    after = Selection.load(made.path)
    assert np.flatnonzero(after.keep != before.keep).tolist() == [int(row or -1)]

    # Decisions of other processes appear.
    others = [id for id, keep in zip(after.ids, after.keep, strict=True) if keep][:20]
    log = OverrideLog(SelectionPaths(made.path).overrides)
    log.decide(others, False, "by a script", [True] * len(others))
    window.until(lambda: window.count("hand") == 21, "the decisions of another process")

    # A message that a notebook server would not take is refused in one sentence.
    large = "fetch('./api/overrides', { method: 'POST', body: new Uint8Array(10 * 2 ** 20) })"
    refused = window.frame.evaluate(f"{large}.then((answer) => answer.json())")
    assert refused["error"].startswith("This change is too large for a notebook: pick fewer")

    # A saved selection can be opened in the same cell.
    body = json.dumps({"share": 0.1, "name": "tenth"})
    window.frame.evaluate("(body) => { fetch('./api/use', { method: 'POST', body }) }", body)
    window.until(lambda: window.shows("#selection option[value=tenth]"), "the new selection")
    window.frame.locator("#selection").select_option("tenth")
    window.until(lambda: window.frame.title() == "tenth · Thresher", "its page")
    window.until(lambda: window.shows(".part.dropped"), "its numbers")
    assert window.count("dropped") == Selection.load(made.path.with_name("tenth.parquet")).dropped
    asked = [id for id in window.sent if not id.endswith("/frame")]
    assert len(set(asked)) == len(asked), "its requests have other numbers than the first page's"

    network = {url for url in window.requests if url.startswith("http")}
    assert network == {ADDRESS, f"{ADDRESS}widget.js"}, "nothing else went over the network"
    window.page.close()


@pytest.mark.slow  # starts a kernel
def test_bad_messages_are_answered_in_one_sentence(kernel: Kernel, made: Made) -> None:
    comm = show(kernel, made)
    for content in ["text", {}, {"id": "1"}, None]:
        kernel.send(comm, content, [])
    missing = kernel.ask(comm, "./api/sample/none?")
    assert missing["content"]["status"] == 404
    assert "none" in json.loads(missing["bodies"][0].tobytes())["error"]
    refused = kernel.ask(comm, "./api/overrides?", "POST", b'{"ids": 3}')
    assert refused["content"]["status"] == 400
    assert "ids must be a list" in json.loads(refused["bodies"][0].tobytes())["error"]
    assert not SelectionPaths(made.path).overrides.exists()
    assert "not a request" in kernel.printed
    kernel.run("from thresher.app import notebook; notebook.close()")


def test_without_anywidget_there_is_a_frame_and_a_sentence(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "anywidget", None)
    frame = notebook.show(Selection.load(made.path), height=500)
    again = notebook.show(Selection.load(made.path))
    assert isinstance(frame, notebook.NotebookFrame)
    assert isinstance(again, notebook.NotebookFrame)
    try:
        assert frame.url == again.url
        html = frame._repr_html_()
        assert frame.url in html
        assert 'height="500"' in html
        assert "thresher-ml[notebook]" in html
        policy = httpx.get(frame.url).headers["content-security-policy"]
        assert "frame-ancestors http://localhost:*" in policy
        # A selection that is made again under the same name is another one.
        old = Selection.load(made.path)
        for file in made.path.parent.glob("chosen.*"):
            file.unlink()
        with pytest.raises(ThresherError, match="there is no selection at"):
            notebook.show(old)
        replace(old, keep=~old.keep, path=None).save(made.path)
        new = notebook.show(Selection.load(made.path))
        assert isinstance(new, notebook.NotebookFrame)
        points = httpx.get(new.url.replace("/?", "/api/points?")).content
        shown = pa.ipc.open_stream(points).read_all()["keep"].to_numpy()
        assert np.array_equal(shown, ~old.keep)
    finally:
        notebook.close()


def test_a_selection_that_is_not_saved_is_refused() -> None:
    with pytest.raises(ThresherError, match="not saved"):
        notebook.show(Selection([], np.array([], int), np.array([], bool), np.array([]), [], "f"))
