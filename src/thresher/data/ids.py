"""Match samples by their ids."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from thresher.errors import InvalidValueError

Ids: TypeAlias = Sequence[str] | pa.Array | pa.ChunkedArray


def rows_by_id(wanted: Ids, available: Ids) -> np.ndarray:
    """Return the row in `available` of each wanted id, (m,) int64; -1 where an id is missing."""
    import pyarrow.compute as pc  # not at the top: it takes as long as all of pyarrow

    rows = pc.index_in(id_array(wanted), value_set=id_array(available))
    return pc.fill_null(rows, -1).to_numpy(zero_copy_only=False).astype(np.int64)


def check_lengths(columns: Mapping[str, object], count: int) -> None:
    """Raise InvalidValueError if an array or list does not have one value for each of the ids."""
    for name, values in columns.items():
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
    ids = list(ids)
    try:
        return pa.array(ids, pa.string())
    except pa.ArrowException:
        other = next((id for id in ids if not isinstance(id, str)), None)
        raise InvalidValueError(f"ids must be text, got {other!r}", "", "ids") from None
