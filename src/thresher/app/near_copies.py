"""The near-copies of a selection as the page shows them: by row, with test images beside."""

from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa

from thresher.app import arrow
from thresher.data.copy_links import CopyLinks
from thresher.data.ids import rows_by_id
from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.errors import InvalidValueError


@dataclass(frozen=True)
class OutsideSample:
    """A test or validation image that a sample of the selection is a near-copy of."""

    id: str
    label: int
    split: str


@dataclass(frozen=True)
class NearCopies:
    """Links between near-copies, m of them. Rows from n on are the outside samples."""

    row: np.ndarray
    """(m,) int32, a row of the selection."""
    other: np.ndarray
    """(m,) int32, another row of the selection, or n + k for the k-th outside sample."""
    similarity: np.ndarray
    """(m,) float32."""
    measure: str
    """What `similarity` is; empty if nobody looked for near-copies."""
    outside: list[OutsideSample]
    positions: np.ndarray
    """(k,) int64, positions of the outside samples in the pack."""

    def stream(self) -> bytes:
        """Return the links as an Arrow IPC stream, with the rest as metadata."""
        columns = {name: pa.array(getattr(self, name)) for name in ("row", "other", "similarity")}
        outside = [asdict(sample) for sample in self.outside]
        return arrow.encode(columns, {"measure": self.measure, "outside": outside})


def near_copies(selection: Selection, pack: Pack) -> NearCopies:
    """Find the rows of a selection's near-copies; no links if nobody looked for them.

    Raises:
        InvalidValueError: A link names a sample that the selection or the pack does not have.
    """
    links = selection.copies or CopyLinks([], [], np.empty(0, np.float32), "")
    row, other = rows_by_id(links.ids, selection.ids), rows_by_id(links.others, selection.ids)
    strangers = np.flatnonzero(other < 0)
    number_by_id: dict[str, int] = {}
    for at in strangers:
        number_by_id.setdefault(links.others[at], len(number_by_id))
        other[at] = len(selection.ids) + number_by_id[links.others[at]]
    outside = list(number_by_id)
    positions = pack.positions(outside)
    unknown = [id for id, its in zip(links.ids, row, strict=True) if its < 0]
    unknown += [id for id, position in zip(outside, positions, strict=True) if position < 0]
    if unknown:
        raise InvalidValueError(
            f'the near-copies of {selection.path} name "{unknown[0]}", which is not in the pack',
            "remove the file to go on without them",
        )
    splits = pack.splits.take(positions).to_pylist()
    return NearCopies(
        row=row.astype(np.int32),
        other=other.astype(np.int32),
        similarity=np.asarray(links.similarity, np.float32),
        measure=links.measure,
        outside=[
            OutsideSample(id, int(pack.labels[position]), split)
            for id, position, split in zip(outside, positions, splits, strict=True)
        ],
        positions=positions,
    )
