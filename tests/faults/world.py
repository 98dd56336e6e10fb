"""A small folder with one good file of every kind, which trials damage."""

import contextlib
import io
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from thresher.data.pack import Pack
from thresher.data.sources.base import Block
from thresher.data.write import WriteOptions, write_pack

TRAIN, TEST = 240, 40

STUDY = """
seeds = 1
[base]
data = "pack"
model = "tiny"
epochs = 1
[grid]
lr = [0.05, 0.1]
[executor]
kind = "in-process"
"""


RUNS = """arm,seed,accuracy
a,0,0.91
b,0,0.93
a,1,0.92
b,1,0.95
"""


class FewDigits:
    """The first digits, in two chunks."""

    name = "few-digits"
    image_shape: tuple[int, int, int] | None = (8, 8, 1)

    def __init__(self, pack: Pack) -> None:
        self.pack, self.classes = pack, pack.classes

    def key(self) -> str:
        return self.name

    def chunks(self) -> list[str]:
        return ["train", "test"]

    def read(self, chunk: str) -> Iterator[Block]:
        rows = self.pack.indices(chunk)[: TRAIN if chunk == "train" else TEST]
        ids = self.pack.ids.take(rows).to_pylist()
        yield Block(ids, self.pack.labels[rows], [chunk] * len(rows), self.pack.images(rows))


def command(*words: object) -> int:
    """Run a command in this process and return its exit code."""
    from thresher.cli.main import main

    try:
        main([str(word) for word in words])
    except SystemExit as ended:
        return int(ended.code or 0)
    raise AssertionError("main always ends in SystemExit")


def _make(root: Path, digits: Path) -> None:
    write_pack(FewDigits(Pack.open(digits)), root / "pack", WriteOptions(processes=1))
    for name in ("a", "b"):
        (root / "images" / name).mkdir(parents=True)
        for n in range(4):
            picture = io.BytesIO()
            Image.new("RGB", (8 + n, 8), (30 * n, 0, 0)).save(picture, "PNG")
            (root / "images" / name / f"{n}.png").write_bytes(picture.getvalue())
    (root / "empty").mkdir()
    shutil.copytree(digits, root / "home" / "packs" / "digits")
    (root / "file.txt").write_text("not what you want\n")
    (root / "study.toml").write_text(STUDY)
    (root / "runs.csv").write_text(RUNS)
    images = np.zeros((6, 8, 8, 1), np.uint8)
    np.savez(root / "arrays.npz", images=images, labels=np.arange(6) % 2)
    train = ("train", "--data", "pack", "--epochs", 1, "--device", "cpu", "--threads", 1)
    measure = ("scale", "measure", "--model", "tiny", "--data", "pack", "--batch-size", 4)
    made = [
        ("data", "flip", "pack", "other", "--share", 0.2),
        (*train, "--out", "run", "--record-dynamics"),
        ("embed", "--data", "pack", "--run", "run", "--out", "features"),
        ("select", "random", "--data", "pack", "--out", "sel.parquet"),
        ("select", "knn", "--data", "pack", "--features", "features", "--out", "hard.parquet"),
        ("select", "random", "--data", "other", "--out", "foreign.parquet"),
        ("data", "pack", "images", "encoded", "--processes", 1),
        ("data", "export", "encoded", "tars", "--format", "webdataset"),
        ("data", "export", "encoded", "records", "--format", "tfrecord"),
        ("data", "export", "encoded", "base", "--format", "lmdb"),
        ("data", "export", "encoded", "h5", "--format", "hdf5"),
        ("data", "export", "encoded", "exported"),
        ("study", "run", "study.toml", "--out", "study"),
        (*measure, "--seconds-per-batch", 0.02, "--image-size", 8, "--out", "profile.json"),
    ]
    for words in made:
        assert command(*words) == 0, words


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Work in `folder`, with a cache of its own."""
    before, home = os.getcwd(), os.environ["THRESHER_HOME"]
    os.chdir(folder)
    os.environ["THRESHER_HOME"] = str(folder / "home")
    try:
        yield
    finally:
        os.chdir(before)
        os.environ["THRESHER_HOME"] = home


@pytest.fixture(scope="session")
def template(digits: Path, once: Callable[..., Path]) -> Path:
    """The folder, made once for all workers; tests must not write to it."""

    def make(folder: Path) -> None:
        with working_in(folder):
            _make(folder, digits)

    return once("faults", make)


@pytest.fixture
def world(template: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of the folder, in which the test runs."""
    folder = tmp_path / "world"
    shutil.copytree(template, folder, symlinks=True)
    with working_in(folder):
        yield folder


def tree(root: Path) -> dict[str, tuple[int, int]]:
    """Size and modification time of every file, without following links."""
    found: dict[str, tuple[int, int]] = {}
    folders = [str(root)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    found[entry.path] = (0, 0)
                    if not entry.is_symlink():
                        folders.append(entry.path)
                else:
                    status = entry.stat(follow_symlinks=False)
                    found[entry.path] = (status.st_size, status.st_mtime_ns)
    return found


class SharedWorld:
    """A copy of the folder that several tests use, one after the other, as each leaves it as it
    was, or names what it has changed (`restore`), or gives it up (`discard`)."""

    def __init__(self, template: Path, parent: Path) -> None:
        self.template, self.parent = template, parent
        self._copies = 0
        self._folder: Path | None = None
        self._content: dict[str, tuple[int, int]] = {}

    def folder(self) -> Path:
        """Return the folder, as it was made."""
        if self._folder is None:
            self._copies += 1
            self._folder = self.parent / f"world-{self._copies}"
            shutil.copytree(self.template, self._folder, symlinks=True)
            self._content = tree(self._folder)
        return self._folder

    def restore(self, target: str) -> None:
        """Copy a file or folder again; make a new copy of all if something else has changed."""
        folder = self.folder()
        good, changed = self.template / target, folder / target
        if target and changed.parent.is_dir():
            _remove(changed)
            if good.is_dir():
                shutil.copytree(good, changed, symlinks=True)
            elif good.exists():
                shutil.copy2(good, changed)
        if tree(folder) != self._content:
            self.discard()

    def discard(self) -> None:
        """Remove the copy."""
        if self._folder is not None:
            shutil.rmtree(self._folder)
            self._folder = None


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@pytest.fixture(scope="session")
def shared_world(template: Path, tmp_path_factory: pytest.TempPathFactory) -> SharedWorld:
    """A copy of the folder for tests that leave it as it was."""
    return SharedWorld(template, tmp_path_factory.mktemp("shared"))
