"""The files of a selection, which any stage and other tools can read.

`S.parquet` has a row per training sample: `id, label, x, y, cluster, score, keep, reason`, and
`votes` (share of votes to drop) if the filter voted, `suggested` (a likelier label) if it names
one. `S.json` beside it holds the fingerprint of the pack, its class names, a digest of the row
order, the filter, its settings, seeds, versions and timings. `S.overrides.jsonl` is an append-only
log of decisions by people; it is applied whenever the selection is loaded. `S.copies.arrow` holds
near-copies, if the filter looked for them.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from thresher.data.copy_links import CopyLinks
from thresher.data.ids import write_id_list
from thresher.errors import AlreadyExistsError, InvalidValueError, NotFoundError, ThresherError
from thresher.locks import exclusive_lock
from thresher.paths import (
    SelectionPaths,
    atomic_file,
    check_format,
    disk_errors,
    new_parents,
    read_json,
    write_json,
)
from thresher.read_errors import unreadable

FORMAT = 1
CLASS_NAMES = "class_names"
"""Optional field of the sidecar: versions before it neither write nor read it."""
NO_CLUSTER = -2
"""The cluster of samples that were not clustered; -1 is noise."""

_SAME = ("x", "y", "cluster", "score", "keep", "reason", "votes")
FIELDS = {
    **{"id": "ids", "label": "labels"},
    **{name: name for name in _SAME},
    **{"new_label": "new_labels", "suggested": "suggested"},
}
"""The columns of the table in their order, and the fields of a `Selection` that they hold."""
_OPTIONAL = {"votes", "new_label", "suggested"}
_TYPES = {
    **dict.fromkeys(("id", "reason"), pa.string()),
    **dict.fromkeys(("label", "cluster", "new_label", "suggested"), pa.int32()),
    **dict.fromkeys(("x", "y", "score", "votes"), pa.float32()),
    "keep": pa.bool_(),
}
_ACCEPTED: dict[pa.DataType, Callable[[pa.DataType], bool]] = {
    pa.string(): lambda kind: kind in (pa.string(), pa.large_string()),
    pa.int32(): pa.types.is_integer,
    pa.float32(): pa.types.is_floating,
    pa.bool_(): pa.types.is_boolean,
}
"""Other tools may write wider types of the same kind."""


def _column(table: pa.Table, name: str, path: Path | str) -> pa.ChunkedArray:
    if name not in table.column_names:
        raise InvalidValueError(f"{path} is not a selection: it has no column {name}")
    column, wanted = table.column(name), _TYPES[name]
    try:
        if not _ACCEPTED[wanted](column.type):
            raise pa.ArrowInvalid(f"{column.type} instead of {wanted}")
        if _TYPES[name] != pa.float32() and name != "reason" and column.null_count:
            raise pa.ArrowInvalid("missing values")
        if name == "id" and len(column.unique()) != len(column):
            raise pa.ArrowInvalid("repeated values")
        return column.cast(wanted)
    except pa.ArrowInvalid as error:
        raise InvalidValueError(
            f'{path} is not a selection: its column "{name}" is wrong ({error})', "make it again"
        ) from None


def write_files(
    paths: SelectionPaths,
    columns: Mapping[str, Any],
    sidecar: Mapping[str, Any],
    copies: CopyLinks | None,
) -> None:
    """Write a new selection, given its columns as arrays or lists; None if there is no such column.

    Raises:
        AlreadyExistsError: It exists.
    """
    if paths.table.suffix != ".parquet":
        raise InvalidValueError(f"{paths.table} must end in .parquet")
    rows = len(columns["id"])
    absent = {"x": np.full(rows, np.nan), "cluster": np.full(rows, NO_CLUSTER)}
    absent["y"] = absent["x"]
    filled = {n: absent.get(n) if values is None else values for n, values in columns.items()}
    table = pa.table({n: pa.array(v).cast(_TYPES[n]) for n, v in filled.items() if v is not None})
    with _only_writer(paths.table.parent):
        check_free(paths)
        # The table last: a table that exists is a selection that can be loaded.
        version = {"format": FORMAT}
        write_json(paths.sidecar, {**version, **sidecar, **version})
        try:
            paths.copies.unlink(missing_ok=True)  # a killed process may have left one
            if copies is not None:
                copies.save(paths.copies, sidecar["fingerprint"])
            with atomic_file(paths.table) as temporary:
                pq.write_table(table, temporary)
        except ThresherError:
            paths.sidecar.unlink(missing_ok=True)
            paths.copies.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def _only_writer(folder: Path) -> Iterator[None]:
    """Wait for other selections that are being written to the folder.

    Two of the same name would have the table of one and the sidecar of the other.
    """
    busy = f"another process is writing to {folder}"
    with (
        disk_errors(folder),
        new_parents(folder / "selection"),
        exclusive_lock(folder, busy, wait=True),
    ):
        yield


def read_files(
    paths: SelectionPaths,
) -> tuple[dict[str, pa.ChunkedArray], dict[str, Any], CopyLinks | None]:
    """Read and check the columns, the sidecar and the near-copies of a selection.

    Raises:
        NotFoundError: There is no such file.
        InvalidValueError: The table or the sidecar is damaged.
    """
    if not paths.table.is_file():
        raise NotFoundError(f"there is no selection at {paths.table}", "check the path")
    try:
        table = pq.read_table(paths.table)
    except (pa.ArrowException, OSError) as error:
        wrong = InvalidValueError(f"{paths.table} is not a Parquet file", "make it again")
        raise unreadable(paths.table, error) or wrong from None
    meta = read_json(paths.sidecar, "selection's sidecar")
    check_format(meta, FORMAT, str(paths.sidecar))
    missing = _OPTIONAL - set(table.column_names)
    columns = {n: _column(table, n, paths.table) for n in _TYPES if n not in missing}
    fingerprint = meta.get("fingerprint") if isinstance(meta, dict) else None
    if not isinstance(fingerprint, str):
        raise InvalidValueError(
            f"{paths.sidecar} is not the sidecar of a selection: it has no fingerprint",
            "make the selection again",
        )
    names = meta.get(CLASS_NAMES, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        what = f"{paths.sidecar} is damaged: {CLASS_NAMES} must be a list of text"
        raise InvalidValueError(what, "make the selection again")
    meta.pop("format", None)
    return columns, meta, CopyLinks.load(paths.copies, fingerprint)


def store_class_names(paths: SelectionPaths, names: Sequence[str]) -> None:
    """Write the class names of the pack into the sidecar of a selection."""
    write_json(paths.sidecar, {**read_json(paths.sidecar), CLASS_NAMES: list(names)})


def check_free(paths: SelectionPaths) -> None:
    """Raise AlreadyExistsError if a file of a selection, or another file, is in the way."""
    existing = [file for file in (paths.table, paths.overrides) if file.exists()]
    # A sidecar without a table is left by a killed process, unless it is another file.
    if paths.sidecar.exists() and not _is_sidecar(paths.sidecar):
        existing.append(paths.sidecar)
    if existing:
        raise AlreadyExistsError(
            f"{existing[0]} exists already", "choose another name or remove it"
        )


def _is_sidecar(file: Path) -> bool:
    content = None
    with contextlib.suppress(ThresherError):
        content = read_json(file)
    return isinstance(content, dict) and "fingerprint" in content


def write_kept(path: Path, ids: Iterable[str], positions: np.ndarray) -> None:
    """Write the kept samples for other tools: an id per line (.txt), or their positions (.npy)."""
    if path.suffix == ".txt":
        write_id_list(path, ids)
    elif path.suffix == ".npy":
        with atomic_file(path) as temporary, open(temporary, "wb") as file:
            np.save(file, positions)
    else:
        raise InvalidValueError(f"{path} must end in .txt (ids) or .npy (positions)")
