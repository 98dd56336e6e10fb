"""The names of the Python API, and what `import thresher` costs."""

import subprocess
import sys

import pytest

import thresher


@pytest.mark.parametrize("name", thresher.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(thresher, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Sack'"):
        thresher.Sack  # noqa: B018


def test_importing_loads_nothing_heavy() -> None:
    code = "import sys, thresher; sys.exit(bool({'torch', 'numpy', 'pyarrow'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
