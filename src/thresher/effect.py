"""Options that have no effect with others: one sentence for each that is set all the same.

A field says with which values of other options it has an effect: listed, in a range (`Bounds`), or
given at all (True) or not (False): `poly_power = option(2.0, only_with={"schedule": ("poly",)})`.
Such an option is not refused, because arms of a study may share it.
"""

import contextlib
import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from thresher.options import Bounds, OptionInfo, describe

logger = logging.getLogger(__name__)
Values = Mapping[str, Any]
Show = Callable[[str], str]
NOTHING: Values = {}
MANY = Bounds(gt=1)
NOT_GIVEN = (None, (), False)
_shown: ContextVar[Show | None] = ContextVar("shown", default=str)


@contextlib.contextmanager
def names_shown(how: Show | None) -> Iterator[None]:
    """Let `mention` write the names of options as `how` does in the block; None: say nothing."""
    token = _shown.set(how)
    try:
        yield
    finally:
        _shown.reset(token)


def mention(config: object, facts: Values = NOTHING, usual: Values = NOTHING) -> None:
    """Log a warning for each option that is set and has no effect; see `without_effect`."""
    if shown := _shown.get():
        for sentence in filter(None, without_effect(config, facts, usual, shown).values()):
            logger.warning(sentence)


def without_effect(
    config: object, facts: Values = NOTHING, usual: Values = NOTHING, shown: Show = str
) -> dict[str, str]:
    """Return a sentence for each option that is set: that it has no effect; "" if it has one.

    `facts` are what options stand for whose values (auto, None) leave that to the data, `usual` are
    defaults that differ from those of the dataclass, `shown` writes the names of options.
    """
    kind: Any = type(config)
    own = {info.name: getattr(config, info.name) for info in describe(kind)}
    values = own | dict(facts)
    found = {}
    for info in describe(kind):
        if info.only_with and own[info.name] != usual.get(info.name, info.default):
            known = [(n, values[n], wanted) for n, wanted in info.only_with.items() if n in values]
            causes = [_with(shown(name), v) for name, v, wanted in known if not _holds(v, wanted)]
            found[info.name] = f"{shown(info.name)} has no effect {causes[0]}" if causes else ""
    return found


def _holds(value: Any, wanted: tuple[Any, ...] | Bounds | bool) -> bool:
    if isinstance(wanted, bool):
        return wanted == (value not in NOT_GIVEN)
    if isinstance(wanted, Bounds):
        return value is None or value in wanted  # None: it depends on the data
    return any(v in wanted for v in value) if isinstance(value, tuple) else value in wanted


def _with(name: str, value: Any) -> str:
    if value in NOT_GIVEN:
        return f"without {name}"
    return f"with {name} {value}" if type(value) in (str, int, float) else f"with {name}"


def help_text(info: OptionInfo, names: Collection[str]) -> str:
    """Return the help text of an option and, unless it says so, with which of `names` it acts."""
    parts = []
    for name, wanted in info.only_with.items():
        words = [*map(str, wanted)] if isinstance(wanted, tuple) and None not in wanted else []
        if name in names and not re.search(rf"\b({'|'.join([name, *words])})\b", info.help, re.I):
            values = str(wanted) if isinstance(wanted, Bounds) else " or ".join(words)
            parts.append(f"with{'out' * (wanted is False)} `{name}` {values}".rstrip())
    return f"{info.help} Only {' and '.join(parts)}." if parts else info.help
