"""Full and read-only disks: one sentence, exit code 2, and nothing half-written is left."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

pytest_plugins = ["world"]
pytestmark = pytest.mark.slow  # mounts file systems, and trains

Run = Callable[..., CompletedProcess[str]]
TRAIN = "train --data pack --epochs 1 --device cpu --threads 1"
COMMANDS = {
    "data pack": ("data pack images {disk}/out --processes 1", 4),
    "data pack in processes": ("data pack images {disk}/out --processes 2", 4),
    "data flip": ("data flip pack {disk}/out", 12),
    "data export": ("data export pack {disk}/out", 16),
    "data export webdataset": ("data export pack {disk}/out --format webdataset", 16),
    "data export tfrecord": ("data export pack {disk}/out --format tfrecord", 16),
    "data export lmdb": ("data export pack {disk}/out --format lmdb", 16),
    "data export hdf5": ("data export pack {disk}/out --format hdf5", 16),
    "train": (f"{TRAIN} --out {{disk}}/out", 24),
    "train, first file": (f"{TRAIN} --out {{disk}}/out", 4),
    "train, checkpoint": (f"{TRAIN} --out {{disk}}/out --checkpoint-every 1", 24),
    "embed": ("embed --data pack --run run --out {disk}/out", 16),
    "embed, later": ("embed --data pack --run run --out {disk}/out", 32),
    "select": ("select random --data pack --out {disk}/out.parquet", 4),
    "study run": ("study run study.toml --out {disk}/out", 4),
    "study report": ("study report study --out {disk}/out", 4),
    "study import": ("study import runs.csv --out {disk}/out", 4),
    "view --export": ("view sel.parquet --no-browser --export {disk}/out", 64),
    "scale measure": (
        "scale measure --model tiny --batch-size 2 --seconds-per-batch 0.01 --out {disk}/out.json",
        4,
    ),
    "demo": ("demo --out {disk}/out", 16),
    "reproduce": ("reproduce mccord-batch --out {disk}/out", 4),
}
"""Words, and the size of the disk in KiB: too small for what the command writes."""
RESUMED = ("train", "study run", "demo", "reproduce")
"""What these have finished stays, to be resumed."""


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Return a function that mounts a file system of so many KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount_tmpfs(kib: int) -> Path:
        words = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(folder)]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")
        return folder

    yield mount_tmpfs
    subprocess.run(["umount", "-l", str(folder)], capture_output=True)


def _refused(done: CompletedProcess[str], words: str) -> None:
    assert done.returncode == 2, (words, done.returncode, done.stderr)
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("thresher: "), done.stderr
    assert "Errno" not in last


@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk(thresher: Run, world: Path, mount: Callable[[int], Path], name: str) -> None:
    words, kib = COMMANDS[name]
    disk = mount(kib)
    done = thresher(*words.format(disk=disk).split(" "), timeout=200)
    _refused(done, words)
    assert "space" in done.stderr
    left = [path.name for path in disk.rglob("*")]
    if not name.startswith(RESUMED):
        assert left == []
    assert not [name for name in left if name.endswith((".tmp", ".partial"))]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_read_only_disk(
    thresher: Run, world: Path, mount: Callable[[int], Path], name: str
) -> None:
    words, _ = COMMANDS[name]
    disk = mount(64)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    done = thresher(*words.format(disk=disk).split(" "), timeout=200)
    _refused(done, words)
    assert "no permission to write" in done.stderr
    assert list(disk.iterdir()) == []


def test_a_finished_study_on_a_read_only_disk_is_finished(
    thresher: Run, world: Path, mount: Callable[[int], Path]
) -> None:
    disk = mount(4096)
    shutil.copytree(world / "study", disk / "study")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    words = ["study", "run", "study.toml", "--out", str(disk / "study")]
    done = thresher(*words)
    assert done.returncode == 0, done.stderr
    assert "2 of 2 trials are already finished" in done.stderr
    assert "lr" in done.stdout
    assert f"report: {disk / 'study' / 'report' / 'index.html'}" in done.stdout
    # Other seeds would have to run.
    Path("more.toml").write_text(Path("study.toml").read_text().replace("seeds = 1", "seeds = 2"))
    words[2] = "more.toml"
    _refused(thresher(*words), "study run")


def test_data_get_into_a_full_cache(
    thresher: Run, world: Path, mount: Callable[[int], Path]
) -> None:
    disk = mount(16)
    done = thresher("data", "get", "digits", env={"THRESHER_HOME": str(disk / "home")})
    _refused(done, "data get")
    assert list(disk.rglob("*")) == []
