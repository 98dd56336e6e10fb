"""Options are declared once, as dataclass fields; everything else is derived from them.

A field holds type, default, bounds, whether it changes the result and the options without which it
has no effect; the string below it is its help text. Command-line flags, TOML keys, validation and
the tables in the docs all read that.

    @dataclass(frozen=True, kw_only=True)
    class OptimizerConfig:
        momentum: float = option(0.9, ge=0, lt=1)
        \"\"\"Momentum of SGD.\"\"\"
"""

import dataclasses
import functools
import inspect
import math
import numbers
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from thresher.errors import InvalidValueError, nearest
from thresher.help_texts import help_texts
from thresher.home_paths import expand_home

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
        above = (self.ge is None or value >= self.ge) and (self.gt is None or value > self.gt)
        below = (self.le is None or value <= self.le) and (self.lt is None or value < self.lt)
        return above and below

    def __str__(self) -> str:
        low = _digits(self.gt if self.ge is None else self.ge)
        high = _digits(self.lt if self.le is None else self.le)
        if not low and not high:
            return "finite"
        if not high:
            return f"{'at least' if self.ge is not None else 'greater than'} {low}"
        if not low:
            return f"{'at most' if self.le is not None else 'less than'} {high}"
        left, right = "[" if self.ge is not None else "(", "]" if self.le is not None else ")"
        return f"in {left}{low}, {high}{right}"


def _digits(number: float | None) -> str:
    """Write a bound without a needless ".0", but never rounded."""
    if number is None:
        return ""
    return str(int(number)) if float(number).is_integer() and abs(number) < 1e15 else str(number)


Conditions = Mapping[str, tuple[Any, ...] | Bounds | bool]
"""Options by name, and their values: listed, in a range, or whether they are given at all."""


