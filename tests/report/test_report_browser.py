"""The report in a real browser: no requests, no sideways scrolling, light and dark."""

from pathlib import Path
from typing import Any

import finished_study

from thresher.report.page import write_report
from thresher.study.analysis import analyse
from thresher.study.study import Study


def test_it_reads_on_a_phone_and_at_a_desk_and_prints(
    chromium: Any, digits: Path, tmp_path: Path
) -> None:
    study = finished_study.write(Study.from_dict(finished_study.definition(seeds=2), tmp_path))
    page_file = write_report(analyse(study))
    colours = {}
    # One window: a new one takes a second of a core.
    page = chromium.new_page(offline=True)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for width, scheme in ((390, "light"), (1280, "light"), (390, "dark")):
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=scheme)
        page.goto(page_file.as_uri())
        assert page_file.as_uri() in asked
        assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        # The text of figures is at least eight pixels high, also on a phone.
        size = page.evaluate(
            """() => Math.min(...[...document.querySelectorAll('figure svg')].map(s => {
                const scale = s.getBoundingClientRect().width / s.viewBox.baseVal.width;
                const sizes = [...s.querySelectorAll('text')].map(
                    t => parseFloat(getComputedStyle(t).fontSize));
                return scale * Math.min(...sizes);
            }))"""
        )
        assert size >= 8
        colours[width, scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert colours[390, "light"] == "rgb(255, 255, 255)"
    assert colours[390, "dark"] != colours[390, "light"]
    page.emulate_media(color_scheme="light")
    page.goto(page_file.as_uri())
    assert page.pdf(format="A4").startswith(b"%PDF")
    page.close()
