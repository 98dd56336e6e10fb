"""Libraries that only some formats need: asked for by name when they are used."""

import importlib
from typing import Any

from thresher.errors import ThresherError


def needed(module: str, extra: str) -> Any:
    """Import an optional library, or say how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ThresherError(
            f"the library {module} is not installed", f"`pip install 'thresher[{extra}]'`"
        ) from None
