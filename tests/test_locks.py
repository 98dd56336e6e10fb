"""File locks between real processes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from thresher.errors import BusyError, ThresherError
from thresher.locks import exclusive_lock, is_locked

HOLD = """
import sys, time
from pathlib import Path
from thresher.locks import exclusive_lock
with exclusive_lock(Path(sys.argv[1]), "busy"):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def _holder(path: Path, seconds: float) -> "subprocess.Popen[str]":
    """Start a process that holds the lock; returns once it does."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), str(seconds)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_lock_of_another_process_is_busy_until_it_dies(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "deep" / "lock"
    if kind == "folder":
        path.mkdir(parents=True)
    with _holder(path, 60) as process:
        assert is_locked(path)
        with (
            pytest.raises(BusyError, match=r"^another run writes to RUN; wait for it$") as caught,
            exclusive_lock(path, "another run writes to RUN"),
        ):
            pass
        assert isinstance(caught.value, BlockingIOError)
        process.kill()
    assert not is_locked(path)
    with exclusive_lock(path, "busy"):
        assert is_locked(path)
    assert path.exists()


def test_waiting_takes_the_lock_when_it_is_free(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with _holder(path, 0.5):
        begin = time.monotonic()
        with exclusive_lock(path, "busy", wait=True):
            assert time.monotonic() - begin > 0.1
            assert is_locked(path)
    assert not is_locked(path)


def test_an_error_in_the_block_releases_it(tmp_path: Path) -> None:
    with pytest.raises(KeyError), exclusive_lock(tmp_path / "lock", "busy"):
        raise KeyError
    assert not is_locked(tmp_path / "lock")


def test_asking_creates_nothing_and_hinders_nobody(tmp_path: Path) -> None:
    assert not is_locked(tmp_path / "lock")
    assert list(tmp_path.iterdir()) == []
    with exclusive_lock(tmp_path / "lock", "busy"):
        assert [is_locked(tmp_path / "lock") for _ in range(3)] == [True] * 3


def test_a_path_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ThresherError, match="file/lock"),
        exclusive_lock(tmp_path / "file" / "lock", "busy"),
    ):
        pass


def test_a_group_may_use_the_lock_files_of_its_members_if_the_umask_says_so(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        with exclusive_lock(tmp_path / "lock", "busy"):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o664
