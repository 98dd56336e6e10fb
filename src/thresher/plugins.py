"""Names that map to classes or functions: built in, from other packages, or `module:attribute`."""

import functools
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thresher.errors import InvalidValueError, MissingDependencyError, NotFoundError, nearest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class Registry:
    """Find filters, sources or models by name, importing only the one that is asked for.

    Args:
        kind: What the entries are, for messages: "filter".
        group: The entry-point group through which other packages add entries.
        built_in: Name to "module:attribute" of what ships with Thresher.
    """

    def __init__(self, kind: str, group: str, built_in: Mapping[str, str]) -> None:
        self.kind, self.group, self.built_in = kind, group, dict(built_in)

    @functools.cached_property
    def _installed(self) -> "dict[str, EntryPoint]":
        # Here because it takes longer to import than the rest of `thresher --help`.
        from importlib.metadata import entry_points

        return {entry.name: entry for entry in entry_points(group=self.group)}

    def names(self) -> list[str]:
        """Return every name that `load` knows, built-in ones first."""
        return [*self.built_in, *(name for name in self._installed if name not in self.built_in)]

    def __contains__(self, name: str) -> bool:
        return name in self.built_in or name in self._installed or _is_path(name)

    def load(self, name: str) -> Any:
        """Return the class or function called `name`, or found at `package.module:attribute`."""
        if name in self.built_in:
            return load_attribute(self.built_in[name], self.kind)
        if name in self._installed:
            return load_attribute(self._installed[name].value, self.kind)
        if _is_path(name):
            return load_attribute(name, self.kind)
        raise InvalidValueError(
            f'unknown {self.kind} "{name}"', nearest(name, [*self.names(), "package.module:NAME"])
        )


def _is_path(name: str) -> bool:
    module, colon, attribute = name.partition(":")
    parts = module.split(".")
    return bool(colon) and attribute.isidentifier() and all(part.isidentifier() for part in parts)


def module_file(path: str) -> Path | None:
    """Return the file of `package.module:attribute`; None if there is none.

    It imports the package, but not the module.
    """
    try:
        spec = importlib.util.find_spec(path.partition(":")[0])
    except Exception:  # no such package, __main__, or an error in the code of the package
        return None
    return Path(spec.origin) if spec and spec.has_location and spec.origin else None


def load_attribute(path: str, kind: str) -> Callable[..., Any]:
    """Import `package.module:attribute` and return the attribute, which must be callable."""
    module_name, _, attribute = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and not f"{module_name}.".startswith(f"{error.name}."):
            raise MissingDependencyError(
                f'{kind} "{path}" needs the package "{error.name}"', "install it"
            ) from error
        raise NotFoundError(
            f'cannot import {kind} "{path}": no module named "{error.name}"',
            "give package.module:NAME, importable from the current folder",
        ) from error
    value = getattr(module, attribute, None)
    if not callable(value):
        public = [key for key, item in vars(module).items() if callable(item) and key[0] != "_"]
        raise NotFoundError(
            f'module {module_name} has no {kind} "{attribute}"', nearest(attribute, public)
        )
    return value


def import_optional(module: str, extra: str) -> Any:
    """Import an optional library; if it is not installed, name the extra that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingDependencyError(
            f"{module} is not installed", f"`pip install 'thresher-ml[{extra}]'`"
        ) from None
