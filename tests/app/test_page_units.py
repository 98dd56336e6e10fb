"""The page's unit tests: what decides is tested without a browser, in TypeScript."""

import shutil
import subprocess
from pathlib import Path

import pytest

WEB = Path(__file__).parents[2] / "web"


@pytest.mark.slow
def test_the_units_of_the_page() -> None:
    if shutil.which("npm") is None or not (WEB / "node_modules").is_dir():
        pytest.skip("the page's packages are not installed: run `make page`")
    done = subprocess.run(["npm", "test"], cwd=WEB, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
