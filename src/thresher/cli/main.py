"""Find the command, parse its configuration, run it, print its outcome."""

import dataclasses
import json
import logging
import os
import re
import select
import shutil
import sys
import textwrap
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from thresher.cli.commands import COMMANDS, GROUPS, SELECT, Command, Outcome
from thresher.errors import (
    InvalidValueError,
    ThresherError,
    first_line,
    is_out_of_memory,
    is_out_of_threads,
    nearest,
)
from thresher.paths import user_error
from thresher.read_errors import unreadable
from thresher.select.filters.registry import FILTERS
from thresher.startup import QuickEnd, complete_streams, quick_imports, skip_pandas
from thresher.stopping import asked_to_stop, interrupted
from thresher.version import __version__

WIDEST = 100
"""Columns of the overview: longer lines are hard to read."""


def run() -> None:
    """Run the command line in a process of its own, and end it quickly."""
    ended = QuickEnd(code=1)
    try:
        complete_streams()
        main()
    except SystemExit as error:
        ended.code = error.code if isinstance(error.code, int) else 1
        raise
    except KeyboardInterrupt as error:
        ended.code = interrupted(error)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line; always ends in SystemExit."""
    if sys.platform == "win32":
        # No fork, no advisory locks, no signals between processes.
        print("thresher: Windows is not supported; use the Linux subsystem (WSL)", file=sys.stderr)
        raise SystemExit(2)
    arguments = list(sys.argv[1:] if argv is None else argv)
    # The installed script, unlike `python -m`, does not look in the current folder.
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    _show_log()
    try:
        code = _dispatch_or_stop(arguments)
    except ThresherError as error:
        if os.environ.get("THRESHER_DEBUG"):
            traceback.print_exc()
        print(f"thresher: {error}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt as error:
        _leave(interrupted(error))  # in here, as further signals do not disturb it
    except BrokenPipeError as error:
        code = _reader_left(error)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except Exception as error:
        code = _unexpected(error)
    _leave(code)


def _dispatch_or_stop(arguments: list[str]) -> int:
    """Run the command; an error that came of a signal, in a library, is an interruption."""
    try:
        return _dispatch(arguments)
    except Exception as error:
        stopped = asked_to_stop()
        if stopped is None:
            raise
        raise stopped from error


def _leave(code: int) -> NoReturn:
    # A member of a process group must leave through `end`; only such a process has loaded it.
    group = sys.modules.get("thresher.distributed.group")
    if group is not None:
        group.end(code)
    raise SystemExit(code)


def _reader_left(error: BrokenPipeError) -> int:
    """End quietly if the reader of the output has gone, as other tools do in `thresher … | head`.

    Any other broken pipe, such as that to a process that died, is an error.
    """
    output = select.poll()
    output.register(sys.stdout, 0)  # reports only errors
    if not output.poll(0):
        return _unexpected(error)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _unexpected(error: Exception) -> int:
    """Print a sentence if the disk or memory is full or a limit is met, else the traceback."""
    known: ThresherError | None = None
    if is_out_of_memory(error):
        fix = "use smaller batches, or a machine with more memory"
        known = ThresherError(f"memory is full ({first_line(error)})", fix)
    elif is_out_of_threads(error):
        fix = "raise the limits of processes and memory: `ulimit -u`, `ulimit -v`"
        known = ThresherError("the system starts no more threads for this process", fix)
    elif isinstance(error, OSError):
        known = _disk_error(error)
    elif isinstance(error, UnicodeEncodeError):
        known = _name_error(error.object, error.start)
    if known is not None and not os.environ.get("THRESHER_DEBUG"):
        print(f"thresher: {known}", file=sys.stderr)
        return 2
    traceback.print_exc()
    return 1


def _disk_error(error: OSError) -> ThresherError | None:
    """Return the sentence for an error of reading, or else of writing, a file."""
    if error.filename is None:
        return user_error(error, Path("the output"))
    path = Path(os.fsdecode(error.filename))
    # Without its number: only reading tells whether it was reading that was refused.
    return unreadable(path, OSError()) or user_error(error, path)


def _name_error(text: str, at: int = 0) -> ThresherError:
    """Return the sentence for a name that cannot be written as the locale, or as UTF-8, asks.

    `text` may be a file that holds the name, in quotes or in a line of its own.
    """
    name = re.split(r'["\n]', text[:at])[-1] + re.split(r'["\n]', text[at:])[0]
    shown = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    encoding = sys.getfilesystemencoding()
    if encoding == "utf-8":
        return InvalidValueError(f"{shown} is not UTF-8 text", "rename the file")
    what = f"{shown} cannot be written in the encoding of this locale, which is {encoding}"
    return InvalidValueError(what, "set PYTHONUTF8=1")


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        return text if record.levelno < logging.WARNING else f"{record.levelname.lower()}: {text}"


def _show_log() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines())
    logger = logging.getLogger("thresher")
    logger.handlers = [handler]
    logger.setLevel(os.environ.get("THRESHER_LOG", "INFO").upper())


def _dispatch(arguments: list[str]) -> int:
    for argument in arguments:
        if any("\udc80" <= character <= "\udcff" for character in argument):  # undecoded bytes
            raise _name_error(argument)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview())
        return 0
    if arguments[0] in ("-V", "--version"):
        print(f"thresher {__version__}")
        return 0
    command, rest = _find(arguments)
    if command is not None:
        return _run(command, rest)
    print(_overview(arguments[0]))
    return 0


def _find(arguments: list[str]) -> tuple[Command | None, list[str]]:
    """Return the command that the first one or two words name; None asks for a group's overview."""
    by_words = {command.words: command for command in COMMANDS}
    first = arguments[0]
    if first in by_words:
        return by_words[first], arguments[1:]
    if first not in GROUPS:
        known = {command.words.split()[0] for command in COMMANDS} | set(GROUPS)
        raise InvalidValueError(f'there is no command "{first}"', nearest(first, known))
    if len(arguments) == 1 or arguments[1] in ("-h", "--help"):
        return None, []
    words = f"{first} {arguments[1]}"
    if words in by_words:
        return by_words[words], arguments[2:]
    if first == "select" and arguments[1] in FILTERS:
        # From another package, or package.module:Class.
        return Command(words, "", SELECT), arguments[2:]
    known = {c.words.split()[1] for c in COMMANDS if c.words.startswith(f"{first} ")}
    known |= set(FILTERS.names()) if first == "select" else set()
    raise InvalidValueError(f'there is no command "thresher {words}"', nearest(arguments[1], known))


