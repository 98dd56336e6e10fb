"""A case of a bad input, and what can be done to a file before its command runs."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Damage = Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """A bad input; `damage` is applied to the file or folder `target` first."""

    words: str
    target: str = ""
    damage: Damage | None = None
    note: str = ""

    @property
    def name(self) -> str:
        return " ".join(filter(None, [self.words, self.target, self.note]))


def cut(path: Path) -> None:
    """Keep the first half."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def cut_end(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def remove(path: Path) -> None:
    path.unlink()


def garbage(path: Path) -> None:
    """Replace the content by bytes that are neither text nor any format."""
    path.write_bytes(bytes(range(256)) * 8)


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def as_text(text: str) -> Damage:
    return lambda path: path.write_text(text)


def deep(path: Path) -> None:
    """JSON that is nested deeper than Python recurses."""
    path.write_text("[" * 100_000)


def with_field(**values: Any) -> Damage:
    """Set fields of a JSON object."""

    def damage(path: Path) -> None:
        content = json.loads(path.read_text())
        content.update(values)
        path.write_text(json.dumps(content))

    return damage


def without_field(name: str) -> Damage:
    def damage(path: Path) -> None:
        content = json.loads(path.read_text())
        del content[name]
        path.write_text(json.dumps(content))

    return damage


def table_with(**columns: Any) -> Damage:
    """Replace columns of a Parquet file; None removes one."""

    def damage(path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pq.read_table(path)
        for name, value in columns.items():
            at = table.schema.names.index(name)
            table = table.remove_column(at)
            if value is not None:
                table = table.append_column(name, pa.array([value] * len(table)))
        pq.write_table(table, path)

    return damage
