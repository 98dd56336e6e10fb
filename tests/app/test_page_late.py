"""Answers that come late, and controls beside what a selection was made with."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest
from page_eyes import counts, focus_by_search, until, wait_for
from page_site import Made, Opener, Serve, Site

from thresher.data.overrides import OverrideLog
from thresher.data.selection import Selection
from thresher.paths import SelectionPaths

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

pytest_plugins = ("page_fixtures",)


def test_controls_show_what_was_chosen_and_reset_ends_a_preview_under_way(
    few_cifar: Made, tmp_path: Path, serve: Serve, look: Opener
) -> None:
    whole = Selection.load(few_cifar.path)
    keep = np.arange(len(whole.ids)) % 10 > 6
    meta = {**whole.meta, "settings": {"min_samples": 60}}
    replace(whole, keep=keep, meta=meta, path=None).save(tmp_path / "most.parquet")
    page = look(serve(tmp_path / "most.parquet"))
    page.wait_for_selector(".filter-panel[data-ready]")
    # Beyond the ends of the sliders of other selections.
    assert page.inner_text("#share-value") == "70.0 %"
    assert page.inner_text("#min-samples-value") == page.input_value("#min-samples") == "60"
    page.fill("#share", "0.2")
    page.wait_for_selector('.badge:text-is("preview")')
    assert page.inner_text("#share-value") == "20.0 %"

    held: list[Route] = []
    page.route("**/api/preview*", lambda route: held.append(route))
    with page.expect_request("**/api/preview*"):
        page.fill("#share", "0.3")
    page.click("#reset")
    with page.expect_response("**/api/preview*"):
        held[0].continue_()
    page.unroute("**/api/preview*")
    page.wait_for_timeout(200)
    assert page.locator('.badge:text-is("preview")').count() == 0
    wait_for(page, "dropped", int((~keep).sum()))


def test_decisions_that_no_event_announced_and_answers_in_another_order(
    few_site: Site, window: "Page"
) -> None:
    ids = Selection.load(few_site.made.path).ids
    log = OverrideLog(SelectionPaths(few_site.made.path).overrides)
    page = window

    def subscribe(route: "Route") -> None:
        """Another process decides after the page has read the log, before it is subscribed."""
        log.decide(ids[:3], False, "a script", [True] * 3)
        route.continue_()

    page.route("**/api/events*", subscribe)
    page.goto(few_site.url)
    wait_for(page, "hand", 3)

    # The answer to an older request does not replace a newer one.
    held: list[Route] = []
    page.route("**/api/state*", lambda route: held.append(route))
    log.decide(ids[3:5], False, "a script", [True] * 2)
    while not held:
        page.wait_for_timeout(10)
    older = held[0].fetch()
    page.unroute("**/api/state*")
    log.decide(ids[5:9], False, "a script", [True] * 4)
    wait_for(page, "hand", 9)
    with page.expect_response("**/api/state*"):
        held[0].fulfill(response=older)
    page.wait_for_timeout(200)
    assert counts(page)["hand"] == 9


def test_a_comparison_follows_decisions_in_both_selections(
    few_cifar: Made, tmp_path: Path, serve: Serve, look: Opener
) -> None:
    paths = [few_cifar.copy(tmp_path, name).path for name in ("one", "two")]
    logs = [OverrideLog(SelectionPaths(path).overrides) for path in paths]
    selection = Selection.load(paths[0])
    kept = [selection.ids[row] for row in np.flatnonzero(selection.keep)]
    page = look(serve(*paths))
    page.click("#tab-compare")
    page.select_option("#compare-with", "two")
    page.wait_for_selector('.group[data-group="only B drops"] b:text-is("0")')
    assert page.input_value("#colour") == "comparison"
    page.select_option("#colour", "class")
    for log, group in zip(logs, "AB", strict=True):
        log.decide(kept[:3], False, "", [True] * 3)
        page.wait_for_selector(f'.group[data-group="only {group} drops"] b:text-is("3")')
        log.undo(dict.fromkeys(kept, True))
        page.wait_for_selector(f'.group[data-group="only {group} drops"] b:text-is("0")')
    assert page.input_value("#colour") == "class", "the map keeps the colours that were chosen"


def make_anew(path: Path) -> list[str]:
    """Replace a selection by one of other samples; returns the ids of the old one."""
    old = Selection.load(path)
    for file in (path, path.with_suffix(".json")):
        file.unlink()
    half = len(old.ids) // 2
    Selection(
        ids=old.ids[half:],
        labels=old.labels[half:],
        keep=~np.asarray(old.keep)[half:],
        score=np.asarray(old.score)[half:],
        reason=old.reason[half:],
        fingerprint=old.fingerprint,
        meta=old.meta,
    ).save(path)
    return old.ids


def test_no_request_is_answered_for_a_selection_that_was_made_anew(few_site: Site) -> None:
    path = few_site.made.path
    headers = {"Authorization": f"Bearer {few_site.token}"}
    with httpx.Client(base_url=few_site.base, headers=headers, timeout=60) as http:
        assert http.get("/api/points").status_code == 200
        ids = make_anew(path)
        decision = {"ids": ids[:2], "keep": False}
        for answer in (
            http.get("/api/points"),
            http.get("/api/state"),
            http.post("/api/overrides", json=decision),
            http.post("/api/undo"),
            http.post("/api/redo"),
            http.post("/api/use", json={"share": 0.3, "name": "third"}),
        ):
            assert answer.status_code == 409, answer.url
            assert answer.json()["error"] == (
                "chosen.parquet was made anew or removed since it was opened; "
                "start `thresher view` again"
            )
        path.unlink()
        assert http.post("/api/overrides", json=decision).status_code == 409
    assert not SelectionPaths(path).overrides.exists()
    assert not path.with_name("third.parquet").exists()


def test_the_page_says_that_its_selection_was_made_anew(few_site: Site, window: "Page") -> None:
    page = window
    page.goto(few_site.url)
    page.wait_for_selector(".filter-panel[data-ready]")
    ids = make_anew(few_site.made.path)
    focus_by_search(page, ids[0])
    page.keyboard.press("d")
    page.wait_for_selector('.toast.wrong:has-text("start `thresher view` again")')
    page.reload()
    page.wait_for_selector('.loading.wrong:has-text("chosen.parquet was made anew")')


def test_what_was_typed_for_a_decision_that_was_not_saved_stays(
    few_site: Site, window: "Page"
) -> None:
    made = few_site.made
    ids = Selection.load(made.path).ids
    log = OverrideLog(SelectionPaths(made.path).overrides)
    page = window
    page.goto(few_site.url)
    page.wait_for_selector(".filter-panel[data-ready]")
    focus_by_search(page, ids[0])
    page.route("**/api/overrides*", lambda route: route.abort())
    page.fill("#reason", "blurred")
    page.click("#drop")
    page.wait_for_selector('.toast.wrong:has-text("Not saved: The server does not answer")')
    assert page.input_value("#reason") == "blurred"
    page.fill("#relabel", "truck")
    page.press("#relabel", "Enter")
    until(lambda: page.input_value("#relabel") == "truck", "what was typed is back")
    assert page.input_value("#reason") == "blurred"
    assert log.read() == []

    # The server answers again: the same click saves the decision with its reason.
    page.unroute("**/api/overrides*")
    page.click("#drop")
    page.wait_for_selector(f'.toast:has-text("Dropped {ids[0]}")')
    assert page.input_value("#reason") == ""
    (entry,) = log.read()
    assert (entry.ids, entry.keep, entry.reason) == ([ids[0]], False, "blurred")


def test_a_reason_without_a_sample_to_decide_on_stays(few_site: Site, window: "Page") -> None:
    page = window
    page.goto(few_site.url)
    page.wait_for_selector(".filter-panel[data-ready]")
    page.fill("#reason", "blurred")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("d")
    page.wait_for_timeout(100)
    assert page.input_value("#reason") == "blurred"


def test_a_selection_by_hdbscan_has_no_sliders_of_dbscan(
    few_cifar: Made, tmp_path: Path, serve: Serve, look: Opener
) -> None:
    whole = Selection.load(few_cifar.path)
    keep = np.arange(len(whole.ids)) % 10 > 1
    settings = {"cluster": "hdbscan", "min_samples": 5, "min_cluster_size": 20}
    meta = {**whole.meta, "settings": settings, "eps": None}
    score = (~keep).astype(np.float32)
    replace(whole, keep=keep, score=score, meta=meta, path=None).save(tmp_path / "h.parquet")
    page = look(serve(tmp_path / "h.parquet"))
    page.wait_for_selector(".filter-panel[data-ready]")
    for field in ("#eps", "#min-samples", "#knee"):
        assert page.is_hidden(field), field
    assert page.input_value("#method") == "score"
    assert page.inner_text("#share-value") == "20.0 %"
    # DBSCAN on its map can still be tried.
    page.select_option("#method", "network")
    page.wait_for_selector("#eps", state="visible")


def test_a_narrow_page_shows_the_counts_and_what_decisions_change_in_a_preview(
    site: Site, look: Opener
) -> None:
    selection = Selection.load(site.made.path)
    order = np.argsort(selection.score, kind="stable")
    page = look(site.url, width=700)
    page.wait_for_selector(".filter-panel[data-ready]")
    page.select_option("#method", "score")
    page.fill("#share", "0.1")
    page.wait_for_selector('#result:has-text("drops 300 of 3,000, 10.00 %")')
    for row in order[:2].tolist():
        focus_by_search(page, selection.ids[row])
        page.keyboard.press("d")
        page.wait_for_selector(f'.toast:has-text("{selection.ids[row]}")')
    wait_for(page, "hand", 2)
    assert counts(page) == {"kept": 2698, "dropped": 302, "hand": 2}
    text = "drops 300 of 3,000, 10.00 %; 302 with decisions by hand"
    page.wait_for_selector(f'#result:has-text("{text}")')
    box, map_box = page.locator("#numbers").bounding_box(), page.locator(".map").bounding_box()
    assert box is not None
    assert map_box is not None
    assert box["y"] + box["height"] <= map_box["y"]
    assert 0 <= box["x"] <= box["x"] + box["width"] <= 700


@pytest.mark.parametrize("width", [980, 853, 400])  # 853: 1,280 pixels at 150 %
def test_a_narrow_page_shows_fields_and_gallery_beside_the_focused_sample(
    few_site: Site, look: Opener, width: int
) -> None:
    page = look(few_site.url, width=width, height=640)
    focus_by_search(page, Selection.load(few_site.made.path).ids[0])
    fields = "#reason, #relabel, #keep, #drop, .card.large .act, #gallery"
    hidden = "document.documentElement.scrollHeight - innerHeight"
    page.mouse.move(200, 20)
    page.mouse.wheel(0, 2000)  # a user cannot scroll a page whose overflow is hidden
    until(lambda: page.evaluate(f"scrollY === Math.max(0, {hidden})"))
    for place in page.locator(fields).all():
        place.scroll_into_view_if_needed()
        box = place.bounding_box()
        assert box is not None
        assert min(box["width"], box["height"]) > 20
        assert 0 <= box["x"] <= box["x"] + box["width"] <= width
        # Nothing covers the middle of it, and it is not cut off.
        x, y = box["x"] + box["width"] - 3, box["y"] + box["height"] / 2
        assert place.evaluate(
            "(place, [x, y]) => place.contains(document.elementFromPoint(x, y))", [x, y]
        )
    page.fill("#relabel", "0")
    page.press("#relabel", "Enter")
    wait_for(page, "hand", 1)
