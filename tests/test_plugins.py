"""Registries: built-in names, entry points of other packages, `module:attribute`."""

import sys
from pathlib import Path

import pytest

from thresher.errors import InvalidValueError, MissingDependencyError, NotFoundError
from thresher.plugins import Registry, load_attribute

BUILT_IN = {"path": "pathlib:Path", "join": "os.path:join"}
OTHER = """
class Shiny:
    pass
class Shadow:
    pass
number = 3
"""


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A registry beside an installed package that adds an entry and claims a built-in name."""
    (tmp_path / "other_package.py").write_text(OTHER)
    info = tmp_path / "other_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[thresher.test_things]\nshiny = other_package:Shiny\npath = other_package:Shadow\n"
        "broken = no_such_package:Thing\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return Registry("thing", "thresher.test_things", BUILT_IN)


def test_names_are_built_in_first(registry: Registry) -> None:
    assert registry.names() == ["path", "join", "shiny", "broken"]
    assert "shiny" in registry
    assert "some.module:Name" in registry
    assert "shin" not in registry
    for bad in ("../x:y", "a b:c", ":c", "a:", "a:b:c", "a.:b", ""):
        assert bad not in registry


def test_built_in_names_win_and_others_are_loaded(registry: Registry) -> None:
    assert registry.load("path") is Path
    assert registry.load("shiny").__name__ == "Shiny"
    assert registry.load("other_package:Shadow").__name__ == "Shadow"


def test_only_the_entry_asked_for_is_imported(registry: Registry) -> None:
    sys.modules.pop("other_package", None)
    registry.names()
    assert "shiny" in registry
    registry.load("path")
    assert "other_package" not in sys.modules


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pth", 'unknown thing "pth"; did you mean "path"?'),
        (
            "nothing-like-it",
            'unknown thing "nothing-like-it"; choose one of broken, join, package.module:NAME, '
            "path, shiny",
        ),
        ("../x:y", 'unknown thing "../x:y"; choose one of broken, join, package.module:NAME, '
         "path, shiny"),
    ],
)  # fmt: skip
def test_an_unknown_name_is_refused(registry: Registry, name: str, message: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        registry.load(name)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "no_such_package:Thing",
            'cannot import thing "no_such_package:Thing": no module named "no_such_package"; '
            "give package.module:NAME, importable from the current folder",
        ),
        (
            "other_package.part:Thing",
            'cannot import thing "other_package.part:Thing": no module named "other_package.part"; '
            "give package.module:NAME, importable from the current folder",
        ),
        ("other_package:Shin", 'module other_package has no thing "Shin"; did you mean "Shiny"?'),
        (
            "other_package:number",
            'module other_package has no thing "number"; choose one of Shadow, Shiny',
        ),
    ],
)
def test_what_cannot_be_imported_is_named(registry: Registry, path: str, message: str) -> None:
    with pytest.raises(NotFoundError) as caught:
        registry.load(path)
    assert str(caught.value) == message


def test_a_module_that_lacks_one_of_its_own_imports_names_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_more.py").write_text("import package_that_is_missing\n")
    # "need" is no parent package of "needy", although the name begins with it.
    (tmp_path / "needy.py").write_text("import need\n")
    monkeypatch.syspath_prepend(tmp_path)
    for module, missing in (("needs_more", "package_that_is_missing"), ("needy", "need")):
        with pytest.raises(MissingDependencyError) as caught:
            load_attribute(f"{module}:Thing", "thing")
        said = f'thing "{module}:Thing" needs the package "{missing}"; install it'
        assert str(caught.value) == said
        assert isinstance(caught.value, ImportError)
