"""The static export: the same page, from a plain file server, read-only."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
from page_eyes import wait_for
from page_site import Made, Opener, Serve

from thresher.app.export import export_page
from thresher.app.filter_preview import PreviewSettings
from thresher.app.workspace import Workspace
from thresher.data.overrides import OverrideLog
from thresher.data.selection import Selection
from thresher.paths import SelectionPaths

pytest_plugins = ("page_fixtures",)

Run = Callable[..., CompletedProcess[str]]


@pytest.fixture
def exported(some_cifar: Made, tmp_path: Path, thresher: Run) -> tuple[Made, Path]:
    """An export, made by the command line, of a selection with one decision, and of another."""
    made = some_cifar.copy(tmp_path)
    sidecar = made.path.with_suffix(".json")
    meta = {**json.loads(sidecar.read_text()), "like": str(made.path), "network": f"hf:{tmp_path}"}
    sidecar.write_text(json.dumps(meta))
    selection = Selection.load(made.path)
    log = OverrideLog(SelectionPaths(made.path).overrides)
    log.decide(selection.ids[:1], not selection.keep[0], "exported", [bool(selection.keep[0])])
    other = some_cifar.copy(tmp_path, "other")
    done = thresher("view", made.path, other.path, "--export", tmp_path / "site", "--json")
    assert done.returncode == 0, done.stderr
    return made, tmp_path / "site"


def test_an_export_opens_from_a_plain_file_server(
    exported: tuple[Made, Path], serve: Serve, look: Opener, thresher: Run
) -> None:
    made, folder = exported
    selection = Selection.load(made.path)
    page = look(serve(folder))
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
    for place in (made.pack.root, made.path.parent):
        assert str(place) not in text, "an export tells nothing of this machine"
    again = thresher("view", made.path, "--export", folder)
    assert again.returncode == 2
    assert "exists already" in again.stderr


@pytest.fixture
def tied(some_cifar: Made, tmp_path: Path) -> Path:
    """A selection whose map is a grid and whose scores are a few numbers: nearly all are ties."""
    selection = Selection.load(some_cifar.path)
    assert selection.x is not None
    assert selection.y is not None
    score = np.round(4 * selection.score).astype(np.float32)
    score[::50] = np.nan
    replace(
        selection,
        x=np.round(3 * selection.x),
        y=np.round(3 * selection.y),
        score=score,
        path=None,
    ).save(tmp_path / "tied.parquet")
    return tmp_path / "tied.parquet"


def test_sliders_of_an_export_drop_what_the_library_drops(
    tied: Path, tmp_path: Path, serve: Serve, look: Opener
) -> None:
    workspace = Workspace([tied])
    export_page(workspace, tmp_path / "site")
    page = look(serve(tmp_path / "site"))
    page.wait_for_selector(".filter-panel[data-ready]")
    for method in ("network", "score"):
        page.select_option("#method", method)
        for share in (0.013, 0.05, 0.137, 0.3, 0.6):
            page.fill("#share", str(share))
            settings = PreviewSettings(method=method, share=share)
            expected = workspace.previewer().preview(settings).keep
            wait_for(page, "dropped", int((~expected).sum()))
            per_class = page.locator(".classes .number b").all_inner_texts()
            dropped = np.bincount(workspace.view().selection.labels[~expected], minlength=10)
            assert [int(text.replace(",", "")) for text in per_class] == dropped.tolist()
    page.select_option("#method", "network")
    page.check("#knee")
    knee = workspace.previewer().preview(PreviewSettings(knee=True)).keep
    wait_for(page, "dropped", int((~knee).sum()))
    assert page.inner_text("#eps-value") == "per class"
