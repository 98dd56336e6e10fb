"""Studies whose trials run a script."""

from pathlib import Path
from typing import Any


def content(command: str, **more: Any) -> dict[str, Any]:
    return {"seeds": 2, "base": {"command": command}, "executor": {"kind": "in-process"}, **more}


def script(folder: Path, text: str, arguments: str) -> str:
    """Write a script that starts in milliseconds and return the command that runs it."""
    path = folder / "a script.py"
    path.write_text(text)
    return f"{{python}} -I -S '{path}' {arguments}"
