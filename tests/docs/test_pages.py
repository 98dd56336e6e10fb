"""The pages say what is true of the tree: paths exist, packages are those that the tests check."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from snippets import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMED = re.compile(r"`((?:src|tests|benchmarks|examples|web|tools|docs)/[\w./-]*|\.ci/\w+)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    named = NAMED.findall(page.read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_contributing_names_every_folder() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    packages = [path.parent for path in (ROOT / "src" / "thresher").glob("*/__init__.py")]
    folders = [path.relative_to(ROOT).as_posix() for path in packages]
    folders += ["tests", "benchmarks", "examples", "web", "tools"]
    assert [folder for folder in folders if f"`{folder}/`" not in text] == []


def test_architecture_lists_the_packages_in_the_order_of_their_layers() -> None:
    tree = ast.parse((ROOT / "tests" / "test_layers.py").read_text())
    (layers,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "LAYERS" and node.value
    )
    text = (ROOT / "docs" / "architecture.md").read_text()
    table = text.partition("| package |")[2].partition("\n\n")[0].splitlines()[2:]
    listed = [set(re.findall(r"`(\w+)`", row.split("|")[1])) for row in table]
    assert listed == layers


def test_no_page_names_a_registry_or_a_folder_of_somebodys_machine() -> None:
    for page in PAGES:
        for local in (str(ROOT), str(Path.home()), "/home/", "index-url"):
            assert local not in page.read_text(), f"{page} names {local}"


@pytest.mark.slow
def test_broken_links_and_other_sites_fail_the_build(tmp_path: Path) -> None:
    """A page or an anchor that does not exist, and an image of another site; nothing else.

    `make docs`, which CI runs, builds the whole site with the same settings and hook.
    """
    folder = tmp_path / "tree"
    (folder / "docs").mkdir(parents=True)
    (folder / "tools").symlink_to(ROOT / "tools")
    # The real settings and the real hook, on two pages and without the API reference.
    (folder / "mkdocs.yml").write_text(
        f"INHERIT: {ROOT}/mkdocs.yml\nplugins: []\nnav: [docs/models.md, docs/data.md]\n"
    )
    (folder / "docs" / "data.md").write_text("# Data\n\n## Packs\n")
    (folder / "docs" / "models.md").write_text(
        "# Models\n\n[packs](data.md#packs), [gone](gone.md), [gone](data.md#gone),\n"
        "[elsewhere](https://example.org/), ![loaded](https://example.org/image.png)\n"
    )
    done = _build(tmp_path / "site", folder)
    assert done.returncode != 0
    printed = done.stdout + done.stderr
    assert "link 'gone.md'" in printed
    assert "does not contain an anchor '#gone'" in printed
    assert 'docs/models.md loads from another site: <img alt="loaded" src="https://exa' in printed
    assert "Aborted with 3 warnings in strict mode" in printed
    commands = (tmp_path / "site" / "docs" / "reference" / "commands.html").read_text()
    assert "thresher train" in commands


def _build(out: Path, tree: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True)


def test_a_public_name_without_a_docstring_is_reported(tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text(
        'class Bare:\n    """Documented."""\n    width: int = 0\n    """Documented."""\n'
        "    height: int = 0\n    def open(self) -> None: ...\n"
        "    def _inner(self) -> None: ...\n\n\ndef function() -> None: ...\n"
    )
    code = (
        "import sys, griffe; sys.path[:0] = sys.argv[1:2]; import reference;"
        "package = griffe.load('bare', search_paths=[sys.argv[2]]);"
        "print(*reference.undocumented(package, ['Bare', 'function']))"
    )
    command = [sys.executable, "-c", code, str(ROOT / "tools"), str(tmp_path)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["bare.Bare.height", "bare.Bare.open", "bare.function"]
