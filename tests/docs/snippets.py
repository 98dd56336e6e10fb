"""Fenced code blocks of a Markdown page, and how to run or check each.

A comment before a block, invisible on the rendered page, changes what happens to it:

    <!-- snippet: check, needs a GPU -->    parse it, do not run it
    <!-- snippet: file=study.toml -->       write it to a file that later blocks use
    <!-- snippet: text -->                  neither code nor a command

A comment `<!-- run: COMMAND -->` is a command that the page does not show.
"""

import ast
import importlib
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from forks import FORKS

ROOT = Path(__file__).parents[2]
MARK = re.compile(r"<!-- snippet: (?P<mark>check|text|file)(?:=(?P<file>\S+))?(?:,.*)? -->")
HIDDEN = re.compile(r"<!-- run: (?P<command>.+) -->")
FENCE = re.compile(r"(?P<indent> *)```(?P<language>\w*)")
TIMEOUT_S = 300
RUN = {"sh", "python"}
"""Languages that are run unless a comment says otherwise."""
CHECKED = {"toml", "json"}
"""Languages that are parsed."""
PLAIN = {"text"}


@dataclass(frozen=True)
class Snippet:
    """A code block: its language, text and first line, and the mark of the comment before it."""

    page: str
    line: int
    language: str
    text: str
    mark: str = "run"
    file: str | None = None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def collect(page: Path) -> list[Snippet]:
    """Return the code blocks of a page, in order."""
    name = page.relative_to(ROOT).as_posix()
    lines = iter(enumerate(page.read_text().splitlines(), 1))
    snippets: list[Snippet] = []
    mark: dict[str, Any] = {}
    for number, line in lines:
        if hidden := HIDDEN.fullmatch(line.strip()):
            snippets.append(Snippet(name, number, "sh", hidden["command"]))
        elif line.strip().startswith("<!-- snippet"):
            match = MARK.fullmatch(line.strip())
            assert match, f"{name}:{number}: unknown mark {line.strip()}"
            mark = match.groupdict()
        elif fence := FENCE.match(line):
            text = "\n".join(_until_fence(lines, len(fence["indent"]), f"{name}:{number}"))
            snippets.append(Snippet(name, number, fence["language"], text, **mark))
            mark = {}
        elif line.strip():
            assert not mark, f"{name}:{number}: the mark above is not followed by a code block"
    return snippets


def _until_fence(lines: Iterator[tuple[int, str]], indent: int, where: str) -> Iterator[str]:
    for _, line in lines:
        if line.strip() == "```":
            return
        yield line[indent:]
    raise AssertionError(f"{where}: the code block is not closed")


def check(snippet: Snippet) -> None:
    """Parse a block: Python with its imports resolved, commands with the real parsers."""
    if snippet.language == "python":
        check_python(snippet.text)
    elif snippet.language == "sh":
        for words in commands(snippet.text):
            check_command(words)
    elif snippet.language == "toml":
        tomllib.loads(snippet.text)
    elif snippet.language == "json":
        json.loads(snippet.text)


def check_python(text: str) -> None:
    """Parse Python and resolve what it imports."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                assert importlib.util.find_spec(alias.name), f"no module {alias.name}"
        elif isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"


def commands(text: str) -> list[list[str]]:
    """Split a shell block into commands, each a list of words."""
    joined = text.replace("\\\n", " ")
    result: list[list[str]] = []
    for line in joined.splitlines():
        words = shlex.split(line, comments=True)
        while "&&" in words:
            cut = words.index("&&")
            result.append(words[:cut])
            words = words[cut + 1 :]
        if words:
            result.append(words)
    return result


def check_command(words: list[str]) -> None:
    """Parse a command: flags of `thresher`, targets of make, modules of `python -m`, extras."""
    while "=" in words[0] and not words[0].startswith("-"):
        words = words[1:]  # FOO=1 command
    program, *rest = words
    if program in ("srun", "torchrun"):
        _check_launcher(program, rest)
    elif program == "thresher":
        parse_thresher(rest)
    elif program == "podman" and rest[0] == "run":
        parse_thresher(rest[rest.index("thresher") + 1 :])  # after the name of the image
    elif program == "make":
        makefile = (ROOT / "Makefile").read_text()
        targets = [word for word in rest if "=" not in word]
        assert all(re.search(rf"^{target}:", makefile, re.M) for target in targets), words
    elif program == "python":
        _check_module(rest)
    elif program == "pip":
        _check_extras(words)
    elif program == "npm":
        scripts = json.loads((ROOT / "web/package.json").read_text())["scripts"]
        assert rest[0] == "ci" or rest[1] in scripts, words
    elif program in ("cd", "git", "podman"):
        pass
    else:
        assert (ROOT / program).exists(), f"cannot check {shlex.join(words)}"


def _check_launcher(program: str, words: list[str]) -> None:
    """Check torchrun's own flags, then the command of Thresher behind it."""
    if program == "srun":
        parse_thresher(words[words.index("thresher") + 1 :])
        return
    from torch.distributed.run import get_args_parser

    parsed = get_args_parser().parse_args(words)
    assert parsed.module, words
    assert parsed.training_script == "thresher", words
    parse_thresher(parsed.training_script_args)


def _check_module(words: list[str]) -> None:
    """Check `python -m MODULE`; the flags of a benchmark against its `--help`."""
    assert words[0] == "-m", words
    assert importlib.util.find_spec(words[1]), words
    if words[1].startswith("benchmarks."):
        command = [sys.executable, "-m", words[1], "--help"]
        printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
        for word in words[2:]:
            assert not word.startswith("--") or word in printed, words


