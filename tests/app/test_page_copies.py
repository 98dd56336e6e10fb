"""Near-copies on the page: groups side by side, test images beside their twins, decisions."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from page_eyes import wait_for
from page_site import Made, Opener, Serve, Site
from test_page_accessibility import AXE, FAULTS
from test_page_server import client, table

from thresher.app.export import export_page
from thresher.app.workspace import Workspace
from thresher.data.copy_links import CopyLinks
from thresher.data.overrides import OverrideLog
from thresher.data.selection import Selection
from thresher.errors import ThresherError
from thresher.paths import SelectionPaths

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytest_plugins = ("page_fixtures",)


def linked(made: Made, folder: Path, links: CopyLinks) -> Made:
    """Save the selection with near-copies, all samples kept."""
    whole = Selection.load(made.path)
    keep = np.ones(len(whole.ids), bool)
    path = folder / "copied.parquet"
    replace(whole, keep=keep, reason=[""] * len(keep), path=None, copies=links).save(path)
    return replace(made, path=path)


@pytest.fixture
def copied(few_cifar: Made, tmp_path: Path) -> Made:
    """Two images like a test image, two like each other under two labels, three under one."""
    selection = Selection.load(few_cifar.path)
    ids, labels = selection.ids, selection.labels
    test = few_cifar.pack.ids.take(few_cifar.pack.indices("test")[:1]).to_pylist()
    cats = [ids[row] for row in np.flatnonzero(labels == 3)[:3]]
    dog, ship = (ids[np.flatnonzero(labels == label)[0]] for label in (5, 8))
    trucks = [ids[row] for row in np.flatnonzero(labels == 9)[:2]]
    links = CopyLinks(
        ids=[*trucks, dog, cats[1], cats[2]],
        others=[*test, *test, ship, cats[0], cats[0]],
        similarity=np.array([0.99, 0.98, 0.97, 0.96, 0.95], np.float32),
        measure="correlation of the pixels",
    )
    return linked(few_cifar, tmp_path, links)


@pytest.fixture
def copies_site(copied: Made, serve: Serve) -> Site:
    return Site(serve(copied.path), copied)


def pixels(page: "Page", id: str) -> np.ndarray:
    """The thumbnail of a tile on the tab, (32, 32, 3)."""
    page.wait_for_selector(f'#copies .cell[data-id="{id}"] canvas[data-shown]')
    drawn = page.locator(f'#copies .cell[data-id="{id}"] canvas').evaluate(
        "c => Array.from(c.getContext('2d').getImageData(0, 0, c.width, c.height).data)"
    )
    return np.array(drawn, np.float64).reshape(32, 32, 4)[:, :, :3]


def image(made: Made, id: str) -> np.ndarray:
    return np.asarray(made.pack.view(int(made.pack.positions([id])[0])), np.float64)


def shown(page: "Page") -> list[str]:
    """The captions of the tiles in order of their ids' places on the screen."""
    cells = page.locator("#copies .cell:visible").all()
    cells.sort(key=lambda cell: int(cell.get_attribute("aria-posinset") or 0))
    return [" ".join(cell.locator(".label").inner_text().split()) for cell in cells]


@pytest.mark.slow
def test_links_and_test_images_by_http(copies_site: Site, few_site: Site) -> None:
    made = copies_site.made
    selection = Selection.load(made.path)
    assert selection.copies is not None
    n = len(selection.ids)
    with client(copies_site) as http:
        links, meta = table(http.get("/api/copies"))
        assert [selection.ids[row] for row in links["row"].to_pylist()] == selection.copies.ids
        assert links["other"].to_pylist()[:2] == [n, n]
        assert selection.ids[links["other"].to_pylist()[2]] == selection.copies.others[2]
        (outside,) = meta["outside"]
        assert outside["id"] == selection.copies.others[0]
        assert (outside["split"], meta["measure"]) == ("test", "correlation of the pixels")
        sheet = http.get(f"/api/sprite?rows=0,{n}")
        assert sheet.status_code == 200
        # A browser keeps it, but not for the next server at this address, which has another token.
        assert sheet.headers["cache-control"] == "private, max-age=3600"
        assert sheet.headers["vary"] == "Authorization"
        assert http.get(f"/api/sprite?rows={n + 1}").status_code == 400
        # The links belong to the samples, not to what the filter decided about them.
        path = http.post("/api/use", json={"share": 0.2, "name": "again"}).json()["path"]
    again = Selection.load(path).copies
    assert again is not None
    assert again.others == selection.copies.others
    with client(few_site) as http:
        links, meta = table(http.get("/api/copies"))
        assert (len(links), meta["measure"], meta["outside"]) == (0, "", [])


def test_links_to_unknown_samples_are_refused(few_cifar: Made, tmp_path: Path) -> None:
    known = Selection.load(few_cifar.path).ids[0]
    for id, other in ((known, "nobody"), ("nobody", known)):
        made = linked(few_cifar, tmp_path, CopyLinks([id], [other], np.ones(1), "cosine"))
        with pytest.raises(ThresherError, match='name "nobody", which is not in the pack'):
            Workspace([made.path]).view().copies.stream()
        made.path.unlink()


