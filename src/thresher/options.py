"""Options are declared once, as dataclass fields; everything else is derived from them.

A field holds type, default, bounds and whether it changes the result; the string below it is its
help text. Command-line flags, TOML keys, validation and the tables in the docs all read that.

    @dataclass(frozen=True, kw_only=True)
    class OptimizerConfig:
        momentum: float = option(0.9, ge=0, lt=1)
        \"\"\"Momentum of SGD.\"\"\"
"""

import ast
import dataclasses
import functools
import inspect
import itertools
import math
import textwrap
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from thresher.errors import InvalidValueError, nearest

_KEY = "thresher.option"
LARGEST_INT = 2**63 - 1
T = TypeVar("T")


@dataclass(frozen=True)
class Bounds:
    """The range of a numeric option; None means unbounded on that side."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None

    def __contains__(self, value: float) -> bool:
        return (
            (self.ge is None or value >= self.ge)
            and (self.gt is None or value > self.gt)
            and (self.le is None or value <= self.le)
            and (self.lt is None or value < self.lt)
        )

    def __str__(self) -> str:
        """Say it in words for a one-sided range, as an interval for a two-sided one."""
        low = self.gt if self.ge is None else self.ge
        high = self.lt if self.le is None else self.le
        if low is None and high is None:
            return "finite"
        if high is None:
            return f"at least {low:g}" if self.ge is not None else f"greater than {low:g}"
        if low is None:
            return f"at most {high:g}" if self.le is not None else f"less than {high:g}"
        left, right = "[" if self.ge is not None else "(", "]" if self.le is not None else ")"
        return f"in {left}{low:g}, {high:g}{right}"


def option(
    default: Any = MISSING,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    changes_result: bool = True,
    positional: bool = False,
) -> Any:
    """Declare an option of a configuration dataclass.

    Args:
        default: Its default; without one the option is required.
        ge, gt, le, lt: Bounds of a number, or of each number of a tuple.
        changes_result: False if two runs that differ only here give the same result, so that a
            run may be resumed with another value.
        positional: On the command line the option is an argument without a flag.
    """
    metadata = {_KEY: (Bounds(ge, gt, le, lt), changes_result, positional)}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class OptionInfo:
    """One option as a reader sees it."""

    name: str
    type: Any
    default: Any
    """`dataclasses.MISSING` if the option is required."""
    help: str
    bounds: Bounds
    changes_result: bool
    positional: bool

    @property
    def flag(self) -> str:
        """The command-line flag."""
        return flag(self.name)

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed words of a Literal type; empty for other types."""
        return tuple(choice for choice in _literals(self.type) if isinstance(choice, str))


def flag(name: str) -> str:
    """Return the command-line flag of a parameter: `batch_size` becomes `--batch-size`."""
    return f"--{name.replace('_', '-')}"


@functools.cache
def describe(config: type) -> tuple[OptionInfo, ...]:
    """Return the options of a configuration dataclass, in order."""
    hints = typing.get_type_hints(config)
    texts = _help_texts(config)
    described = []
    for field in dataclasses.fields(config):
        if not field.init:
            continue
        bounds, *facts = field.metadata.get(_KEY, (Bounds(), True, False))
        default = field.default
        if default is MISSING and field.default_factory is not MISSING:
            default = field.default_factory()
        text = texts.get(field.name, "")
        info = OptionInfo(field.name, hints[field.name], default, text, bounds, *facts)
        described.append(info)
    return tuple(described)


def changes_result(config: type) -> frozenset[str]:
    """Return the names of the options that change the result."""
    return frozenset(info.name for info in describe(config) if info.changes_result)


def validate(config: object) -> None:
    """Check type, finiteness, range and choices of every option of a configuration dataclass.

    Raises:
        InvalidValueError: For the first option that is wrong, naming it and its value.
    """
    for info in describe(type(config)):
        _check(info.name, getattr(config, info.name), info.type, info.bounds)