def option(
    default: Any = MISSING,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    changes_result: bool = True,
    positional: bool = False,
    only_with: Conditions | None = None,
) -> Any:
    """Declare an option of a configuration dataclass.

    Args:
        default: Its default; without one the option is required.
        ge: Lower bound of a number, or of each number of a tuple.
        gt: Lower bound, exclusive.
        le: Upper bound.
        lt: Upper bound, exclusive.
        changes_result: False if two runs that differ only here give the same result, so that a
            run may be resumed with another value.
        positional: On the command line the option is an argument without a flag.
        only_with: Other options by name, and their values with which this one has an effect; see
            `thresher.effect`.
    """
    metadata = {_KEY: (Bounds(ge, gt, le, lt), changes_result, positional, only_with or {})}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class OptionInfo:
    """One option as a reader sees it."""

    name: str
    type: Any
    default: Any
    """`dataclasses.MISSING` if the option is required."""
    bounds: Bounds
    changes_result: bool
    positional: bool
    only_with: Conditions
    """The options that it has an effect with; not all of them need be options of `config`."""
    config: type
    """The class that it is an option of."""

    @property
    def help(self) -> str:
        """What it means; read from the source, which takes a while."""
        return help_texts(self.config).get(self.name, "")

    @property
    def flag(self) -> str:
        """The command-line flag."""
        return flag(self.name)

    @property
    def is_list(self) -> bool:
        """Whether the option takes several numbers or words (not paths)."""
        items = [get_args(m)[0] for m in _members(self.type) if get_origin(m) is tuple]
        return any(item in (int, float, str) or _literals(item) for item in items)

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed words of a Literal type; empty for other types."""
        return tuple(choice for choice in _literals(self.type) if isinstance(choice, str))


def flag(name: str) -> str:
    """Return the command-line flag of a parameter: `batch_size` becomes `--batch-size`.

    A name that is a word of Python ends in an underscore: `from_` becomes `--from`.
    """
    return f"--{name.rstrip('_').replace('_', '-')}"


@functools.cache
def describe(config: type) -> tuple[OptionInfo, ...]:
    """Return the options of a configuration dataclass, in order."""
    hints = typing.get_type_hints(config)
    described = []
    for field in dataclasses.fields(config):
        if not field.init:
            continue
        bounds, changes, positional, only = field.metadata.get(_KEY, (Bounds(), True, False, {}))
        default = field.default
        if default is MISSING and field.default_factory is not MISSING:
            default = field.default_factory()
        about = (field.name, hints[field.name], default, bounds)
        described.append(OptionInfo(*about, changes, positional, only, config))
    return tuple(described)


def changes_result(config: type) -> frozenset[str]:
    """Return the names of the options that change the result."""
    return frozenset(info.name for info in describe(config) if info.changes_result)


def validate(config: object, path: str = "") -> None:
    """Check type, finiteness, range and choices of every option of a configuration dataclass.

    Messages name the first option that is wrong, after `path`, and its value. `~/` at the start of
    one becomes the home folder.
    """
    expand_home(config)
    kind: Any = type(config)
    for info in describe(kind):
        value = getattr(config, info.name)
        if value is not info.default:
            _check(f"{path}{info.name}", info.name, value, info.type, info.bounds)


def from_mapping(config: Callable[..., T], values: Mapping[str, Any], where: str = "") -> T:
    """Build a configuration from TOML or JSON values and validate it.

    Lists become tuples, strings become paths, tables become dataclasses and keys of tables become
    integers where the field says so. `where`, the file or table of the values, is for messages.
    """
    try:
        built = _build(config, values, "")
        validate(built)
    except InvalidValueError as error:
        error.what += f" (in {where})" if where else ""
        raise
    return built


def to_mapping(config: object) -> dict[str, Any]:
    """Return the options as JSON values: tuples as lists, paths as text, dataclasses as dicts."""
    kind: Any = type(config)
    return {info.name: _plain(getattr(config, info.name)) for info in describe(kind)}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value):
        return to_mapping(value)
    if _is_number(value):  # also numpy's, which json does not write
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    return str(value) if isinstance(value, Path) else value


def _build(config: Callable[..., T], values: Any, path: str) -> T:
    if not isinstance(values, Mapping):
        raise InvalidValueError(f"expected a table of options, got {_short(values)}")
    infos = {info.name: info for info in describe(typing.cast(type, config))}
    for key in values:
        if key not in infos:
            raise InvalidValueError(f'unknown option "{path}{key}"', nearest(str(key), infos))
    for name, info in infos.items():
        if info.default is MISSING and name not in values:
            raise InvalidValueError(f"{path}{name} is required", "", name)
    return config(
        **{key: _converted(item, infos[key].type, f"{path}{key}") for key, item in values.items()}
    )


def _converted(value: Any, hint: Any, path: str) -> Any:
    """Convert a TOML or JSON value to the type of its field; a wrong one is left to `_check`."""
    members = _members(hint)
    if isinstance(value, str) and str not in members and value not in _literals(hint):
        return Path(value) if Path in members else value
    if type(value) is int and float in members and int not in members:
        return float(value) if abs(value) <= LARGEST_INT else value
    for member in members:
        origin, arguments = get_origin(member), get_args(member)
        if isinstance(value, list) and origin is tuple:
            hints = _item_hints(arguments, len(value))
            items = enumerate(zip(value, hints, strict=True))
            return tuple(_converted(item, inner, f"{path}[{n}]") for n, (item, inner) in items)
        if isinstance(value, dict) and dataclasses.is_dataclass(member):
            return _build(typing.cast(type, member), value, f"{path}.")
        if isinstance(value, dict) and origin is dict:
            kind, inner = arguments
            return {
                int(key) if kind is int and key.isdecimal() else key: _converted(
                    item, inner, f"{path}.{key}"
                )
                for key, item in value.items()
            }
    return value


_MEMBERS: dict[int, tuple[Any, tuple[Any, ...]]] = {}
"""The types seen so far and their members, by identity: equal unions may differ in their order."""


def _members(hint: Any) -> tuple[Any, ...]:
    """Return the alternatives of a union, else the type itself."""
    if id(hint) not in _MEMBERS:
        _MEMBERS[id(hint)] = (hint, _find_members(hint))
    return _MEMBERS[id(hint)][1]


def _find_members(hint: Any) -> tuple[Any, ...]:
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(inner for member in get_args(hint) for inner in _members(member))
    return (get_args(hint)[0],) if get_origin(hint) is Annotated else (hint,)


def _literals(hint: Any) -> tuple[Any, ...]:
    return tuple(
        choice for m in _members(hint) if get_origin(m) is Literal for choice in get_args(m)
    )


def _item_hints(arguments: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """Return the types of `count` items of a tuple type; Any for those beyond its length."""
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return (arguments[0],) * count
    return (*arguments, *[Any] * count)[:count]


def _check(label: str, name: str, value: Any, hint: Any, bounds: Bounds) -> None:
    """Check one value; `label` is its name in messages, such as "points[2].seconds"."""
    kind = type(value)
    if kind is hint and (kind is str or kind is bool):  # the common case
        return
    members = _members(hint)
    member = next((member for member in members if _accepts(value, member)), MISSING)
    if member is MISSING:
        choices = _literals(hint)
        if isinstance(value, str) and choices and set(map(get_origin, members)) == {Literal}:
            raise InvalidValueError(
                f'{label} cannot be "{value}"', nearest(value, map(str, choices)), name
            )
        # Lists of files are converted before; in Python, tuples are wanted, also of an array.
        in_file = value is None or isinstance(value, str | bool | Mapping) or _is_number(value)
        wanted = "a list" if in_file else "a tuple"
        raise InvalidValueError(
            f"{label} must be {_words(hint, wanted)}, got {_short(value)}", "", name
        )
    if value is None or isinstance(value, str | bool) or get_origin(member) is Literal:
        return
    arguments = get_args(member)
    if _is_number(value):
        _check_number(label, name, value, bounds)
    elif isinstance(value, tuple | list) and arguments:
        variadic = isinstance(value, list) or arguments[-1] is Ellipsis
        if not variadic and len(value) != len(arguments):
            raise InvalidValueError(
                f"{label} must have {len(arguments)} values, got {len(value)}", "", name
            )
        if variadic and _are_numbers(value, arguments[0], bounds):
            return
        for position, item in enumerate(value):
            inner = arguments[0] if variadic else arguments[position]
            _check(f"{label}[{position}]", name, item, inner, bounds)
    elif isinstance(value, Mapping) and len(arguments) == 2:
        for key, item in value.items():
            _check(label, name, key, arguments[0], Bounds())
            _check(f"{label}.{key}", name, item, arguments[1], bounds)
    elif dataclasses.is_dataclass(value) and dataclasses.is_dataclass(member):
        validate(value, f"{label}.")


def _accepts(value: Any, member: Any) -> bool:
    if type(value) is member:  # the common case, without the slower tests below
        return True
    origin = get_origin(member)
    if member is None:
        return value is None
    if origin is Literal:
        return any(value == c and type(value) is type(c) for c in get_args(member))
    if member in (int, float):
        kind = numbers.Integral if member is int else numbers.Real
        return isinstance(value, kind) and not isinstance(value, bool)
    kind = origin or member
    return isinstance(value, kind) if inspect.isclass(kind) and kind is not Any else True


def _is_number(value: Any) -> bool:
    if type(value) in (int, float):
        return True
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _are_numbers(value: Sequence[Any], hint: Any, bounds: Bounds) -> bool:
    """Return whether all items are plain numbers that pass `_check`, without a call for each."""
    kinds = set(map(type, value))
    if not ((kinds == {int} and hint in (int, float)) or (kinds == {float} and hint is float)):
        return False
    if kinds == {float} and not all(map(math.isfinite, value)):
        return False
    return all(end in bounds and abs(end) <= LARGEST_INT for end in (min(value), max(value)))


def _check_number(label: str, name: str, value: Any, bounds: Bounds) -> None:
    wanted = ""
    if value not in bounds:
        wanted = str(bounds)
    elif isinstance(value, numbers.Integral):
        if abs(int(value)) > LARGEST_INT:
            wanted = f"at most {LARGEST_INT}" if int(value) > 0 else f"at least {-LARGEST_INT}"
    elif not math.isfinite(value):
        wanted = "finite"
    if wanted:
        raise InvalidValueError(f"{label} must be {wanted}, got {_short(value, str)}", "", name)


_WORDS = {int: "an integer", float: "a number", str: "text", bool: "true or false", Path: "a path"}


def _words(hint: Any, for_tuple: str = "a list") -> str:
    words = []
    for member in _members(hint):
        origin = get_origin(member)
        if origin in (tuple, list):
            words.append(for_tuple if origin is tuple else "a list")
        elif origin is dict or dataclasses.is_dataclass(member):
            words.append("a table")
        elif origin is Literal:
            choices = [f'"{choice}"' for choice in get_args(member)]
            words.append(("one of " if len(choices) > 1 else "") + ", ".join(choices))
        elif member is not type(None):
            words.append(_WORDS.get(member, getattr(member, "__name__", str(member))))
    return " or ".join(dict.fromkeys(words))


def _short(value: Any, show: Callable[[Any], str] = repr) -> str:
    try:
        text = " ".join(line.strip() for line in show(value).splitlines())  # of arrays
    except ValueError:  # an integer of thousands of digits
        return "a huge integer"
    return text if len(text) <= 80 else f"{text[:77]}..."
