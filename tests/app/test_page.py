"""The page in a real browser, against the real server, on real CIFAR-10 images."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from page_eyes import counts, focus_by_search, lonely, screen_of, wait_for
from page_site import Made, Opener, Serve, Site

from thresher.app.export import export_page
from thresher.app.workspace import Workspace
from thresher.data.overrides import OverrideLog
from thresher.data.selection import Selection
from thresher.paths import SelectionPaths
from thresher.select.cluster import ClassGraph

pytest_plugins = ("page_fixtures",)

Run = Callable[..., CompletedProcess[str]]

PIXELS = """image => {
  const canvas = document.createElement('canvas');
  canvas.width = image.naturalWidth; canvas.height = image.naturalHeight;
  const context = canvas.getContext('2d');
  context.drawImage(image, 0, 0);
  return Array.from(context.getImageData(0, 0, canvas.width, canvas.height).data);
}"""


def test_load_hover_and_lasso(whole_site: Site, look: Opener) -> None:
    """50,000 samples: counts, the image under the pointer pixel by pixel, and a lasso's ids."""
    made = whole_site.made
    selection = Selection.load(made.path)
    page = look(whole_site.url)
    assert counts(page) == {"kept": selection.kept, "dropped": selection.dropped}
    assert page.locator(".classes li").count() == 10

    screen = screen_of(page, made, selection.ids)
    page.keyboard.press("Escape")
    box = page.locator(".map").bounding_box()
    assert box is not None
    suspicious = np.argsort(-selection.score)
    row = lonely(screen, suspicious, dict(box), 9)
    x, y = screen[row]
    page.mouse.move(x - 40, y - 40)
    page.mouse.move(x, y, steps=5)
    page.wait_for_selector(f'.card.hover .id:text-is("{selection.ids[row]}")')
    assert page.inner_text(".card.hover .name b") == made.pack.classes[selection.labels[row]]
    image = page.locator(".card.hover img.image")
    image.evaluate("image => image.decode()")
    pixels = np.array(image.evaluate(PIXELS), np.uint8).reshape(32, 32, 4)
    expected = made.pack.view(int(made.pack.positions([selection.ids[row]])[0]))
    assert np.array_equal(pixels[:, :, :3], expected)
    page.wait_for_selector(".card.hover .strip canvas[data-shown]")
    assert page.locator(".card.hover .strip canvas").count() == 6

    page.mouse.move(box["x"] + 5, box["y"] + box["height"] - 60)
    corners, surely, maybe = rectangle(screen, row)
    page.keyboard.press("l")
    page.mouse.move(*corners[0])
    page.mouse.down()
    for corner in [*corners[1:], corners[0]]:
        page.mouse.move(*corner, steps=15)
        page.wait_for_timeout(40)
    page.mouse.up()
    page.wait_for_selector('.gallery-title:has-text("lassoed")')
    page.keyboard.press("l")
    page.fill("#reason", "lassoed in a test")
    page.click("#drop")
    page.wait_for_selector("#numbers .part.hand")
    (entry,) = OverrideLog(SelectionPaths(made.path).overrides).read()
    chosen = np.isin(selection.ids, entry.ids)
    assert chosen.sum() == counts(page)["hand"] > 0
    assert (surely <= chosen).all()
    assert (chosen <= maybe).all()
    assert entry.reason == "lassoed in a test"


