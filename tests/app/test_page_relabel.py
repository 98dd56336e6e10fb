"""Giving samples another label: by HTTP, with the keyboard, for one and for many."""

from pathlib import Path

import numpy as np
import pyarrow as pa
from page_site import Opener, Serve, Site
from test_page_server import client, table

from planted import plant
from thresher.app.selection_view import SelectionView
from thresher.auditing.audit import audit
from thresher.auditing.config import AuditConfig
from thresher.data.pack import Pack
from thresher.data.selection import Selection

pytest_plugins = ("page_fixtures",)


def test_a_new_label_by_http(site: Site) -> None:
    selection = Selection.load(site.made.path)
    ids = selection.ids[:3]
    with client(site) as http:
        for wrong, said in (
            ({"label": 10}, "label must be one of the 10 classes, got 10"),
            ({"label": -1}, "got -1"),
            ({"label": "3"}, "label must be the number of a class"),
            ({"label": True}, "label must be the number of a class"),
            ({"label": 3, "keep": False}, "a sample with a new label is kept"),
        ):
            answer = http.post("/api/overrides", json={"ids": ids, "keep": True, **wrong})
            assert answer.status_code == 400
            assert said in answer.json()["error"]
        assert table(http.get("/api/state"))[1]["version"] == 0
        body = {"ids": ids, "keep": True, "reason": "seen", "label": 3}
        state, meta = table(http.post("/api/overrides", json=body))
        assert meta["undo"] == 1
        assert state.schema.field("label").type == pa.int16()
        assert state.column("label").to_pylist()[:4] == [3, 3, 3, -1]
        assert http.get(f"/api/sample/{ids[0]}").json()["override"]["label"] == 3
        assert http.get("/api/log").json()["entries"][0]["label"] == 3
        final = np.array([3, 3, 3, *selection.labels[3:]])
        counts = np.bincount(final, minlength=10).tolist()
        assert http.get("/api/info").json()["per_class"] == counts
        preview, numbers = table(http.post("/api/preview", json={"method": "random", "share": 0.9}))
        dropped = ~preview.column("keep").to_numpy()
        assert numbers["dropped_per_class"] == np.bincount(final[dropped], minlength=10).tolist()
        written = http.post("/api/use", json={"share": 0.2, "name": "fourth"}).json()["path"]
        state, _ = table(http.post("/api/undo"))
        assert "label" not in state.column_names
        counts = np.bincount(selection.labels, minlength=10).tolist()
        assert http.get("/api/info").json()["per_class"] == counts
    assert Selection.load(written).final_labels[:3].tolist() == [3, 3, 3]


def test_one_sample_and_lassoed_ones_are_relabelled(site: Site, look: Opener) -> None:
    page = look(site.url)
    page.wait_for_selector(".cell .among")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".card.large")
    id = page.inner_text(".card.large .id")
    among = page.inner_text(".card.large .name .among").split()[-1]
    # The class that it lies among is offered: Enter takes it.
    page.keyboard.press("c")
    assert page.get_attribute("#relabel", "placeholder") == among
    page.keyboard.press("Enter")
    page.wait_for_selector('.card.large .state:has-text("new label")')
    loaded = Selection.load(site.made.path)
    names = site.made.pack.classes
    row = loaded.ids.index(id)
    assert names[loaded.final_labels[row]] == among
    tile = page.locator(f'.cell[data-id="{id}"]')
    assert tile.locator(".label").inner_text().strip() == among
    # Another class, by its first letters; a wrong one changes nothing and says so.
    page.keyboard.press("c")
    page.keyboard.type("nonsense")
    page.keyboard.press("Enter")
    page.wait_for_selector('.toast:has-text("not one class")')
    assert Selection.load(site.made.path).final_labels[row] == loaded.final_labels[row]
    page.fill("#relabel", "")
    page.keyboard.type(names[5])
    page.keyboard.press("Enter")
    page.wait_for_selector(f'.cell[data-id="{id}"] .label:has-text("{names[5]}")')
    page.keyboard.press("u")
    page.wait_for_selector(f'.cell[data-id="{id}"] .label:has-text("{among}")')
    changed = Selection.load(site.made.path)
    assert np.flatnonzero(changed.relabelled).tolist() == [row]
    # Many at once: a lasso around the whole map.
    page.keyboard.press("Escape")
    box = page.locator(".map").bounding_box()
    assert box is not None
    left, top = box["x"] + 8, box["y"] + 8
    right, bottom = box["x"] + box["width"] - 8, box["y"] + box["height"] - 8
    page.keyboard.press("l")
    page.mouse.move(left, bottom)
    page.mouse.down()
    for corner in ((left, top), (right, top), (right, bottom), (left, bottom)):
        page.mouse.move(*corner, steps=15)
        page.wait_for_timeout(40)
    page.mouse.up()
    page.wait_for_selector('.gallery-title:has-text("lassoed")')
    page.keyboard.press("c")
    page.keyboard.type(names[2])
    page.keyboard.press("Enter")
    page.click("#tab-log")
    page.wait_for_selector(f'.history .what:has-text("labelled as {names[2]}:")')
    page.wait_for_selector(f'.history .what:has-text("labelled as {among}: {id}")')
    labels = Selection.load(site.made.path).final_labels
    assert (labels == 2).mean() > 0.9


def test_what_an_audit_suggests_is_offered_first(
    digits: Path, tmp_path: Path, serve: Serve, look: Opener
) -> None:
    pack = Pack.open(digits)
    flipped = set(plant(pack, tmp_path / "pack")["flipped"])
    faulty = Pack.open(tmp_path / "pack")
    train = faulty.indices("train")
    features = tmp_path / "pixels.npy"
    np.save(features, faulty.images(train).reshape(len(train), -1).astype(np.float32) / 255)
    features.with_suffix(".ids.txt").write_text("\n".join(faulty.ids.take(train).to_pylist()))
    found = audit(faulty, tmp_path / "out", AuditConfig(features=features))
    chosen = Selection.load(found.selection)
    assert chosen.suggested is not None
    truth = dict(zip(pack.ids.to_pylist(), pack.labels.tolist(), strict=True))
    rows = [row for row, id in enumerate(chosen.ids) if id in flipped]
    right = [row for row in rows if chosen.suggested[row] == truth[chosen.ids[row]]]
    assert len(right) >= 0.7 * len(rows)
    assert (chosen.suggested[rows] != chosen.labels[rows]).all()
    # One whose neighbours on the map are of a third class.
    around = SelectionView(Path(found.selection)).neighbourhood_labels.to_numpy()
    row = next(row for row in right if around[row] not in (truth[chosen.ids[row]], -1))
    id, name = chosen.ids[row], faulty.classes[truth[chosen.ids[row]]]
    page = look(serve(Path(found.selection)))
    page.wait_for_selector(".cell .among")
    page.fill("#search", id)
    page.keyboard.press("Enter")
    page.wait_for_selector(f'.card.large .id:has-text("{id}")')
    assert page.inner_text(".card.large .name .among").split()[-1] == name
    assert page.inner_text(f'.cell[data-id="{id}"] .among').split()[-1] == name
    page.keyboard.press("c")
    assert page.get_attribute("#relabel", "placeholder") == name
    page.keyboard.press("Enter")
    page.wait_for_selector('.card.large .state:has-text("new label")')
    loaded = Selection.load(found.selection)
    assert loaded.final_labels[row] == truth[id]
    assert loaded.keep[row]
