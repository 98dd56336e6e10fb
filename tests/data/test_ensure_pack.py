"""The library only opens packs; the command line makes or offers those that are missing."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from thresher.cli.packs import ensure_pack, ensure_packs_of_selections, ensure_packs_of_study
from thresher.data.get import get
from thresher.data.pack import Pack
from thresher.data.sources.digits import Digits
from thresher.data.write import WriteOptions, write_pack
from thresher.errors import InvalidValueError, NotFoundError
from thresher.paths import write_json
from thresher.study.reading import from_dict

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("THRESHER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize("name", ["digits", "cifar10"])
def test_opening_does_not_make_a_pack(home: Path, name: str) -> None:
    with pytest.raises(NotFoundError) as caught:
        Pack.open(name)
    assert str(caught.value) == (
        f'data set "{name}" is not in the cache; get it with `thresher data get {name}`'
    )
    assert isinstance(caught.value, FileNotFoundError)
    assert not home.exists()


def test_other_names_and_folders(home: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match='there is no pack "digit"; did you mean "digits"'):
        Pack.open("digit")
    photos = tmp_path / "my photos"
    photos.mkdir()
    with pytest.raises(InvalidValueError, match=r"is not a pack: it has no pack\.json") as caught:
        Pack.open(photos)
    assert str(caught.value).endswith(f"pack it: `thresher data pack '{photos}' OUT`")


def test_digits_are_made_and_others_are_not_asked_for_without_a_terminal(home: Path) -> None:
    for name in (None, "cifar10", "no-such-pack", home):
        ensure_pack(name)
    assert not home.exists()
    ensure_pack("digits")
    assert len(Pack.open("digits")) == 1797


def test_the_packs_of_a_study(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("thresher.cli.packs.ensure_pack", lambda name: asked.append(str(name)))
    content = {
        "base": {"data": "digits", "epochs": 1},
        "grid": {"data": ["cifar10", "digits"], "selection": ["kept"]},
        "steps": {
            "extractor": {"do": "train", "data": "cifar100"},
            "features": {"do": "embed", "run": "extractor"},
            "kept": {"do": "select", "filter": "network", "features": "features", "drop": 0.1},
        },
    }
    ensure_packs_of_study(from_dict(content, "the study", ""))
    assert set(asked) - {"None"} == {"digits", "cifar10", "cifar100"}


def test_the_pack_that_a_selection_names(home: Path, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[]")
    ensure_packs_of_selections([tmp_path / "a.parquet", tmp_path / "gone.parquet"])
    assert not home.exists()
    write_json(tmp_path / "b.json", {"data": "digits"})
    ensure_packs_of_selections([tmp_path / "b.parquet"])
    assert len(Pack.open("digits")) == 1797


def test_a_command_makes_digits(thresher: Run, home: Path, tmp_path: Path) -> None:
    options = ["--data", "digits", "--drop", 0.1, "--out", tmp_path / "s.parquet", "--json"]
    done = thresher("select", "random", *options)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["dropped"] == 144


def test_a_file_that_is_not_read_is_mentioned(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_pack(Digits(), home / "packs" / "cifar100", WriteOptions(resize=4, processes=1))
    assert len(get("cifar100", home / "other.tar")) == 1797
    assert "cifar100 is in the cache already" in caplog.text
    assert "other.tar was not read" in caplog.text


def test_a_pack_in_the_cache_of_others_needs_no_lock(home: Path) -> None:
    """Its lock file cannot be opened for writing, nor a new one made, by others than its owner."""
    get("digits")
    lock = home / "packs" / ".digits.lock"
    lock.unlink()
    assert len(get("digits")) == 1797
    assert not lock.exists()
