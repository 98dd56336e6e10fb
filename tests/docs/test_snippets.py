"""Every command and snippet of README, CONTRIBUTING and the guides runs as shown."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from snippets import CHECKED, PLAIN, ROOT, RUN, Page, Snippet, check, collect

sys.path.append(str(ROOT / "tests" / "study"))
from few_digits import make_pack

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BY_NAME = {page.relative_to(ROOT).as_posix(): collect(page) for page in PAGES}


def _all_snippets() -> list[Snippet]:
    return [snippet for snippets in BY_NAME.values() for snippet in snippets]


LARGER = {"docs/scaling.md", "docs/studies.md"}
"""Pages whose batches or held-out images need more images than the others."""


@pytest.fixture
def home(name: str, once: Callable[..., Path]) -> Path:
    """Return a folder of Thresher whose pack `digits` has a sixth of the images, or a third."""
    rows = 600 if name in LARGER else 300

    def make(folder: Path) -> None:
        (folder / "packs").mkdir()
        Path(make_pack(folder, rows=rows)).rename(folder / "packs" / "digits")

    return once(f"docs-home-{rows}", make)


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
def test_the_snippets_of_a_page_run_in_order(name: str, tmp_path: Path, home: Path) -> None:
    with Page(tmp_path, home) as page:
        for snippet in BY_NAME[name]:
            if snippet.mark in ("run", "file"):
                page.run(snippet)


@pytest.mark.parametrize(
    "snippet",
    [snippet for snippet in _all_snippets() if snippet.mark == "check"],
    ids=str,
)
def test_a_snippet_parses(snippet: Snippet) -> None:
    check(snippet)


@pytest.mark.parametrize("snippet", _all_snippets(), ids=str)
def test_every_block_says_its_language(snippet: Snippet) -> None:
    assert snippet.language in RUN | CHECKED | PLAIN


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_code_block_is_indented_instead_of_fenced(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.M | re.S)
    indented = re.findall(r"\n\n    [^ *\d-].*", text)
    assert not indented
