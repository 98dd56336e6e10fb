"""The command of a study: its placeholders, and the arguments of each trial.

`[base] command = "python mytrain.py --seed {seed} --lr {lr} --out {out}"` is split as a shell would
split it, and each `{name}` is replaced by a value of the trial. No shell runs, so a value with
spaces or quotes stays one argument.
"""

import shlex
import string
from collections.abc import Collection, Mapping
from typing import Any

from thresher.errors import InvalidValueError, nearest
from thresher.home_paths import with_home
from thresher.study.reported import is_finite

COMMAND = "command"
"""The key of [base] and [arms] that makes the trials of a study run a command."""
REQUIRED = ("seed", "out")
"""Placeholders that every command must have."""
SET_BY_STUDY = (*REQUIRED, "python")
"""Placeholders that are not options of [base], [grid] or [arms]."""


def placeholders(command: Any, where: str) -> list[str]:
    """Return the names of the placeholders of a command; `where` is its table, for messages.

    Raises:
        InvalidValueError: The command is not text that can be split, has a malformed placeholder,
            or lacks one of `REQUIRED`.
    """
    names = [name for word in _words(command, where) for name in _names(word, where)]
    for name in REQUIRED:
        if name not in names:
            raise InvalidValueError(
                f"command must contain {{{name}}}, got {command!r} (in {where})",
                f"add --{name} {{{name}}}, as your program calls it",
            )
    return names


def fill(command: str, values: Mapping[str, Any]) -> list[str]:
    """Return the arguments of a trial: the words of the command with `values` in place.

    Raises:
        InvalidValueError: A placeholder is not among `values`.
    """
    arguments = []
    for word in _words(command, "the study"):
        for name in _names(word, "the study"):
            if name not in values:
                fix = nearest(name, values)
                raise InvalidValueError(
                    f'command contains {{{name}}}, but "{name}" is neither an axis nor an option',
                    fix if fix.endswith("?") else "give it a value in [base] or [grid]",
                )
        arguments.append(word.format_map({key: _text(value) for key, value in values.items()}))
    return arguments


def check_unused(axes: Collection[str], used: Collection[str], where: str) -> None:
    """Refuse an axis that no command uses: its values would give the same runs."""
    for axis in axes:
        if axis not in used:
            raise InvalidValueError(
                f'"{axis}" is an axis, but command does not contain {{{axis}}} (in {where})',
                f"add --{axis} {{{axis}}}, as your program calls it, or remove the axis",
            )


def check_value(name: str, value: Any, where: str) -> None:
    """Check a value that is put into a command: text, a finite number, true or false."""
    text = isinstance(value, str) and "\0" not in value
    if not (text or isinstance(value, bool) or is_finite(value)):
        raise InvalidValueError(
            f"{name} must be text, a finite number, true or false, got {value!r} (in {where})"
        )


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _words(command: Any, where: str) -> list[str]:
    if not isinstance(command, str) or "\0" in command:
        raise InvalidValueError(f"command must be text, got {command!r} (in {where})")
    try:
        words = shlex.split(command)
    except ValueError as error:
        reason = str(error).lower()
        raise InvalidValueError(
            f"command cannot be split into words: {reason} (in {where})"
        ) from None
    if not words:
        raise InvalidValueError(f"command is empty (in {where})")
    return [with_home(word) for word in words]


def _names(word: str, where: str) -> list[str]:
    """Return the names of the placeholders of one word."""
    try:
        parts = list(string.Formatter().parse(word))
    except ValueError:
        parts = [("", "", "", None)]
    names = []
    for _, name, layout, conversion in parts:
        if name is None:
            continue
        if not name.isidentifier() or layout or conversion:
            raise InvalidValueError(
                f'command has a malformed placeholder in "{word}" (in {where})',
                "write {name}, and {{ or }} for a brace",
            )
        names.append(name)
    return names
