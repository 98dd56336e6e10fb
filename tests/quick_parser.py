"""Import this to parse commands faster: the parser of a command is built once in a process.

A process of a user parses one command. Those of the tests parse hundreds, or are forked from one
that has parsed every command. `thresher train …` takes tyro 0.04 CPU seconds, most of them for
what depends on the configuration alone.
"""

from collections.abc import Hashable, Mapping
from typing import Any

from tyro._parsers import ParserSpecification

from thresher.cli import parse

_flags, _specification = parse._flags, ParserSpecification.from_callable_or_type
_KNOWN_FLAGS: dict[Hashable, type] = {}
_KNOWN_SPECIFICATIONS: dict[Hashable, ParserSpecification] = {}


def _flags_once(config: type, defaults: Mapping[str, Any]) -> type:
    key = (config, repr(defaults))
    if key not in _KNOWN_FLAGS:
        _KNOWN_FLAGS[key] = _flags(config, defaults)
    return _KNOWN_FLAGS[key]


def _specification_once(f: Any, **more: Any) -> ParserSpecification:
    if f not in _KNOWN_FLAGS.values():
        return _specification(f, **more)
    key = (f, more["description"])
    if key not in _KNOWN_SPECIFICATIONS:
        _KNOWN_SPECIFICATIONS[key] = _specification(f, **more)
    return _KNOWN_SPECIFICATIONS[key]


parse._flags = _flags_once
setattr(ParserSpecification, "from_callable_or_type", staticmethod(_specification_once))  # noqa: B010
