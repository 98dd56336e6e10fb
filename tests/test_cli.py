"""The command line as a person meets it: help, versions, mistakes, and JSON."""

import errno
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Group
from rich.text import Text

from made_images import picture
from planted import ArraySource
from thresher import __version__
from thresher.cli import COMMANDS, Command, main
from thresher.cli.main import _show as show
from thresher.data.write import write_pack

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_version(thresher: Run) -> None:
    assert thresher("--version", fresh=True).stdout == f"thresher {__version__}\n"


def test_overview_names_every_first_word(thresher: Run) -> None:
    text = thresher("--help").stdout
    for command in COMMANDS:
        assert f"\n  {command.words.split()[0]} " in text


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c.words)
def test_help_of_every_command_reads_well(thresher: Run, command: Command) -> None:
    done = thresher(*command.words.split(), "--help")
    assert done.returncode == 0, done.stderr
    assert f"usage: thresher {command.words}" in done.stdout
    assert "--json" in done.stdout
    assert "config." not in done.stdout, "a flag shows the name of an inner dataclass"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["trian"], 'thresher: there is no command "trian"; did you mean "train"?\n'),
        (
            ["data", "infoo", "x"],
            'thresher: there is no command "thresher data infoo"; did you mean "info"?\n',
        ),
        (
            ["data", "info", "cifra10"],
            'thresher: there is no pack "cifra10"; did you mean "cifar10"?\n',
        ),
        (
            ["data", "info", "some/digits"],
            'thresher: there is no pack "some/digits"; check the path\n',
        ),
    ],
)
def test_a_mistake_gets_one_sentence_and_exit_code_2(
    thresher: Run, arguments: list[str], sentence: str
) -> None:
    done = thresher(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == sentence


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["data", "info", "digits", "--bogus"],
            "there is no option --bogus; see `thresher data info --help`",
        ),
        (
            ["view", "x.parquet", "--prot", "80"],
            "there is no option --prot; did you mean --port?",
        ),
        (
            ["view", "x.parquet", "--port", "abc"],
            "--port must be an integer, got abc; see `thresher view --help`",
        ),
        (["data", "info"], "missing: PACK; see `thresher data info --help`"),
        (["data", "info", "a", "b"], "unexpected argument b; see `thresher data info --help`"),
        (
            ["data", "export", "a", "--outt", "b"],
            "missing: OUT; see `thresher data export --help`",
        ),
        (
            ["study", "run", "a.toml", "--out", "b", "--executor", "lokal"],
            '--executor cannot be "lokal"; did you mean "local"?',
        ),
        (
            ["study", "run", "a.toml", "--out"],
            "--out needs a value; see `thresher study run --help`",
        ),
    ],
)
def test_a_wrong_flag_gets_one_sentence_too(
    thresher: Run, arguments: list[str], sentence: str
) -> None:
    done = thresher(*arguments)
    assert done.returncode == 2
    assert done.stderr == f"thresher: {sentence}\n"


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_a_wrong_flag_gets_one_sentence_on_a_terminal_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """There the library that parses flags prints colours inside its frames."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout", Terminal())
    with pytest.raises(SystemExit):
        main(["data", "info"])
    assert capsys.readouterr().err == "thresher: missing: PACK; see `thresher data info --help`\n"


def test_a_command_to_copy_stays_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    command = "thresher view " + 40 * "folder/"
    terminal = Terminal()
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stdout", terminal)
    show(Group("words " * 20, Text(command, no_wrap=True)))
    *wrapped, last = terminal.getvalue().splitlines()
    assert last == command
    assert max(map(len, wrapped)) <= 60


@pytest.mark.parametrize("arguments", [["--help"], ["data", "verify", "--help"]])
def test_help_fits_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "84")
    with pytest.raises(SystemExit):
        main(arguments)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 84


def test_windows_gets_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from thresher.cli import main

    monkeypatch.setattr("sys.platform", "win32")
    with pytest.raises(SystemExit) as ended:
        main(["data", "list"])
    assert ended.value.code == 2
    assert "Windows is not supported" in capsys.readouterr().err


def test_importing_the_command_line_needs_nothing_that_windows_lacks() -> None:
    """Otherwise the sentence above would be a traceback."""
    code = """
import sys
for name in ("fcntl", "pwd", "grp", "resource", "termios"):
    sys.modules[name] = None
import thresher.cli
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_quick_end_waits_for_threads_and_handlers_and_keeps_the_code() -> None:
    code = """
import atexit, sys, threading, time
from thresher.cli import run
def main():
    atexit.register(print, "handler")
    threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
    print("main")
    raise SystemExit(3)
sys.modules["thresher.cli.main"].main = main
run()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.split() == ["main", "thread", "handler"]


@pytest.mark.slow
def test_pandas_is_loaded_only_where_it_is_used() -> None:
    code = """
import sys
import pyarrow as pa
from thresher.startup import skip_pandas
skip_pandas()
table = pa.table({"a": ["x", None]})
assert "pandas" not in sys.modules
frame = table.to_pandas()
assert frame["a"].tolist()[0] == "x"
assert pa.Table.from_pandas(frame).num_rows == 2 and pa.array(frame["a"]).null_count == 1
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_debug_shows_the_traceback(thresher: Run) -> None:
    done = thresher("data", "info", "nothing-here", env={"THRESHER_DEBUG": "1"})
    assert done.returncode == 2
    assert "Traceback" in done.stderr


