"""Command-line flags, derived from a configuration dataclass; errors, with parameters as flags."""

import contextlib
import dataclasses
import inspect
import io
import itertools
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TextIO, Union, get_args, get_origin, get_type_hints

from thresher.cli.mistakes import explain
from thresher.effect import help_text
from thresher.errors import InvalidValueError, ThresherError
from thresher.options import OptionInfo, describe, flag, validate

WIDEST = 100
"""Columns of text in `--help`: longer lines are hard to read."""
KEPT_BREAK = " "
"""Begins a line of a description, so that tyro leaves the break before it."""


class _Printed(io.StringIO):
    """Collects what is printed to a stream, with the frames and colours that it can show."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.stream.encoding

    def isatty(self) -> bool:
        return self.stream.isatty()


def parse(
    words: str, config: type, function: Callable[..., Any], arguments: Sequence[str]
) -> tuple[Any, bool]:
    """Parse the arguments of the command `words` into a validated `config`, and `--json`."""
    import tyro

    infos = describe(config)
    names = [info.name for info in infos]
    defaults = _dependent_defaults(config, arguments)
    flags = _flags(config, _possible(config, arguments), defaults)
    messages, shown = io.StringIO(), _Printed(sys.stdout)
    description = _wrapped(with_flags(inspect.cleandoc(function.__doc__ or ""), names))
    try:
        with contextlib.redirect_stderr(messages), contextlib.redirect_stdout(shown):
            options = _split_lists(_spell_out(arguments, names), infos)
            prog = f"thresher {words}"
            parsed: Any = tyro.cli(flags, prog=prog, description=description, args=options)
    except SystemExit as ended:
        if ended.code == 2:
            what, fix = explain(messages.getvalue())
            raise InvalidValueError(what, fix or f"see `thresher {words} --help`") from None
        head, frame, options_shown = shown.getvalue().partition("╭")
        head = head.replace("\n\n\n", "\n\n").replace(f"\n{KEPT_BREAK}", "\n")
        print(head + frame + options_shown, end="")
        raise
    given = {name: getattr(parsed, name) for name in names if hasattr(parsed, name)}
    built = config(**{**defaults, **given})
    with parameters_as_flags(names):
        validate(built)
    return built, parsed.json


def _possible(config: type, arguments: Sequence[str]) -> list[OptionInfo]:
    """Return the options that can occur in these arguments: tyro takes up to 1 ms for each.

    An argument that names none of them asks for help or is an error that names similar options:
    then these are all options.
    """
    infos = describe(config)
    named = {a.partition("=")[0].replace("_", "-") for a in arguments if a.startswith("-")}
    flags = {info.flag for info in infos}
    known = flags | {f"--no-{flag[2:]}" for flag in flags} | {"--json"}
    if named - known:
        return list(infos)
    hints = get_type_hints(config, include_extras=True)
    return [
        info
        for info in infos
        if info.default is dataclasses.MISSING
        or not named.isdisjoint((info.flag, f"--no-{info.flag[2:]}"))
        or _is_positional(info, hints)
    ]


def _is_positional(info: OptionInfo, hints: Mapping[str, Any]) -> bool:
    import tyro

    marks = getattr(hints[info.name], "__metadata__", ())
    return info.positional or tyro.conf.Positional in marks


def _flags(config: type, infos: Sequence[OptionInfo], defaults: Mapping[str, Any]) -> type:
    """Return a dataclass for tyro with `infos`, options of `config`, and `json`."""
    import tyro

    names = [info.name for info in describe(config)]
    hints = get_type_hints(config, include_extras=True)
    json_help = tyro.conf.arg(
        help="Print one JSON object on standard output; errors go to standard error."
    )
    json_hint = _ANNOTATED[(bool, tyro.conf.FlagCreatePairsOff, json_help)]
    fields: list[Any] = [("json", json_hint, dataclasses.field(default=False, kw_only=True))]
    for info in infos:
        info = dataclasses.replace(info, default=defaults.get(info.name, info.default))
        positional = _is_positional(info, hints)
        extra = (tyro.conf.Positional,) if positional else ()
        shown = tyro.conf.arg(
            name=info.flag.removeprefix("--") if info.name.endswith("_") else None,
            help=with_flags(help_text(info, names), names),
            metavar=info.name.upper() if positional else _metavar(info),
            help_behavior_hint="" if info.default in (None, ()) else None,
        )
        hint = _ANNOTATED[(_union(hints[info.name]), shown, *extra)]
        fields.append((info.name, hint, dataclasses.field(default=info.default, kw_only=True)))
    return dataclasses.make_dataclass(config.__name__, fields)


def _union(hint: Any) -> Any:
    """Return `X | None` as `Union[X, None]`, for which tyro need not load typeguard, 0.05 s."""
    return Union[get_args(hint)] if isinstance(hint, UnionType) else hint  # noqa: UP007


def _dependent_defaults(config: type, arguments: Sequence[str]) -> dict[str, Any]:
    """Return the defaults that follow from other flags, if the configuration has such."""
    if not hasattr(config, "flag_defaults"):
        return {}
    # A value may hold "=", as the folders of trials do: `--config trials/lr=0.1/run.json`.
    split = (a.split("=", 1) if a.startswith("--") else [a] for a in arguments)
    pairs = itertools.pairwise(itertools.chain.from_iterable(split))
    return config.flag_defaults({a: b for a, b in pairs if a.startswith("--")})


def _spell_out(arguments: Sequence[str], names: Sequence[str]) -> list[str]:
    """Replace `--output` and `--output-dir`, as other tools call it, by `--out`."""
    if "out" not in names:
        return list(arguments)
    return [re.sub(r"^--output([-_]dir)?(?==|$)", "--out", argument) for argument in arguments]


def _split_lists(arguments: Sequence[str], infos: Sequence[OptionInfo]) -> list[str]:
    """Split the values of list options at commas: `--workers 1,2` is `--workers 1 2`."""
    lists = {info.flag for info in infos if info.is_list}
    words: list[str] = []
    inside = False
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if argument.startswith("--"):
            inside = name.replace("_", "-") in lists
            if inside and equals:
                words.append(name)
                argument = value
        words += argument.split(",") if inside and not argument.startswith("--") else [argument]
    return words


_ANNOTATED: Any = Annotated
_METAVARS = {int: "INT", float: "FLOAT", str: "STR", Path: "PATH", bool: "{True,False}"}


def _metavar(info: OptionInfo) -> str | None:
    """Name the value of `X | None` by X alone, that of a list by its items; None: tyro's choice."""
    members = [member for member in get_args(info.type) if member is not type(None)]
    if info.is_list:
        hint = info.type if get_origin(info.type) is tuple else members[0]
        item = get_args(hint)[0]
        return f"{_METAVARS.get(item) or '|'.join(get_args(item))},…"
    if len(members) == len(get_args(info.type)):
        return None
    return "|".join(_METAVARS.get(one) or f"{{{','.join(get_args(one))}}}" for one in members)