def _run(command: Command, arguments: list[str]) -> int:
    with quick_imports():
        from thresher.cli.parse import parameters_as_flags, parse
        from thresher.effect import mention, names_shown
        from thresher.options import flag

        config_class, function = command.load()
        skip_pandas()
        config, as_json = parse(command.words, config_class, function, arguments)
    # Training mentions options without an effect itself, when it knows the data and the workers.
    trains, group = command.words == "train", sys.modules.get("thresher.distributed.group")
    if not trains and (group is None or group.placement().rank == 0):
        with names_shown(flag):
            mention(config)
    names = [field.name for field in dataclasses.fields(config)]
    with parameters_as_flags(names), names_shown(flag if trains else None):
        outcome: Outcome | None = function(config)
    if outcome is None:  # another process of the group prints
        return 0
    if as_json:
        print(json.dumps(outcome.data, allow_nan=False, default=_plain), flush=True)
    else:
        _show(outcome.text() if callable(outcome.text) else outcome.text)
    if outcome.then is not None:
        outcome.then()
    return outcome.code


def _show(text: Any) -> None:
    if isinstance(text, str):
        print(text, flush=True)
    elif text is not None:
        from rich.console import Console, Group

        # Names and paths are printed as they are, also with [brackets] or :colons:.
        piped = not sys.stdout.isatty()
        console = Console(soft_wrap=piped, markup=False, emoji=False)
        for part in text.renderables if isinstance(text, Group) else [text]:
            # A line that is not wrapped, such as a command, can be copied.
            console.print(part, soft_wrap=piped or bool(getattr(part, "no_wrap", False)))


def _plain(value: Any) -> Any:
    """Convert numpy scalars and arrays, paths and dataclasses for JSON."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)


def _overview(group: str | None = None) -> str:
    """Return the text of `thresher --help`, made without tyro: it must answer in milliseconds."""
    if group is not None:
        rows = [(c.words, c.summary) for c in COMMANDS if c.words.startswith(f"{group} ")]
        if group == "select":
            others = [name for name in FILTERS.names() if name not in FILTERS.built_in]
            rows += [(f"select {name}", "from another package") for name in others]
            rows.append(("select package.module:Class", "your own filter"))
        what = GROUPS[group]
        head = f"usage: thresher {group} COMMAND …\n\n{what[:1].upper()}{what[1:]}.\n"
        more = f"Run `thresher {group} COMMAND --help` for the options of a command."
    else:
        summaries: dict[str, str] = {}
        for command in COMMANDS:
            first = command.words.split()[0]
            if first in GROUPS:
                words = [c.words.split()[1] for c in COMMANDS if c.words.startswith(f"{first} ")]
                summaries[first] = f"{GROUPS[first]}: {', '.join(words)}"
            else:
                summaries[first] = command.summary
        rows = list(summaries.items())
        head = (
            "usage: thresher COMMAND …\n\n"
            "Find training images that are wrong or do not help, review them, train on the rest,\n"
            "and measure with error bars whether it helped.\n"
        )
        more = (
            "Start with `thresher demo`, or with your own images in one folder per class:\n"
            "`thresher audit FOLDER --out AUDIT`.\n\n"
            "Run `thresher COMMAND --help` for the options of a command. `--json` prints one JSON\n"
            f"object. THRESHER_HOME sets the cache folder. Version {__version__}."
        )
    width = max(len(words) for words, _ in rows)
    lines = textwrap.TextWrapper(
        min(shutil.get_terminal_size().columns, WIDEST),
        subsequent_indent=" " * (width + 4),
        break_on_hyphens=False,
    )
    listed = [lines.fill(f"  {words.ljust(width)}  {summary}") for words, summary in rows]
    return "\n".join([head, *listed, "", more])