def test_json_is_one_object_on_standard_output(thresher: Run, digits: Path) -> None:
    done = thresher("data", "info", "digits", "--json", fresh=True)
    assert done.returncode == 0
    keys = {"name", "splits", "classes", "image_shape", "mean", "std", "fingerprint", "bytes"}
    assert keys <= json.loads(done.stdout).keys()
    assert done.stdout.count("\n") == 1


def test_names_are_printed_as_they_are(thresher: Run, tmp_path: Path) -> None:
    """Brackets are no markup, and a class may have the name of the last row of a table."""
    images, labels = np.zeros((8, 4, 4, 1), np.uint8), np.array([0, 1] * 4)
    source = ArraySource(
        images, labels, ["train"] * 8, [f"{n}" for n in range(8)], ["all", "cat [old] :cat:"]
    )
    pack = write_pack(source, tmp_path / "pack [old]")
    info = thresher("data", "info", pack.root).stdout
    assert str(pack.root).replace(" ", "") in "".join(info.split())
    out = tmp_path / "keep [b].parquet"
    options = ("--drop", 0.25, "--per-class", "--out", out)
    printed = thresher("select", "random", "--data", pack.root, *options).stdout
    _, *rows, last = printed.splitlines()
    names, numbers = zip(*(row.rsplit(maxsplit=4)[:2] for row in rows), strict=True)
    assert (names, numbers) == (("all", "cat [old] :cat:", "all"), ("3", "3", "6"))
    assert last.startswith(f"{out} in ")


@pytest.mark.parametrize(("reads", "code"), [(False, 0), (True, 1)])
def test_only_a_reader_who_left_ends_a_command_quietly(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], reads: bool, code: int
) -> None:
    """A broken pipe to another process is an error, not success."""

    def broken(arguments: list[str]) -> int:
        raise BrokenPipeError

    monkeypatch.setattr(sys.modules["thresher.cli.main"], "_dispatch", broken)
    read, write = os.pipe()
    if not reads:
        os.close(read)
    monkeypatch.setattr("sys.stdout", os.fdopen(write, "w"))
    with pytest.raises(SystemExit) as ended:
        main(["data"])
    assert ended.value.code == code
    assert ("BrokenPipeError" in capfd.readouterr().err) is reads


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (MemoryError(), "memory is full (MemoryError); use smaller batches"),
        (RuntimeError("CUDA out of memory. Tried"), "memory is full (CUDA out of memory. Tried"),
        (OSError(errno.EMFILE, "Too many open files", "x"), "too many files are open; raise the"),
    ],
    ids=["memory", "GPU memory", "files"],
)
def test_a_limit_of_the_machine_gets_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    sentence: str,
) -> None:
    def full(arguments: list[str]) -> int:
        raise error

    monkeypatch.setattr(sys.modules["thresher.cli.main"], "_dispatch", full)
    with pytest.raises(SystemExit) as ended:
        main(["data"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"thresher: {sentence}")


LIMITED = """
import os, resource, sys, threading
from thresher.cli.main import main
{limit}
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("limit", "command", "sentence"),
    [
        # No address space for the stack of a thread, or for torch.
        ("threading.stack_size(1 << 47)", "data verify", "the system starts no more threads for"),
        (
            "resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))",
            "train --out run --data",
            "memory is full (libtorch_cpu.so: failed to map segment from shared object); use",
        ),
    ],
)
@pytest.mark.fresh
def test_a_limit_of_the_process_gets_one_sentence(
    digits: Path, tmp_path: Path, limit: str, command: str, sentence: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED.format(limit=limit), *command.split(), str(digits)],
        cwd=tmp_path,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"thresher: {sentence}")
    assert "Traceback" not in done.stderr
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("out", [["--out=~/S.parquet"], ["--out", "~/S.parquet"]])
def test_a_home_folder_that_the_shell_leaves_is_expanded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, digits: Path, out: list[str]
) -> None:
    """`--out=~/S.parquet` made a folder with the name `~`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        main(["select", "random", f"--data={digits}", "--drop=0.5", *out])
    assert ended.value.code == 0
    assert (tmp_path / "S.parquet").is_file()


def test_an_argument_that_is_no_text(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["data", "info", os.fsdecode(b"caf\xe9")])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "thresher: caf\\xe9 is not UTF-8 text; rename the file\n"


@pytest.mark.slow
def test_names_that_the_locale_cannot_write(thresher: Run, tmp_path: Path) -> None:
    """In the middle of an export: packing such names works, because it escapes them."""
    ascii = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    (tmp_path / "images" / "café").mkdir(parents=True)
    (tmp_path / "images" / "café" / "a.png").write_bytes(picture(0, 8, 8, "PNG"))
    pack, out = tmp_path / "pack", tmp_path / "out"
    done = thresher("data", "pack", tmp_path / "images", pack, env=ascii, fresh=True)
    assert done.returncode == 0, done.stderr
    done = thresher("data", "export", pack, out, "--format", "folder", env=ascii, fresh=True)
    assert done.returncode == 2
    assert re.fullmatch(
        r"thresher: \S+caf\\xe9 cannot be written in the encoding of this locale, which is ascii; "
        r"set PYTHONUTF8=1\n",
        done.stderr.splitlines(keepends=True)[-1],
    )
    assert not out.exists()
