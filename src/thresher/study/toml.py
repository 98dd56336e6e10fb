"""Write the TOML of a study file; the standard library only reads TOML."""

import json
import re
from typing import Any

from thresher.errors import InvalidValueError
from thresher.study.tasks import Values


def dumps(content: Values) -> str:
    """Return nested dictionaries of text, numbers, booleans and lists as TOML."""
    return "\n".join(_table(content, ())).strip() + "\n"


def plain_values(content: Values) -> Values:
    """Return a study, as nested dictionaries, with the values that its file can hold.

    NumPy's numbers become Python's. Options that are None are left out: TOML has no None, so that a
    study with None would not be the one in its file.

    Raises:
        InvalidValueError: Leaving it out is not the same: None is in a list, or unsets an option of
            [base] in an arm or a step.
    """
    base = content.get("base")
    for group in ("arms", "steps"):
        tables = content.get(group)
        for name, table in tables.items() if isinstance(tables, dict) else ():
            for key, value in table.items() if isinstance(table, dict) else ():
                if value is None and isinstance(base, dict) and base.get(key) is not None:
                    what = f'"{key}" is None in [{group}.{name}], but [base] sets it'
                    raise InvalidValueError(what, "set it in the arms or steps that need it")
    return _plain(content, "the study")


def _plain(content: Any, where: str) -> Any:
    if isinstance(content, dict):
        known = {key: value for key, value in content.items() if value is not None}
        return {key: _plain(value, str(key)) for key, value in known.items()}
    if isinstance(content, list | tuple):
        if any(value is None for value in content):
            what = f'"{where}" contains None, which a study file cannot hold'
            raise InvalidValueError(what, "compare [arms], one without the option")
        return type(content)(_plain(value, where) for value in content)
    return content.item() if getattr(content, "ndim", None) == 0 else content


def _table(content: Values, path: tuple[str, ...]) -> list[str]:
    plain = {k: v for k, v in content.items() if not isinstance(v, dict)}
    nested = {k: v for k, v in content.items() if isinstance(v, dict)}
    lines = []
    if path and (plain or not nested):
        lines += ["", f"[{'.'.join(_key(part) for part in path)}]"]
    lines += [f"{_key(key)} = {_value(value)}" for key, value in plain.items()]
    for key, value in nested.items():
        lines += _table(value, (*path, key))
    return lines


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _text(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, dict):  # within a list
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, int | float):
        return repr(value)
    return _text(str(value))


def _text(text: str) -> str:
    # JSON's escapes are those of TOML, which also escapes DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
