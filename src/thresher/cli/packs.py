"""Get missing packs for commands that need them: the library only opens packs."""

import contextlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thresher.data.pack import Pack
    from thresher.study.definition import StudyDefinition


def open_pack(name_or_path: str | Path) -> "Pack":
    """Open a pack after `ensure_pack`."""
    from thresher.data.pack import Pack

    ensure_pack(name_or_path)
    return Pack.open(name_or_path)


def ensure_pack(name_or_path: str | Path | None) -> None:
    """Make sure that a known data set is in the cache, if that is what the argument names.

    `digits` ships with scikit-learn and is packed without asking. Other data sets are offered for
    download if a person sits at a terminal. Anything else is left to `Pack.open`, which raises.
    """
    from thresher.data.pack import find_pack
    from thresher.data.sources.known import NAMES
    from thresher.errors import NotFoundError
    from thresher.paths import cached_pack

    name = str(name_or_path)
    if name not in NAMES:
        return
    try:
        find_pack(name)
    except NotFoundError:
        if name == "digits" or _confirm(f'"{name}" is not in the cache ({cached_pack(name)})'):
            from thresher.data.get import get

            get(name)


def _confirm(statement: str) -> bool:
    """Ask whether to download, if standard input and standard error are a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(f"{statement}. Download it now? [Y/n]", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("", "y", "yes")


def ensure_packs_of_selections(paths: Iterable[Path]) -> None:
    """Call `ensure_pack` for the pack that each selection names."""
    from thresher.errors import ThresherError
    from thresher.paths import SelectionPaths, read_json

    for path in paths:
        sidecar = None
        with contextlib.suppress(ThresherError):  # opening the selection reports what is wrong
            sidecar = read_json(SelectionPaths(path).sidecar)
        ensure_pack(sidecar.get("data") if isinstance(sidecar, dict) else None)


def ensure_packs_of_study(definition: "StudyDefinition") -> None:
    """Call `ensure_pack` for every pack that a study names."""
    steps = [step.settings for step in definition.steps.values()]
    tables = [definition.base, *definition.arms.values(), *steps]
    names = [*(table.get("data") for table in tables), *definition.grid.get("data", [])]
    for name in dict.fromkeys(map(str, names)):
        ensure_pack(name)
