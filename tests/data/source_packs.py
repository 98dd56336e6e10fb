"""Packs made from a source in one process."""

from pathlib import Path
from typing import Any

from thresher.data.pack import Pack
from thresher.data.sources.registry import SourceOptions, open_source
from thresher.data.write import WriteOptions, write_pack

ONE = WriteOptions(processes=1)


def packed(where: Path | str, out: Path, **options: Any) -> Pack:
    """Pack what is at `where` to `out`."""
    return write_pack(open_source(where, SourceOptions(**options)), out, ONE)