def rectangle(screen: np.ndarray, row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A rectangle around a sample: its corners, (4, 2), and which samples are surely inside and
    which may be, since a mouse drags along whole pixels: both (n,) bool."""
    low, high = screen[row] - [45, 35], screen[row] + [45, 35]
    surely = ((screen > low + 2) & (screen < high - 2)).all(axis=1)
    maybe = ((screen > low - 2) & (screen < high + 2)).all(axis=1)
    corners = np.array([low, [high[0], low[1]], high, [low[0], high[1]]])
    return corners, surely, maybe


def answered(site: Site, repeats: int) -> list[pa.Table]:
    """Previews asked for directly."""
    tables = []
    for n in range(repeats):
        answer = httpx.post(
            f"{site.base}/api/preview",
            headers={"Authorization": f"Bearer {site.token}"},
            json={"share": 0.05 * (n + 1)},
            timeout=60,
        )
        tables.append(pa.ipc.open_stream(answer.content).read_all())
    return tables


def test_sliders_answer_as_the_library_does(whole_site: Site, look: Opener) -> None:
    made = whole_site.made
    page = look(whole_site.url)
    asked: list[dict[str, Any]] = []
    page.on(
        "request",
        lambda request: (
            asked.append(json.loads(request.post_data or "{}"))
            if "/api/preview" in request.url
            else None
        ),
    )
    previews = [
        json.loads(read.schema.metadata[b"thresher"]) for read in answered(whole_site, repeats=5)
    ]
    page.fill("#share", "0.2")
    noise = made.graph.noise(made.graph.eps_for_share(0.2))
    wait_for(page, "dropped", int(noise.sum()))
    shown = page.locator(".classes .number b").all_inner_texts()
    per_class = np.bincount(made.graph.labels[noise], minlength=10)
    assert [int(text.replace(",", "")) for text in shown] == per_class.tolist()

    took = [answer["milliseconds"] for answer in previews]
    assert min(took) < 150, "the server's part; benchmarks/page.py measures the screen's as well"

    page.fill("#eps", "400")
    page.wait_for_selector('#share-value:not(:text-is("20.0 %"))')
    eps = asked[-1]["eps"]
    expected = made.graph.noise(eps)
    wait_for(page, "dropped", int(expected.sum()))
    assert expected.sum() != noise.sum()

    page.fill("#min-samples", "12")
    graph = ClassGraph(made.xy, made.graph.labels, 12)
    share = asked[-1].get("share")
    assert share is not None
    wait_for(page, "dropped", int(graph.noise(graph.eps_for_share(share)).sum()))

    page.click("#use")
    page.fill("#new-name", "by-hand")
    page.click("#write")
    page.wait_for_selector('.toast:has-text("by-hand")')
    written = Selection.load(made.path.with_name("by-hand.parquet"))
    assert np.array_equal(written.keep, ~graph.noise(graph.eps_for_share(share)))
    assert Selection.load(made.path).dropped != written.dropped

    page.click("#reset")
    wait_for(page, "dropped", Selection.load(made.path).dropped)
    page.click("#tab-compare")
    page.select_option("#compare-with", "by-hand")
    page.wait_for_selector("#jaccard")
    both = int((~written.keep & ~Selection.load(made.path).keep).sum())
    text = page.locator('[data-group="both drop"] b').inner_text()
    assert int(text.replace(",", "")) == both


@pytest.mark.parametrize("exported", [False, True])
def test_a_selection_of_another_filter_starts_without_the_sliders_of_dbscan(
    few_site: Site, look: Opener, serve: Serve, tmp_path: Path, exported: bool
) -> None:
    """The first move of a slider replaced the findings of an audit by the noise of its map."""
    made = few_site.made
    sidecar = SelectionPaths(made.path).sidecar
    sidecar.write_text(json.dumps(json.loads(sidecar.read_text()) | {"method": "audit"}))
    if exported:
        export_page(Workspace([made.path]), tmp_path / "page")
    page = look(serve(tmp_path / "page" if exported else made.path))
    page.wait_for_selector(".filter-panel[data-ready]")
    for slider in ("#eps", "#min-samples", "#knee", ".curve"):
        assert not page.is_visible(slider)
    selection = Selection.load(made.path)
    page.fill("#share", "0.2")
    wait_for(page, "dropped", 120)
    shown = page.locator(".classes .number b").all_inner_texts()
    worst = np.argsort(-selection.score, kind="stable")[:120]
    per_class = np.bincount(selection.labels[worst], minlength=10)
    assert [int(text) for text in shown] == per_class.tolist()
    page.select_option("#method", "network")
    page.wait_for_selector("#eps")


def kept_ids(selection: Selection) -> list[str]:
    return sorted(id for id, keep in zip(selection.ids, selection.keep, strict=True) if keep)


def trained_on(thresher: Run, made: Made, out: Path) -> list[str]:
    """The ids of the samples that a real run of `thresher train --selection` has seen, sorted."""
    run = thresher(
        "train", "--data", made.pack.root, "--selection", made.path, "--out", out, "--json",
        "--model", "tiny", "--epochs", 1, "--batch-size", 64, "--crop-padding", 0,
        "--threads", 1, "--device", "cpu", "--record-dynamics",
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    seen = pq.read_table(out / "dynamics.parquet")
    seen = seen.filter(pc.is_finite(seen["loss"]))
    assert json.loads(run.stdout)["samples"] == len(seen)
    return sorted(seen["id"].to_pylist())


def test_a_decision_survives_a_reload_and_counts_in_training(
    few_site: Site, look: Opener, thresher: Run, tmp_path: Path
) -> None:
    made = few_site.made
    before = Selection.load(made.path)
    kept = [id for id, keep in zip(before.ids, before.keep, strict=True) if keep][7]
    page = look(few_site.url)
    focus_by_search(page, kept)
    page.keyboard.press("d")
    wait_for(page, "dropped", before.dropped + 1)
    page.reload()
    page.wait_for_selector("#page.ready")
    wait_for(page, "hand", 1)
    focus_by_search(page, kept)
    assert page.inner_text(".card.large .state") == "dropped by hand"
    wrongly = next(id for id, keep in zip(before.ids, before.keep, strict=True) if not keep)
    focus_by_search(page, wrongly)
    page.keyboard.press("k")
    wait_for(page, "hand", 2)
    after = Selection.load(made.path)
    assert set(kept_ids(before)) - set(kept_ids(after)) == {kept}
    assert set(kept_ids(after)) - set(kept_ids(before)) == {wrongly}
    assert trained_on(thresher, made, tmp_path / "run") == kept_ids(after)

    page.keyboard.press("u")
    wait_for(page, "hand", 1)
    page.click("#tab-log")
    page.wait_for_selector(f'.history .what:has-text("dropped {kept}")')
    page.keyboard.press("u")
    wait_for(page, "dropped", before.dropped)
    assert np.array_equal(Selection.load(made.path).keep, before.keep)
    page.keyboard.press("r")
    wait_for(page, "dropped", before.dropped + 1)
    page.click("#undo")
    wait_for(page, "dropped", before.dropped)
    kinds = [e.kind for e in OverrideLog(SelectionPaths(made.path).overrides).read()]
    assert kinds == ["set", "set", "undo", "undo", "redo", "undo"]


def test_two_windows_and_another_process_see_each_other(site: Site, look: Opener) -> None:
    before = Selection.load(site.made.path)
    one, two = look(site.url), look(site.url)
    focus_by_search(one, before.ids[0])
    one.keyboard.press("d" if before.keep[0] else "k")
    wait_for(two, "hand", 1)
    log = OverrideLog(SelectionPaths(site.made.path).overrides)
    log.decide(before.ids[5:9], False, "a script", before.keep[5:9].tolist())
    wait_for(one, "hand", 5)
    wait_for(two, "hand", 5)
    # It is not that of this window, so the page says what it was.
    one.keyboard.press("u")
    one.wait_for_selector('.toast:text-is("Undone: dropped 4 samples.")')
    wait_for(two, "hand", 1)  # before, this window has nothing to redo
    two.keyboard.press("r")
    two.wait_for_selector('.toast:text-is("Redone: dropped 4 samples.")')
    wait_for(one, "hand", 5)


def test_keyboard(site: Site, look: Opener) -> None:
    selection = Selection.load(site.made.path)
    order = np.argsort(-selection.score, kind="stable")
    page = look(site.url)
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(f'.card.large .id:text-is("{selection.ids[order[0]]}")')
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(f'.card.large .id:text-is("{selection.ids[order[1]]}")')
    assert page.locator(".cell.focused").get_attribute("data-id") == selection.ids[order[1]]
    page.keyboard.press("ArrowDown")
    page.wait_for_selector(f'.card.large .id:not(:text-is("{selection.ids[order[1]]}"))')
    page.keyboard.press("ArrowUp")
    page.wait_for_selector(f'.card.large .id:text-is("{selection.ids[order[1]]}")')
    page.keyboard.press("k")
    wait_for(page, "hand", 1)
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.type("d")
    assert counts(page)["hand"] == 1, "typing is not deciding"
    page.keyboard.press("Escape")
    page.keyboard.press("u")
    page.wait_for_selector("#numbers .part.hand", state="detached")
    page.keyboard.press("?")
    page.wait_for_selector("dialog.help[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog.help", state="hidden")
    label = page.locator(".cell:visible").first.get_attribute("aria-label")
    assert re.match(r"\w+, (kept|dropped)", label or "")


def test_escape_in_a_field_keeps_the_place_and_the_picked_samples(site: Site, look: Opener) -> None:
    page = look(site.url)
    page.click("#tab-analysis")
    page.locator(".bar-row").first.click()
    picked = page.inner_text(".gallery-title")
    assert "dropped" in picked
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    id = page.inner_text(".card.large .id")
    for key in ("c", "/"):
        page.keyboard.press(key)
        page.keyboard.type("do")
        page.keyboard.press("Escape")
        assert page.evaluate("document.activeElement === document.body")
        assert page.inner_text(".card.large .id") == id
    assert page.input_value("#relabel") == "", "the next sample would get it"
    page.keyboard.press("Escape")
    page.wait_for_selector(".card.large", state="hidden")
    assert page.inner_text(".gallery-title") == picked
    page.keyboard.press("Escape")
    page.wait_for_selector('.gallery-title:has-text("all samples")')


def test_reading_and_class_filter(site: Site, look: Opener) -> None:
    selection = Selection.load(site.made.path)
    page = look(site.url, theme="dark", width=1920, height=1080)
    page.click("#tab-analysis")
    page.wait_for_selector(".matrix")
    cells = page.locator(".matrix button").all_inner_texts()
    assert sum(int(text or 0) for text in cells) == len(selection.ids)
    first = page.locator(".bar-row").first
    name = first.locator(".text").inner_text()
    first.click()
    label = site.made.pack.classes.index(name)
    dropped = int((~selection.keep & (selection.labels == label)).sum())
    page.wait_for_selector(f'.gallery-title:has-text("{dropped} dropped {name}")')
    page.click("#clear")
    page.locator(".classes-panel button", has_text="none").click()
    page.wait_for_selector('.gallery-title:has-text("0 filtered")')
    page.locator(".classes input").nth(3).check()
    cats = int((selection.labels == 3).sum())
    page.wait_for_selector(f'.gallery-title:has-text("{cats} filtered")')
    for colour in ("decision", "cluster", "neighbourhood", "score"):
        page.select_option("#colour", colour)
        page.wait_for_selector(".legend")


def test_gallery_scrolls_through_thousands(site: Site, look: Opener) -> None:
    selection = Selection.load(site.made.path)
    order = np.argsort(-selection.score, kind="stable")
    page = look(site.url)
    page.keyboard.press("End")
    page.wait_for_selector(f'.card.large .id:text-is("{selection.ids[order[-1]]}")')
    page.wait_for_selector(".cell.focused canvas[data-shown]")
    drawn = page.locator(".cell.focused canvas").evaluate(
        "c => Array.from(c.getContext('2d').getImageData(0, 0, c.width, c.height).data)"
    )
    expected = site.made.pack.view(int(site.made.pack.positions([selection.ids[order[-1]]])[0]))
    pixels = np.array(drawn, np.uint8).reshape(32, 32, 4)[:, :, :3]
    assert np.array_equal(pixels, expected)
    assert page.locator(".cell").count() < 200, "only what is in sight may exist"


def test_tiny_and_empty_selections_look_right(
    some_cifar: Made, tmp_path: Path, serve: Serve, look: Opener
) -> None:
    whole = Selection.load(some_cifar.path)
    for n in (0, 1, 3):
        Selection(
            ids=whole.ids[:n],
            labels=whole.labels[:n],
            keep=whole.keep[:n],
            score=whole.score[:n],
            reason=whole.reason[:n],
            fingerprint=whole.fingerprint,
            x=None if n == 3 else whole.x[:n] if whole.x is not None else None,
            y=None if n == 3 else whole.y[:n] if whole.y is not None else None,
            meta={"data": str(some_cifar.pack.root)},
        ).save(tmp_path / f"n{n}.parquet")
        page = look(serve(tmp_path / f"n{n}.parquet"), drawn=n > 0)
        assert sum(counts(page).values()) == n
        if n == 0:
            assert page.inner_text(".empty") == "This selection holds no samples."
        else:
            page.keyboard.press("ArrowRight")
            page.wait_for_selector(".card.large .id")
