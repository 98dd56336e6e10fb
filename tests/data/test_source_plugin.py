"""A source of another package: by entry point, by detection, by package.module:Class."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from plugin_package import install
from thresher.data.sources.registry import SOURCES, SourceOptions, detect, open_source
from thresher.data.write import WriteOptions, write_pack
from thresher.errors import InvalidValueError
from thresher.plugins import Registry

Run = Callable[..., "subprocess.CompletedProcess[str]"]

PIXELS = '''
"""Images as lines of text: a label, then 16 pixels of a 4x4 grey image."""

from pathlib import Path

import numpy as np

from thresher.data.sources.base import Block


class PixelText:
    image_shape = (4, 4, 1)

    def __init__(self, where, name=None):
        self.path = Path(where)
        self.name = name or self.path.stem
        self.rows = np.loadtxt(self.path, dtype=int, ndmin=2)
        self.classes = ["dark", "bright"]

    @staticmethod
    def matches(where):
        return where.endswith(".pixels")

    def key(self):
        return f"pixels {self.path.name} {self.path.stat().st_size}"

    def chunks(self):
        return ["all"]

    def read(self, chunk):
        images = self.rows[:, 1:].astype(np.uint8).reshape(-1, 4, 4, 1)
        ids = [f"line/{n}" for n in range(len(images))]
        yield Block(ids, self.rows[:, 0], ["train"] * len(ids), images)
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    labels = np.arange(6)[:, None] % 2
    pixels = random.integers(0, 100, (6, 16)) + 100 * labels
    np.savetxt(tmp_path / "shades.pixels", np.hstack([labels, pixels]), fmt="%d")
    return tmp_path / "shades.pixels"


@pytest.fixture
def packages(tmp_path: Path) -> dict[str, str]:
    """The environment in which the other package is installed."""
    folder = tmp_path / "packages"
    folder.mkdir()
    install(folder, "text_pixels", PIXELS, "thresher.sources", pixels="text_pixels:PixelText")
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])}


def test_an_installed_source_is_detected(
    thresher: Run, file: Path, packages: dict[str, str], tmp_path: Path
) -> None:
    for number, options in enumerate(([], ["--format", "pixels"])):
        out = tmp_path / f"pack{number}"
        done = thresher("data", "pack", file, out, "--json", *options, env=packages)
        assert done.returncode == 0, done.stderr
        info = json.loads(done.stdout)
        assert (info["name"], info["samples"]) == ("shades", 6)
        assert info["classes"] == ["dark", "bright"]
    done = thresher("data", "pack", file, tmp_path / "x", "--format", "pixel", env=packages)
    assert done.returncode == 2
    assert 'unknown format "pixel"; did you mean "pixels"?' in done.stderr


def test_a_class_of_the_current_folder(file: Path, tmp_path: Path) -> None:
    """Without installation, and in several processes."""
    (tmp_path / "mine.py").write_text(PIXELS)
    command = [sys.executable, "-m", "thresher", "data", "pack", str(file), "pack", "--json"]
    done = subprocess.run(
        [*command, "--format", "mine:PixelText", "--processes", "2", "--name", "grey"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["name"] == "grey"


def test_from_python(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_too.py").write_text(PIXELS)
    monkeypatch.syspath_prepend(tmp_path)
    source = open_source(file, SourceOptions(format="mine_too:PixelText"))
    pack = write_pack(source, tmp_path / "pack", WriteOptions(processes=1))
    assert pack.images(np.arange(6)).max() >= 100
    with pytest.raises(InvalidValueError, match=r"^classes cannot be set for the format"):
        open_source(file, SourceOptions(format="mine_too:PixelText", classes=file))


def test_a_source_that_cannot_be_imported_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(tmp_path, "broken_source", "import nowhere", "thresher.sources", bad="broken_source:X")
    monkeypatch.syspath_prepend(tmp_path)
    fresh = Registry(SOURCES.kind, SOURCES.group, SOURCES.built_in)
    monkeypatch.setattr("thresher.data.sources.registry.SOURCES", fresh)
    np.savez(tmp_path / "a.npz", images=np.zeros((2, 3, 3), np.uint8), labels=np.zeros(2, int))
    assert detect(str(tmp_path / "a.npz")) == "npz"
    assert "the source bad cannot be loaded" in caplog.text
