"""Libraries that only some formats need, imported when they are used."""

import importlib
from typing import Any

from thresher.errors import MissingDependencyError


def import_optional(module: str, extra: str) -> Any:
    """Import an optional library; if it is not installed, name the extra that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingDependencyError(
            f"{module} is not installed", f"`pip install 'thresher-ml[{extra}]'`"
        ) from None