def _check_extras(words: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for name in re.findall(r"\[([\w,]+)\]", " ".join(words)):
        assert set(name.split(",")) <= extras.keys(), words


def parse_thresher(arguments: list[str]) -> None:
    """Parse the arguments of `thresher` with its own parser, without running the command."""
    from thresher.cli.parse import parse

    command, rest = importlib.import_module("thresher.cli.main")._find(arguments)
    if command is not None:
        config, function = command.load()
        parse(command.words, config, function, rest)


# ---- running: children of a fork server that has loaded torch, once for all pages ----------------


def _enter(folder: Path, output: Path, environment: dict[str, str]) -> None:
    os.chdir(folder)
    os.environ.update(environment)
    handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(handle, stream)
    sys.path[:0] = [""]  # as with `python -m thresher`
    # A file that a page adds to src/thresher/PACKAGE is a part of that package.
    for package in (folder / "src" / "thresher").glob("*"):
        importlib.import_module(f"thresher.{package.name}").__path__.append(str(package))


def _thresher(arguments: list[str], *place: Any) -> None:
    """Run the command line in this process."""
    from thresher.cli import main

    _enter(*place)
    main(arguments)


def _python(pipe: Connection, *place: Any) -> None:
    """Execute the blocks that arrive in one namespace; answer each with a traceback, or None."""
    _enter(*place)
    names: dict[str, Any] = {"__name__": "__page__"}
    while snippet := pipe.recv():
        try:
            # The line numbers of the page stand in tracebacks.
            text = "\n" * snippet.line + snippet.text
            exec(compile(text, str(ROOT / snippet.page), "exec"), names)
            pipe.send(None)
        except Exception:
            pipe.send(traceback.format_exc())


class Page:
    """Runs the blocks of one page in one folder; Python blocks share their names.

    `home` is Thresher's own folder, where the packs lie that a page names.
    """

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder, self.output = folder, folder / ".output"
        environment = {"NO_COLOR": "1", "THRESHER_HOME": str(home)}
        self._place = (folder, self.output, environment)
        self._interpreter: tuple[Connection, Any] | None = None
        scripts = folder / ".bin"
        scripts.mkdir()
        for program, command in (("thresher", " -m thresher"), ("python", "")):
            script = scripts / program
            script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{command} "$@"\n')
            script.chmod(0o755)
        installed = Path(sys.executable).parent
        path = os.pathsep.join([str(scripts), str(installed), os.environ["PATH"]])
        self._environment = {**os.environ, **environment, "PATH": path}
        (folder / "examples").symlink_to(ROOT / "examples")

    def __enter__(self) -> "Page":
        return self

    def __exit__(self, *error: object) -> None:
        if self._interpreter is not None:
            pipe, process = self._interpreter
            pipe.send(None)
            process.join(20)
            process.kill()

    def run(self, snippet: Snippet) -> None:
        """Run a block; an assertion names the page and line where it fails."""
        if snippet.file is not None:
            check_file(snippet)
            target = self.folder / snippet.file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(snippet.text + "\n")
        elif snippet.language == "sh":
            lines = commands(snippet.text)
            if all(words[0] in ("thresher", "torchrun") for words in lines):
                for program, *arguments in lines:
                    run = self._run_thresher if program == "thresher" else self._run_torchrun
                    run(snippet, arguments)
            else:
                self._run_shell(snippet)
        elif snippet.language == "python":
            self._run_python(snippet)
        else:
            check(snippet)

    def _run_thresher(self, snippet: Snippet, arguments: list[str]) -> None:
        self.output.unlink(missing_ok=True)
        process = FORKS.Process(target=_thresher, args=(arguments, *self._place))
        process.start()
        process.join(TIMEOUT_S)
        if process.is_alive():
            process.kill()
        shown = f"{snippet}: thresher {shlex.join(arguments)}: exit code {process.exitcode}\n"
        assert process.exitcode == 0, shown + self.output.read_text()

    def _run_torchrun(self, snippet: Snippet, arguments: list[str]) -> None:
        # Forked, as are its workers: see forks.py.
        self._run_process(snippet, [sys.executable, "-m", "torch.distributed.run", *arguments])

    def _run_shell(self, snippet: Snippet) -> None:
        self._run_process(snippet, ["bash", "-euo", "pipefail", "-c", snippet.text])

    def _run_process(self, snippet: Snippet, words: list[str]) -> None:
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        failed = f"{snippet}: exit code {done.returncode}\n{snippet.text}\n"
        assert done.returncode == 0, failed + done.stdout + done.stderr

    def _run_python(self, snippet: Snippet) -> None:
        if self._interpreter is None:
            ours, theirs = FORKS.Pipe()
            process = FORKS.Process(target=_python, args=(theirs, *self._place))
            process.start()
            theirs.close()
            self._interpreter = (ours, process)
        pipe = self._interpreter[0]
        pipe.send(snippet)
        assert pipe.poll(TIMEOUT_S), f"{snippet}: no answer after {TIMEOUT_S} s"
        error = pipe.recv()
        assert error is None, f"{snippet}:\n{error}"


def check_file(snippet: Snippet) -> None:
    """Parse a block that is written to a file, by the ending of its name."""
    if str(snippet.file).endswith(".py"):
        ast.parse(snippet.text)
    elif str(snippet.file).endswith(".toml"):
        tomllib.loads(snippet.text)
