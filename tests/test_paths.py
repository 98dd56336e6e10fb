"""Atomic writes: what a killed process left is removed, what a running one writes is not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from thresher.paths import atomic_file, atomic_folder, write_text

WRITER = """
import sys
from pathlib import Path
from thresher.paths import atomic_file, atomic_folder
with (atomic_folder if sys.argv[2] == "folder" else atomic_file)(Path(sys.argv[1])) as temporary:
    file = temporary / "part" if sys.argv[2] == "folder" else temporary
    file.write_text("half")
    print("half", flush=True)
    sys.stdin.read()
"""


def _writer(target: Path, kind: str) -> "subprocess.Popen[str]":
    """Start a process that is in the middle of writing `target`."""
    words = [sys.executable, "-c", WRITER, str(target), kind]
    process = subprocess.Popen(words, stdin=-1, stdout=-1, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "half\n"
    return process


def _write(target: Path, kind: str) -> None:
    if kind == "file":
        write_text(target, "whole")
    else:
        with atomic_folder(target):
            pass


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_the_next_write_removes_what_a_killed_one_left(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "a[b].json"
    killed = _writer(target, kind)
    killed.kill()
    killed.communicate()
    assert len(list(tmp_path.iterdir())) == 1
    _write(target, kind)
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_a_running_process_writes_stays(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "table"
    running = _writer(target, kind)
    _write(target, kind)
    assert len(list(tmp_path.iterdir())) == 2
    running.kill()
    running.communicate()


def test_temporary_files_of_other_machines_and_other_files_stay(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "table") as temporary:
        temporary.write_text("")
        host = temporary.name.split(".")[2].split("-")[0]
    dead = 4_194_305  # above the largest process id of Linux
    others = [f".table.zzzz-{dead}-abcdef.tmp", f".other.{host}-{dead}-abcdef.tmp", ".table.tmp"]
    for name in others:
        (tmp_path / name).write_text("")
    write_text(tmp_path / "table", "")
    assert sorted(os.listdir(tmp_path)) == sorted([*others, "table"])


def test_a_name_may_be_as_long_as_file_names_are(tmp_path: Path) -> None:
    for name in ("n" * 255, "ü" * 127):
        write_text(tmp_path / name, "whole")
        assert (tmp_path / name).read_text() == "whole"
