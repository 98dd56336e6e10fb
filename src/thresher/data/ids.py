"""Match samples by their ids, and list ids in text files."""

from collections.abc import Iterable, Mapping, Sequence, Sized
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from thresher.errors import InvalidTypeError, InvalidValueError, check_type
from thresher.paths import write_text
from thresher.read_errors import unreadable

Ids: TypeAlias = Sequence[str] | pa.Array | pa.ChunkedArray


def rows_by_id(wanted: Ids, available: Ids) -> np.ndarray:
    """Return the row in `available` of each wanted id, (m,) int64; -1 where an id is missing."""
    import pyarrow.compute as pc  # not at the top: it takes as long as all of pyarrow

    rows = pc.index_in(id_array(wanted), value_set=id_array(available))
    return pc.fill_null(rows, -1).to_numpy(zero_copy_only=False).astype(np.int64)


def id_text(value: object) -> str:
    """Return an id, or the name of a split, as text: bytes are UTF-8, anything else as printed."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def id_texts(values: npt.ArrayLike) -> list[str]:
    """Return `id_text` of each item of an array, which may be a column of a table, (n, 1)."""
    return [id_text(value) for value in np.ravel(values).tolist()]


def write_id_list(path: Path, ids: Iterable[str]) -> None:
    """Write a text file with an id per line, which `read_id_list` reads."""
    ids = list(ids)
    broken = next((id for id in ids if "\n" in id or "\r" in id), None)
    if broken is not None:
        raise InvalidValueError(
            f"the id {broken!r} has a line break, so that it cannot be written to {path}",
            "write positions, to a file that ends in .npy",
        )
    write_text(path, "".join(f"{id}\n" for id in ids))


def read_id_list(path: Path) -> list[str]:
    """Return the lines of a text file of ids in UTF-8, with or without a byte order mark.

    Only line breaks end a line: `str.splitlines` would split an id at other characters, too.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise InvalidValueError(f"the list {path} is not UTF-8 text") from None
    except OSError as error:
        raise unreadable(path, error) or error from None
    return lines if lines[-1] else lines[:-1]


def check_lengths(columns: Mapping[str, object], ids: Sized) -> None:
    """Raise InvalidValueError if an array or list does not have one value for each of the ids."""
    check_type(ids, Sized, "ids", "a list of ids")
    count = len(ids)
    for name, values in columns.items():
        if isinstance(values, np.ndarray) and values.ndim == 0:
            raise InvalidTypeError(f"{name} must be an array, got {values}", "", name)
        if isinstance(values, list | np.ndarray) and len(values) != count:
            raise InvalidValueError(f"{name} has {len(values)} values for {count} ids", "", name)


def id_array(ids: Ids) -> pa.Array:
    """Return ids as an Arrow array; raise InvalidValueError for one id, or what is no text."""
    if isinstance(ids, str):  # which would be read letter by letter
        raise InvalidValueError(f"ids must be a list of ids, got one: {ids}", "", "ids")
    if isinstance(ids, pa.ChunkedArray):
        ids = ids.combine_chunks()
    if isinstance(ids, pa.Array):
        return ids
    check_type(ids, Iterable, "ids", "a list of ids")
    ids = list(ids)
    try:
        return pa.array(ids, pa.string())
    except pa.ArrowException:
        other = next((id for id in ids if not isinstance(id, str)), None)
        raise InvalidValueError(f"ids must be text, got {other!r}", "", "ids") from None
