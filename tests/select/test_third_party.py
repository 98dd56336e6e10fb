"""A filter of another package: found by its entry point or its path, used like a built-in one."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from thresher.data.pack import Pack
from thresher.data.selection import Selection

Run = Callable[..., subprocess.CompletedProcess[str]]

FILTER = '''
"""Long feature vectors: the smallest filter that another package can add."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from thresher.options import option
from thresher.select.filters.base import Filter


@dataclass
class NormFilter(Filter):
    """Drop the samples with the longest feature vectors.

    Costs one pass over the features.
    """

    name: ClassVar[str] = "norm"
    needs: ClassVar[tuple[str, ...]] = ("features",)

    drop: float = option(0.1, ge=0, lt=1)
    """Share of the samples to drop."""

    def _fit(self, inputs):
        self.score_ = np.linalg.norm(np.asarray(inputs.need_features(), float), axis=1)
        count = round(self.drop * len(inputs))
        self.keep_ = np.argsort(np.argsort(self.score_)) < len(inputs) - count
'''

STUDY = """
seeds = 1

[base]
data = "{digits}"
model = "tiny"
epochs = 1
batch_size = 256
device = "cpu"

[grid]
selection = ["by_name", "by_path"]

[steps.by_name]
do = "select"
filter = "norm"
features = "{features}"
drop = 0.25

[steps.by_path]
do = "select"
filter = "norm_filter:NormFilter"
features = "{features}"

[executor]
kind = "in-process"
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an installed distribution: a module, and metadata with an entry point."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "norm_filter.py").write_text(FILTER)
    info = folder / "norm_filter-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: norm-filter\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[thresher.filters]\nnorm = norm_filter:NormFilter\n")
    return folder


@pytest.fixture(scope="module")
def pixels(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pixels of digits as features."""
    pack = Pack.open(digits)
    train = pack.indices("train")
    path = tmp_path_factory.mktemp("features") / "pixels.npy"
    np.save(path, pack.images(train).reshape(len(train), -1).astype(np.float32))
    path.with_suffix(".ids.txt").write_text("\n".join(pack.ids.take(train).to_pylist()) + "\n")
    return path


@pytest.fixture
def env(site: Path) -> dict[str, str]:
    return {"PYTHONPATH": f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


def expected(pixels: Path, share: float) -> np.ndarray:
    norm = np.linalg.norm(np.load(pixels).astype(float), axis=1)
    return np.argsort(np.argsort(norm)) < len(norm) - round(share * len(norm))


@pytest.mark.parametrize("name", ["norm", "norm_filter:NormFilter"])
def test_from_the_command_line(
    thresher: Run, digits: Path, pixels: Path, env: dict[str, str], tmp_path: Path, name: str
) -> None:
    common = ("select", name, "--data", digits, "--features", pixels)
    done = thresher(*common, "--out", tmp_path / "s.parquet", "--drop", 0.2, "--json", env=env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["method"] == "norm"
    selection = Selection.load(tmp_path / "s.parquet")
    assert selection.dropped == round(0.2 * 1437)
    np.testing.assert_array_equal(selection.keep, expected(pixels, 0.2))
    assert selection.meta["settings"] == {"drop": 0.2}
    assert set(selection.reason) == {"", "norm"}
    done = thresher(*common, "--out", tmp_path / "t.parquet", "--drop", 2, env=env)
    assert done.returncode == 2
    assert "--drop must be in [0, 1), got 2" in done.stderr


def test_in_help(thresher: Run, env: dict[str, str]) -> None:
    text = thresher("select", "norm", "--help", env=env).stdout
    assert "Drop the samples with the longest feature vectors." in text
    assert "Share of the samples to drop. (default: 0.1)" in text
    assert "--features" in text
    assert "--data" in text
    overview = thresher("select", env=env).stdout
    assert "select norm " in overview
    assert "from another package" in overview


@pytest.mark.slow
def test_from_a_study(
    thresher: Run, digits: Path, pixels: Path, env: dict[str, str], tmp_path: Path
) -> None:
    file, out = tmp_path / "study.toml", tmp_path / "study"
    study = STUDY.format(digits=digits, features=pixels)
    file.write_text(study.replace("drop = 0.25", "dorp = 0.25"))
    wrong = thresher("study", "run", file, "--out", out, env=env)
    assert wrong.returncode == 2
    assert 'unknown option "dorp"' in wrong.stderr
    assert 'did you mean "drop"?' in wrong.stderr
    file.write_text(study)
    done = thresher("study", "run", file, "--out", out, "--json", env=env)
    assert done.returncode == 0, done.stderr
    for name, share in (("by_name", 0.25), ("by_path", 0.1)):
        (path,) = out.glob(f"steps/{name},*/selection.parquet")
        np.testing.assert_array_equal(Selection.load(path).keep, expected(pixels, share))
        (trial,) = out.glob(f"trials/selection={name.replace('_', '-')},*")
        assert (trial / "result.json").exists()


def test_from_python(
    pixels: Path, site: Path, monkeypatch: pytest.MonkeyPatch, digits: Path
) -> None:
    monkeypatch.syspath_prepend(site)
    from thresher.plugins import Registry
    from thresher.select.filters.registry import FILTERS

    # A new registry: the module's own was filled before the package was installed.
    filters = Registry(FILTERS.kind, FILTERS.group, FILTERS.built_in)
    assert "norm" in filters.names()
    norm = filters.load("norm")(drop=0.5)
    labels = Pack.open(digits).labels[:1437]
    fitted = norm.fit(np.load(pixels), labels)
    assert fitted is norm
    np.testing.assert_array_equal(fitted.keep_, expected(pixels, 0.5))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("norn", 'did you mean "norm"?'),
        ("norm_filter:NormFiler", 'did you mean "NormFilter"?'),
        ("no_such:Filter", 'no module named "no_such"'),
        ("norm_filter:dataclass", "is not a subclass of thresher.select.filters.base.Filter"),
    ],
)
def test_misspelt_names(
    thresher: Run, env: dict[str, str], tmp_path: Path, name: str, sentence: str
) -> None:
    done = thresher("select", name, "--data", "x", "--out", tmp_path / "s.parquet", env=env)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
