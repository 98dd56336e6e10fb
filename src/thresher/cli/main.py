"""Find the command, parse its configuration, run it, print what it found."""

import contextlib
import dataclasses
import importlib
import inspect
import io
import json
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any, get_type_hints

from thresher.cli.commands import COMMANDS, GROUPS, Command, Outcome
from thresher.errors import ThresherError, nearest
from thresher.version import __version__

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> None:
    """The entry point of `thresher` and `python -m thresher`; ends in SystemExit."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(arguments)
    except ThresherError as error:
        if os.environ.get("THRESHER_DEBUG"):
            traceback.print_exc()
        print(f"thresher: {error}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        print("thresher: interrupted", file=sys.stderr)
        code = INTERRUPTED
    except BrokenPipeError:
        # `thresher … | head`: the reader has gone; close quietly, as other tools do.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    # A worker among several has its own way out; only such a process has loaded that module.
    group = sys.modules.get("thresher.distributed.group")
    if group is not None:
        group.end(code)
    raise SystemExit(code)


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview())
        return 0
    if arguments[0] in ("-V", "--version"):
        print(f"thresher {__version__}")
        return 0
    command, rest = _find(arguments)
    if command is None:
        print(_overview(arguments[0]))
        return 0
    _run(command, rest)
    return 0


def _find(arguments: list[str]) -> tuple[Command | None, list[str]]:
    """The command that the first one or two words name; None asks for a group's overview."""
    by_words = {command.words: command for command in COMMANDS}
    first = arguments[0]
    if first in by_words:
        return by_words[first], arguments[1:]
    if first not in GROUPS:
        known = {command.words.split()[0] for command in COMMANDS} | set(GROUPS)
        raise ThresherError(f'there is no command "{first}"', nearest(first, known))
    if len(arguments) == 1 or arguments[1] in ("-h", "--help"):
        return None, []
    words = f"{first} {arguments[1]}"
    if words not in by_words:
        known = {c.words.split()[1] for c in COMMANDS if c.words.startswith(f"{first} ")}
        raise ThresherError(f'there is no command "thresher {words}"', nearest(arguments[1], known))
    return by_words[words], arguments[2:]


def _run(command: Command, arguments: list[str]) -> None:
    module, _, name = command.target.partition(":")
    function = getattr(importlib.import_module(module), name)
    config, as_json = _parse(command, function, arguments)
    outcome: Outcome | None = function(config)
    if outcome is None:  # a worker among several: another one prints
        return
    if as_json:
        print(json.dumps(outcome.data, allow_nan=False, default=_plain), flush=True)
    elif isinstance(outcome.text, str):
        print(outcome.text, flush=True)
    elif outcome.text is not None:
        from rich.console import Console

        Console(soft_wrap=not sys.stdout.isatty()).print(outcome.text)
    if outcome.then is not None:
        outcome.then()


def _parse(command: Command, function: Any, arguments: list[str]) -> tuple[Any, bool]:
    """Flags from the dataclass that the function takes, with `--json` beside them."""
    import tyro

    (config,) = (h for n, h in get_type_hints(function).items() if n != "return")
    json_flag = Annotated[
        bool,
        tyro.conf.FlagCreatePairsOff,
        tyro.conf.arg(help="Print one JSON object on standard output."),
    ]
    with_json = dataclasses.make_dataclass(
        config.__name__,
        [("json", json_flag, dataclasses.field(default=False))],
        bases=(config,),
        frozen=config.__dataclass_params__.frozen,
    )
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parsed: Any = tyro.cli(
                with_json,
                prog=f"thresher {command.words}",
                description=inspect.cleandoc(function.__doc__ or command.summary),
                args=arguments,
            )
    except SystemExit as ended:
        if ended.code == 2:
            raise ThresherError(_one_sentence(said.getvalue()), f"`{_help(command)}`") from None
        raise
    fields = [field.name for field in dataclasses.fields(config) if field.init]
    return config(**{name: getattr(parsed, name) for name in fields}), parsed.json


def _help(command: Command) -> str:
    return f"thresher {command.words} --help"


def _one_sentence(box: str) -> str:
    """What tyro says of a mistake in a framed panel, as a sentence."""
    lines = [line.strip(" │╭╮╰╯─\t") for line in box.splitlines()[1:]]
    words = " ".join(line for line in lines if line)
    for beyond in (" Argument helptext", " For full helptext", " (required)"):
        words = words.partition(beyond)[0]
    return words.strip(" .") or "the arguments do not parse"


def _plain(value: Any) -> Any:
    """numpy scalars and arrays, paths and dataclasses as JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)


def _overview(group: str | None = None) -> str:
    """`thresher --help` without tyro: it must answer in a few milliseconds."""
    if group is not None:
        rows = [(c.words, c.summary) for c in COMMANDS if c.words.startswith(f"{group} ")]
        head = f"usage: thresher {group} COMMAND …\n\n{GROUPS[group]}\n"
        more = f"`thresher {group} COMMAND --help` explains each."
    else:
        seen: dict[str, str] = {}
        for command in COMMANDS:
            first = command.words.split()[0]
            if first in GROUPS:
                words = [c.words.split()[1] for c in COMMANDS if c.words.startswith(f"{first} ")]
                seen[first] = f"{GROUPS[first]}: {' | '.join(words)}"
            else:
                seen[first] = command.summary
        rows = list(seen.items())
        head = (
            "usage: thresher COMMAND …\n\n"
            "Find the training images that do not help, look at them, train on the rest at scale,\n"
            "and say with error bars whether it helped.\n"
        )
        more = (
            "`thresher COMMAND --help` explains each; `--json` prints one JSON object instead.\n"
            f"THRESHER_HOME names the cache folder. Version {__version__}."
        )
    width = max(len(words) for words, _ in rows)
    lines = [f"  {words.ljust(width)}  {summary}" for words, summary in rows]
    return "\n".join([head, *lines, "", more])
