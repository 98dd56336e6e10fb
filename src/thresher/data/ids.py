"""Match samples by their ids."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

Ids: TypeAlias = Sequence[str] | pa.Array | pa.ChunkedArray


def rows_by_id(wanted: Ids, available: Ids) -> np.ndarray:
    """Return the row in `available` of each wanted id, (m,) int64; -1 where an id is missing."""
    import pyarrow.compute as pc  # not at the top: it takes as long as all of pyarrow

    rows = pc.index_in(_array(wanted), value_set=_array(available))
    return pc.fill_null(rows, -1).to_numpy(zero_copy_only=False).astype(np.int64)


def _array(ids: Ids) -> pa.Array:
    if isinstance(ids, pa.ChunkedArray):
        ids = ids.combine_chunks()
    return ids if isinstance(ids, pa.Array) else pa.array(list(ids), pa.string())