def from_mapping(config: Callable[..., T], values: Mapping[str, Any], where: str = "") -> T:
    """Build a configuration from TOML or JSON values and validate it.

    Lists become tuples and strings become paths where the field says so. An unknown key is an
    error that names the nearest known one; `where` says in which table or file it stands.
    """
    infos = {info.name: info for info in describe(typing.cast(type, config))}
    place = f" in {where}" if where else ""
    for key in values:
        if key not in infos:
            raise InvalidValueError(f'unknown option "{key}"{place}', nearest(key, infos))
    for name, info in infos.items():
        if info.default is MISSING and name not in values:
            raise InvalidValueError(f"{name} is required{place}", "", name)
    made = config(**{key: _converted(value, infos[key].type) for key, value in values.items()})
    validate(made)
    return made


def to_mapping(config: object) -> dict[str, Any]:
    """Return the options as JSON values: tuples as lists, paths as strings."""
    return {info.name: _plain(getattr(config, info.name)) for info in describe(type(config))}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _members(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a union, else the type itself."""
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(inner for member in get_args(hint) for inner in _members(member))
    return (hint,)


def _literals(hint: Any) -> tuple[Any, ...]:
    return tuple(
        choice for m in _members(hint) if get_origin(m) is Literal for choice in get_args(m)
    )


def _converted(value: Any, hint: Any) -> Any:
    for member in _members(hint):
        if isinstance(value, list) and get_origin(member) is tuple:
            inner = (get_args(member) or (Any,))[0]
            return tuple(_converted(item, inner) for item in value)
        if isinstance(value, str) and member is Path:
            return Path(value)
        if isinstance(value, int) and not isinstance(value, bool) and member is float:
            return float(value) if abs(value) <= LARGEST_INT else value
    return value


def _check(name: str, value: Any, hint: Any, bounds: Bounds) -> None:
    if hint is Any:
        return
    members = _members(hint)
    if value is None and type(None) in members:
        return
    choices = _literals(hint)
    if value in choices and type(value) in {type(choice) for choice in choices}:
        return
    if isinstance(value, tuple) and any(get_origin(member) is tuple for member in members):
        (member,) = (member for member in members if get_origin(member) is tuple)
        for item in value:
            _check(name, item, get_args(member)[0], bounds)
        return
    if isinstance(value, bool) and bool in members:
        return
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and (float in members or (int in members and isinstance(value, int))):
        _check_number(name, value, bounds)
        return
    if isinstance(value, str) and str in members:
        return
    if isinstance(value, Path) and Path in members:
        return
    if isinstance(value, str) and choices:
        raise InvalidValueError(
            f'{name} cannot be "{value}"', nearest(value, map(str, choices)), name
        )
    others = [m for m in members if inspect.isclass(m) and m not in _WORDS]
    if any(isinstance(value, member) for member in others):
        return
    raise InvalidValueError(f"{name} must be {_words(hint)}, got {value!r}", "", name)


def _check_number(name: str, value: float, bounds: Bounds) -> None:
    too_large = isinstance(value, int) and abs(value) > LARGEST_INT
    if too_large or not math.isfinite(value) or value not in bounds:
        wanted = str(bounds)
        if not too_large and not math.isfinite(value) and value in bounds:
            wanted = "finite"
        if too_large and value in bounds:
            wanted = f"at most {LARGEST_INT}"
        raise InvalidValueError(f"{name} must be {wanted}, got {value}", "", name)


_WORDS = {int: "an integer", float: "a number", str: "text", bool: "true or false", Path: "a path"}


def _words(hint: Any) -> str:
    said = []
    for member in _members(hint):
        if get_origin(member) is tuple:
            said.append("a list")
        elif get_origin(member) is Literal:
            said.append("one of " + ", ".join(map(str, get_args(member))))
        elif member is not type(None):
            said.append(_WORDS.get(member, getattr(member, "__name__", str(member))))
    return " or ".join(dict.fromkeys(said))


def _help_texts(config: type) -> dict[str, str]:
    """The string below each field, of the class and its bases."""
    texts: dict[str, str] = {}
    for base in reversed(config.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except (OSError, TypeError):
            continue  # made at run time: it has no source of its own
        body = typing.cast(ast.ClassDef, ast.parse(source).body[0]).body
        for statement, following in itertools.pairwise(body):
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and isinstance(following, ast.Expr)
                and isinstance(following.value, ast.Constant)
                and isinstance(following.value.value, str)
            ):
                texts[statement.target.id] = inspect.cleandoc(following.value.value)
    return texts
