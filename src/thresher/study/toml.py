"""Write the TOML of a study file; the standard library only reads TOML."""

import json
import re
from typing import Any

from thresher.study.tasks import Values


def dumps(content: Values) -> str:
    """Return nested dictionaries of text, numbers, booleans and lists as TOML, without None."""
    return "\n".join(_table(content, ())).strip() + "\n"


def plain_values(content: Any) -> Any:
    """Return nested dictionaries and lists with Python's numbers instead of NumPy's."""
    if isinstance(content, dict):
        return {key: plain_values(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return type(content)(plain_values(value) for value in content)
    return content.item() if getattr(content, "ndim", None) == 0 else content


def _table(content: Values, path: tuple[str, ...]) -> list[str]:
    plain = {k: v for k, v in content.items() if not isinstance(v, dict) and v is not None}
    nested = {k: v for k, v in content.items() if isinstance(v, dict)}
    lines = []
    if path and (plain or not nested):
        lines += ["", f"[{'.'.join(_key(part) for part in path)}]"]
    lines += [f"{_key(key)} = {_value(value)}" for key, value in plain.items()]
    for key, value in nested.items():
        lines += _table(value, (*path, key))
    return lines


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, dict):  # within a list
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, int | float):
        return repr(value)
    return json.dumps(str(value), ensure_ascii=False)
