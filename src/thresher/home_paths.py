"""Paths that begin with `~/`, which a shell leaves in quotes, and a file of options always has."""

import dataclasses
import os
from pathlib import Path
from typing import Any

_WITHOUT_PATHS = frozenset({int, float, bool, type(None)})


def expand_home(config: Any) -> None:
    """Replace `~/` at the start of options of a dataclass: it would become a folder named `~`."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if type(value) in _WITHOUT_PATHS:  # most options, of thousands of trials
            continue
        expanded = with_home(value)
        if expanded is not value:
            object.__setattr__(config, field.name, expanded)  # also of a frozen class


def with_home(value: Any) -> Any:
    """Return a value with the home folder for `~/` at its start, or at that of its items."""
    if isinstance(value, str | Path):
        return type(value)(os.path.expanduser(value)) if str(value).startswith("~/") else value
    if type(value) in (tuple, list) and value and isinstance(value[0], str | Path):
        items = [with_home(item) for item in value]
        changed = any(new is not old for new, old in zip(items, value, strict=True))
        return type(value)(items) if changed else value
    if type(value) is dict:
        by_key = {key: with_home(item) for key, item in value.items()}
        return by_key if any(by_key[key] is not value[key] for key in value) else value
    return value
