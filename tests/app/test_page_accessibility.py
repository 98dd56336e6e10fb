"""The page without a mouse and for assistive technology."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from page_eyes import focus_by_search, wait_for
from page_site import Opener, Site

from thresher.data.overrides import OverrideLog
from thresher.data.selection import Selection
from thresher.paths import SelectionPaths

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytest_plugins = ("page_fixtures",)

AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
FAULTS = """async () => (await axe.run()).violations
  .filter(one => one.impact === 'serious' || one.impact === 'critical')
  .flatMap(one => one.nodes.map(node => `${one.id}: ${node.target} ${node.failureSummary}`))"""
ACTIVE = "document.activeElement.id"
# The name that a screen reader says, without the rarer ways to give one.
NAME = """() => {
  const element = document.activeElement;
  return element.getAttribute('aria-label') || element.title || element.innerText
    || element.labels?.[0]?.innerText || '';
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_serious_fault(site: Site, look: Opener, theme: str) -> None:
    if not AXE.is_file():
        pytest.skip("the page's packages are not installed: run `make page`")
    selection = Selection.load(site.made.path)
    page = look(site.url, theme=theme)
    page.wait_for_selector(".filter-panel[data-ready]")
    page.wait_for_selector(".cell .among")
    page.evaluate(AXE.read_text())
    faults = {"open": page.evaluate(FAULTS)}
    page.fill("#share", "0.2")
    page.wait_for_selector("#result b")
    page.click("#use")
    focus_by_search(page, selection.ids[0])
    page.keyboard.press("k")
    wait_for(page, "hand", 1)
    faults["focused sample, preview and message"] = page.evaluate(FAULTS)
    page.select_option("#sort", "neighbourhood")
    faults["groups"] = page.evaluate(FAULTS)
    for tab in ("copies", "analysis", "compare", "log"):
        page.click(f"#tab-{tab}")
        page.wait_for_selector(f"#tab-{tab}[aria-selected=true]")
        page.wait_for_timeout(200)
        faults[tab] = page.evaluate(FAULTS)
    page.keyboard.press("?")
    page.wait_for_selector("dialog.help[open]")
    faults["help"] = page.evaluate(FAULTS)
    assert {state: found for state, found in faults.items() if found} == {}


def tab_to(page: "Page", id: str, key: str = "Tab") -> None:
    """Press Tab until the element has the focus; every stop on the way must have a name."""
    for _ in range(80):
        page.keyboard.press(key)
        assert page.evaluate(NAME) != "", page.evaluate("document.activeElement.outerHTML")
        if page.evaluate(ACTIVE) == id:
            return
    raise AssertionError(f"Tab does not reach #{id}")


def test_keyboard_alone_from_opening_to_judging_an_image(site: Site, look: Opener) -> None:
    made = site.made
    selection = Selection.load(made.path)
    page = look(site.url)
    page.wait_for_selector(".filter-panel[data-ready]")

    # The filter: a step of the slider previews, Reset takes it back.
    tab_to(page, "share")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#numbers .badge")
    tab_to(page, "reset")
    page.keyboard.press("Enter")
    wait_for(page, "dropped", selection.dropped)
    page.wait_for_selector("#numbers .badge", state="detached")

    # The gallery: the most suspicious sample, its card, a reason, and the button.
    tab_to(page, "gallery")
    page.keyboard.press("ArrowRight")
    row = int(np.argsort(-selection.score, kind="stable")[0])
    page.wait_for_selector(f'.card.large .id:text-is("{selection.ids[row]}")')
    active = page.get_attribute("#gallery", "aria-activedescendant")
    assert page.get_attribute(f"#{active}", "data-id") == selection.ids[row]
    assert page.get_attribute(f"#{active}", "aria-selected") == "true"
    tab_to(page, "reason", "Shift+Tab")
    page.keyboard.type("looks right: kept by d, k and u")
    tab_to(page, "keep")
    page.keyboard.press("Enter")
    wait_for(page, "hand", 1)
    log = OverrideLog(SelectionPaths(made.path).overrides)
    (entry,) = log.read()
    assert (list(entry.ids), entry.keep) == ([selection.ids[row]], True)
    assert entry.reason == "looks right: kept by d, k and u"

    # Judge the next one by a letter, look at the log, and undo.
    tab_to(page, "gallery")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("d")
    wait_for(page, "hand", 2)
    tab_to(page, "tab-gallery", "Shift+Tab")
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector(f'.history .what:has-text("kept {selection.ids[row]}")')
    page.keyboard.press("u")
    wait_for(page, "hand", 1)
    assert [entry.kind for entry in log.read()] == ["set", "set", "undo"]