def test_groups_are_reviewed_with_the_keyboard(copies_site: Site, look: Opener) -> None:
    made = copies_site.made
    selection = Selection.load(made.path)
    assert selection.copies is not None
    trucks, (dog, *cats) = selection.copies.ids[:2], selection.copies.ids[2:]
    test, ship, first_cat = (selection.copies.others[at] for at in (0, 2, 3))
    names = made.pack.classes
    page = look(copies_site.url)
    page.wait_for_selector(".cell .among")
    page.click("#tab-copies")
    page.wait_for_selector("#copies .cell")
    options = page.locator("#copy-kind option").all_inner_texts()
    assert options == [
        f"1 groups with {what}" for what in ("test images", "different labels", "one label")
    ]

    # A test image beside its twins; the arrows only stop at what can be decided.
    own = names[int(made.pack.labels[made.pack.positions([test])[0]])]
    assert shown(page) == [f"{own} test", "truck kept", "truck kept"]
    assert "1 outside of training, 2 in training" in page.inner_text("#copies .section")
    for id in (test, trucks[0]):
        assert np.array_equal(pixels(page, id), image(made, id))
    page.press("#copies", "ArrowRight")
    page.wait_for_selector(f'.card.large .id:text-is("{trucks[0]}")')
    page.keyboard.press("ArrowLeft")
    assert page.inner_text(".card.large .id") == trucks[0]
    page.keyboard.press("o")
    wait_for(page, "dropped", 2)
    assert shown(page)[1:] == ["truck dropped", "truck dropped"]
    (entry,) = OverrideLog(SelectionPaths(made.path).overrides).read()
    assert (set(entry.ids), entry.keep) == (set(trucks), False)
    assert entry.reason == f"near-copy of {test}"

    # Two labels for one image: one of them is changed.
    page.select_option("#copy-kind", "conflicts")
    page.focus("#copies")
    page.keyboard.press("Home")
    page.keyboard.press("c")
    page.keyboard.type("ship")
    page.keyboard.press("Enter")
    page.wait_for_selector("#copies .overridden:visible")
    assert page.locator("#copies .overridden:visible").count() == 1
    assert sorted(shown(page)) in (["ship kept", "ship kept"], ["dog kept", "ship kept"])

    # Of three copies only the focused one stays.
    page.select_option("#copy-kind", "duplicates")
    page.focus("#copies")
    page.keyboard.press("End")
    page.wait_for_selector(f'.card.large .id:text-is("{cats[-1]}")')
    page.click("#settle")
    wait_for(page, "dropped", 4)
    assert shown(page) == ["cat dropped", "cat dropped", "cat kept"]
    loaded = Selection.load(made.path)
    kept = dict(zip(loaded.ids, loaded.keep.tolist(), strict=True))
    assert [kept[id] for id in (*trucks, dog, ship, first_cat, *cats)] == [
        *(False, False),
        *(True, True),
        *(False, False, True),
    ]
    assert loaded.relabelled.sum() == 1
    page.keyboard.press("u")
    wait_for(page, "dropped", 2)

    # A preview is not a decision: a copy that only the preview drops is dropped by hand, too.
    page.fill("#share", "0.6")
    page.wait_for_selector("#copies .cell.dropped:visible")
    page.press("#copies", "o")
    page.wait_for_selector('.toast:has-text("Dropped 2 samples")')
    log = OverrideLog(SelectionPaths(made.path).overrides)
    assert set(log.read()[-1].ids) == {first_cat, cats[0]}
    # On another tab, where the group is not in sight, the key does nothing.
    page.keyboard.press("u")
    page.wait_for_selector('.toast:has-text("Undone: dropped 2 samples.")')
    page.click("#tab-gallery")
    page.keyboard.press("o")
    page.keyboard.press("k")
    page.wait_for_selector(f'.toast:has-text("Kept {cats[-1]}")')
    assert [entry.kind for entry in log.read()[-3:]] == ["set", "undo", "set"]
    page.click("#tab-copies")

    if not AXE.is_file():
        pytest.skip("the page's packages are not installed: run `make page`")
    page.evaluate(AXE.read_text())
    assert page.evaluate(FAULTS) == []


def test_copies_in_an_export_and_none(
    copied: Made, few_site: Site, tmp_path: Path, serve: Serve, look: Opener
) -> None:
    export_page(Workspace([copied.path]), tmp_path / "site")
    page = look(serve(tmp_path / "site"))
    page.click("#tab-copies")
    page.wait_for_selector("#copies .cell")
    assert page.locator("#settle").count() == 0
    test = str(page.get_attribute('#copies .cell[aria-posinset="1"]', "data-id"))
    error = np.abs(pixels(page, test) - image(copied, test)).mean()
    assert error < 12, "the right image, up to its compression"
    page = look(few_site.url)
    page.click("#tab-copies")
    page.wait_for_selector('.gallery .note:has-text("Nobody has looked for near-copies")')
    assert not page.locator("#copies").is_visible()
