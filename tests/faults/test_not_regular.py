"""Files in a folder of images that are not regular: listed as broken, never waited for."""

import io
import os
import socket
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from PIL import Image

from thresher.data.pack import Pack

Run = Callable[..., CompletedProcess[str]]


def _image(value: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (value, 0, 0)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Two classes of three images each."""
    for name in ("a", "b"):
        folder = tmp_path / "images" / name
        folder.mkdir(parents=True)
        for n in range(3):
            (folder / f"{n}.png").write_bytes(_image(40 * n))
    return tmp_path / "images"


def _socket(path: Path) -> None:
    # The address of a socket is at most 108 bytes long, which a test's folder may exceed.
    before = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(before)


KINDS: dict[str, Callable[[Path], None]] = {
    "fifo": os.mkfifo,
    "socket": _socket,
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "dangling link": lambda path: path.symlink_to("nothing"),
    "folder": Path.mkdir,
}


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_a_file_is_listed(
    thresher: Run, images: Path, kind: str, processes: int
) -> None:
    KINDS[kind](images / "a" / "odd.png")
    out = images.parent / "pack"
    done = thresher("data", "pack", images, out, "--processes", processes, timeout=60)
    assert done.returncode == 0, done.stderr
    pack = Pack.open(out)
    assert len(pack) == 6
    # A folder without images is not an image that is missing.
    assert pack.meta.broken == ([] if kind == "folder" else ["a/odd.png"])
    assert pack.verify() == []


def test_a_name_that_is_not_utf8_is_listed(thresher: Run, images: Path) -> None:
    (images / "a" / os.fsdecode(b"\xff.png")).write_bytes(_image(9))
    out = images.parent / "pack"
    done = thresher("data", "pack", images, out, timeout=60)
    assert done.returncode == 0, done.stderr
    assert Pack.open(out).meta.broken == ["a/\\xff.png"]
    assert "a/\\xff.png" in done.stdout


def test_a_class_whose_name_is_not_utf8_is_left_out(thresher: Run, images: Path) -> None:
    os.rename(images / "b", images / os.fsdecode(b"b\xe9"))
    out = images.parent / "pack"
    done = thresher("data", "pack", images, out, timeout=60)
    assert done.returncode == 0, done.stderr
    pack = Pack.open(out)
    assert pack.classes == ["a"]
    assert pack.meta.broken == [f"b\\xe9/{n}.png" for n in range(3)]


def test_folders_that_contain_each_other_are_read_once(thresher: Run, images: Path) -> None:
    (images / "a" / "up").symlink_to(images)
    out = images.parent / "pack"
    done = thresher("data", "pack", images, out, timeout=60)
    assert done.returncode == 0, done.stderr
    assert len(Pack.open(out)) == 6


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fifo", "socket", "endless device"])
@pytest.mark.parametrize("suffix", ["", ".npz", ".h5", ".tar", ".tfrecord"])
def test_a_source_that_is_not_a_file_is_refused(
    thresher: Run, tmp_path: Path, kind: str, suffix: str
) -> None:
    KINDS[kind](tmp_path / f"odd{suffix}")
    done = thresher("data", "pack", tmp_path / f"odd{suffix}", tmp_path / "pack", timeout=20)
    assert done.returncode == 2
    assert "is neither a file nor a folder" in done.stderr
    assert not (tmp_path / "pack").exists()