@contextlib.contextmanager
def parameters_as_flags(names: Iterable[str]) -> Any:
    """Rewrite a ThresherError that leaves the block so that it names flags, not parameters."""
    known = set(names)
    try:
        yield
    except ThresherError as error:
        if error.parameter in known and error.what.startswith(error.parameter):
            error.what = flag(error.parameter) + error.what[len(error.parameter) :]
        error.what = with_flags(error.what, known)
        error.fix = with_flags(error.fix, known)
        raise


def with_flags(text: str, names: Iterable[str]) -> str:
    """Replace each parameter in backticks by its flag: `batch_size` becomes --batch-size."""
    known = set(names)

    def replaced(match: re.Match[str]) -> str:
        return flag(match[1]) if match[1] in known else match[0]

    return re.sub(r"`([a-z_0-9]+)`", replaced, text)


def _wrapped(text: str) -> str:
    """Break the lines of paragraphs to fit the terminal.

    tyro breaks no line and joins those that begin with a letter, so each begins with a space.
    """
    width = min(shutil.get_terminal_size().columns, WIDEST)
    lines = textwrap.TextWrapper(width, KEPT_BREAK, KEPT_BREAK, break_on_hyphens=False)
    return "\n\n".join(lines.fill(" ".join(part.split())) for part in text.split("\n\n"))
