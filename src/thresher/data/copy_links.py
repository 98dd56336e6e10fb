"""Near-copies that a filter or an audit found, as the file `S.copies.arrow` beside a selection.

An Arrow IPC file with a row per link: `id` is a sample of the selection, `other` a sample of the
pack that it is like (of the selection too, or a test or validation image), `similarity` float32.
The schema's metadata holds `format`, `fingerprint` of the pack, and `measure`.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from thresher.errors import InvalidValueError
from thresher.paths import atomic_file, check_format
from thresher.read_errors import unreadable

FORMAT = 1
_SCHEMA = pa.schema([("id", pa.string()), ("other", pa.string()), ("similarity", pa.float32())])


@dataclass(frozen=True)
class CopyLinks:
    """Links between near-copies, m of them; the samples that links connect are a group."""

    ids: list[str]
    """Samples of the selection."""
    others: list[str]
    """What each of them is a near-copy of."""
    similarity: np.ndarray
    """(m,) float32, at most 1."""
    measure: str
    """What `similarity` is, such as "cosine of the features"."""

    def save(self, path: Path, fingerprint: str) -> None:
        """Write the links to `path`, for the pack of this fingerprint."""
        meta = {"format": str(FORMAT), "fingerprint": fingerprint, "measure": self.measure}
        similarity = np.minimum(np.asarray(self.similarity, np.float32), 1)
        columns = {"id": self.ids, "other": self.others, "similarity": similarity}
        table = pa.table(columns, schema=_SCHEMA.with_metadata(meta))
        with atomic_file(path) as temporary, pa.ipc.new_file(temporary, table.schema) as writer:
            writer.write_table(table)

    @classmethod
    def load(cls, path: Path, fingerprint: str) -> "CopyLinks | None":
        """Read the links at `path`; None if there is no such file.

        Raises:
            InvalidValueError: The file is damaged, of a newer version or of another pack.
        """
        if not path.is_file():
            return None
        fix = "remove it to go on without the near-copies"
        try:
            with pa.ipc.open_file(path) as reader:
                table = reader.read_all()
            table.validate(full=True)
            raw = table.schema.metadata or {}
            meta = {key.decode(): value.decode() for key, value in raw.items()}
            version = int(meta["format"])
            columns = table.select(_SCHEMA.names).cast(_SCHEMA)
            pack, measure = meta["fingerprint"], meta["measure"]
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            wrong = InvalidValueError(f"{path} is damaged", fix)
            raise unreadable(path, error) or wrong from None
        check_format({"format": version}, FORMAT, str(path))
        if pack != fingerprint:
            raise InvalidValueError(f"{path} belongs to a selection of another pack", fix)
        ids, others = (columns[name].to_pylist() for name in ("id", "other"))
        return cls(ids, others, columns["similarity"].to_numpy(), measure)
