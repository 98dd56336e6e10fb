"""The table of bad inputs: a command line, and what is done to the folder before it runs.

The words of a case are separated by spaces. Cases of flags out of range are made from the
declarations of the options; the others are written down.
"""

import typing
from collections.abc import Iterator
from dataclasses import MISSING

from bad_files import FILES
from bad_words import WORDS
from damage import Case
from good_commands import good

from thresher.cli.commands import COMMANDS
from thresher.options import OptionInfo, describe


def _numeric(info: OptionInfo) -> bool:
    members = {info.type, *typing.get_args(info.type)}
    members |= {inner for member in members for inner in typing.get_args(member)}
    return bool(members & {int, float}) and not info.positional


def _outside(info: OptionInfo) -> Iterator[str]:
    """Yield values just outside the range of an option, and what is not a number."""
    low = info.bounds.ge if info.bounds.ge is not None else info.bounds.gt
    high = info.bounds.le if info.bounds.le is not None else info.bounds.lt
    if low is not None:
        # A lower bound that is exclusive is itself outside.
        yield f"{low:g}" if info.bounds.gt is not None else f"{low - 1:g}"
    elif high is not None:
        yield repr(high) if info.bounds.lt is not None else f"{high + 1:g}"
    else:
        yield "1e999"
    yield "nan"


def flag_cases() -> Iterator[Case]:
    """Yield a case for every value just outside the range of every numeric or worded option."""
    for command in COMMANDS:
        config, _ = command.load()
        for info in describe(config):
            if info.default is MISSING and info.positional:
                continue
            if info.choices and not info.positional:
                yield Case(f"{good(command.words)} {info.flag} nonsense")
            elif _numeric(info):
                for value in _outside(info):
                    yield Case(f"{good(command.words)} {info.flag}={value}")


CASES = [*map(Case, WORDS), *FILES, *flag_cases()]
