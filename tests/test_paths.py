"""Atomic writes: what a killed process left is removed, what a running one writes is not."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from thresher.errors import AlreadyExistsError, InvalidValueError, NotFoundError
from thresher.paths import (
    atomic_file,
    atomic_folder,
    home,
    read_run_json,
    scratch_folder,
    user_error,
    write_text,
)

WRITER = """
import sys
from pathlib import Path
from thresher.paths import atomic_file, atomic_folder, scratch_folder
target, kind = Path(sys.argv[1]), sys.argv[2]
if kind == "scratch":
    writing = scratch_folder(target.name, target.parent)
else:
    writing = atomic_folder(target) if kind == "folder" else atomic_file(target)
with writing as temporary:
    file = temporary if kind == "file" else temporary / "part"
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


def test_a_scratch_folder_is_removed_and_what_a_killed_process_left_too(tmp_path: Path) -> None:
    killed, running = (_writer(tmp_path / "work", "scratch") for _ in range(2))
    killed.kill()
    killed.communicate()
    with scratch_folder("work", tmp_path) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert len(list(tmp_path.iterdir())) == 2  # that of the running process stays
    running.communicate("")
    assert not list(tmp_path.iterdir())


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


@pytest.mark.parametrize("name", ["THRESHER_HOME", "XDG_CACHE_HOME"])
def test_an_empty_variable_does_not_put_the_cache_into_the_current_folder(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delenv("THRESHER_HOME", raising=False)
    monkeypatch.setenv(name, "")
    assert home().is_absolute()


def test_a_user_without_a_home_folder_gets_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(uid)

    for name in ("THRESHER_HOME", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    with pytest.raises(NotFoundError, match="no home folder; set THRESHER_HOME to a folder"):
        home()
    assert user_error(PermissionError(errno.EACCES, "no"), Path("out")) is not None


def test_a_cache_that_cannot_be_written_is_changed_by_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THRESHER_HOME", str(tmp_path))
    error = PermissionError(errno.EACCES, "no")
    assert "set THRESHER_HOME" in str(user_error(error, tmp_path / "packs" / "digits"))
    assert "set THRESHER_HOME" not in str(user_error(error, tmp_path.parent / "run"))


def test_a_folder_that_another_process_finished_first_is_kept(tmp_path: Path) -> None:
    with (
        pytest.raises(AlreadyExistsError, match="cannot be written"),
        atomic_folder(tmp_path / "a"),
    ):
        write_text(tmp_path / "a" / "theirs", "")
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "theirs"]


@pytest.mark.parametrize("text", ["[]", "3", "{}", '{"config": 3}', '{"config": {}, "data": []}'])
def test_a_damaged_file_of_a_run_is_one_sentence(tmp_path: Path, text: str) -> None:
    """Whoever read it looked for tables in it and ended in a traceback."""
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(InvalidValueError, match=r"run\.json is not a run: it is damaged"):
        read_run_json(tmp_path / "run.json", "run")
