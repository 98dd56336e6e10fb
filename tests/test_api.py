"""The names of the Python API: importable lazily and without torch, and typed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import thresher

ROOT = Path(__file__).parent.parent
NAMES = [name for name in thresher.__all__ if not name.startswith("_")]


@pytest.mark.parametrize("name", thresher.__all__)
def test_every_name_is_importable(name: str) -> None:
    assert getattr(thresher, name) is not None
    assert name in dir(thresher)


def test_the_names_that_users_expect_are_public() -> None:
    expected = {"train", "TrainConfig", "RunResult", "Pack", "Selection", "Features", "Study"}
    expected |= {"analyse", "write_report", "write_pack", "ThresherError", "__version__"}
    assert expected <= set(thresher.__all__)


def test_every_built_in_filter_is_public() -> None:
    from thresher.select.filters.registry import FILTERS

    classes = {path.partition(":")[2] for path in FILTERS.built_in.values()}
    assert classes == {name for name in NAMES if name.endswith("Filter")}


def test_type_checkers_see_the_same_names() -> None:
    """Names are imported lazily at run time, and under TYPE_CHECKING for mypy."""
    tree = ast.parse(Path(str(thresher.__file__)).read_text())
    seen = {
        alias.asname
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module != "thresher.version"
        for alias in node.names
        if alias.asname
    }
    assert seen == set(NAMES)


def test_the_typed_example_uses_every_name() -> None:
    """`make lint` checks that file with `mypy --strict`."""
    tree = ast.parse((ROOT / "tests" / "typing" / "public_api.py").read_text())
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "thresher"
        for alias in node.names
    }
    assert imported == set(thresher.__all__)
    assert (ROOT / "src" / "thresher" / "py.typed").exists()


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Sack'"):
        thresher.Sack  # noqa: B018


def test_importing_loads_nothing_heavy() -> None:
    code = "import sys, thresher; sys.exit(bool({'torch', 'numpy', 'pyarrow'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["Features", "Pack", "RunResult", "Selection", "Study", "ThresherError", "TrainConfig"]
)
def test_files_and_configurations_load_without_torch(name: str) -> None:
    code = f"import sys, thresher; thresher.{name}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
