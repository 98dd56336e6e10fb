"""Arrow IPC streams: the format of points, bitmasks and ids between server and page.

A boolean Arrow column is a bitmask, so changes need no format of their own.
"""

import json
from collections.abc import Mapping

import pyarrow as pa

from thresher.errors import InvalidValueError

MEDIA_TYPE = "application/vnd.apache.arrow.stream"


def encode(columns: Mapping[str, pa.Array], meta: Mapping[str, object] | None = None) -> bytes:
    """Return one record batch as a stream; `meta` is JSON in the schema under `thresher`."""
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    if meta is not None:
        text = json.dumps(meta, allow_nan=False)
        batch = batch.replace_schema_metadata({"thresher": text})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def decode(data: bytes) -> tuple[pa.Table, dict[str, object]]:
    """Return the table and metadata of a stream; raise InvalidValueError if it is not valid."""
    try:
        with pa.ipc.open_stream(data) as reader:
            table = reader.read_all()
        # Offsets and dictionaries come from outside: a wrong one would read beyond its buffer.
        table.validate(full=True)
        meta = json.loads((table.schema.metadata or {}).get(b"thresher", b"{}"))
    except (pa.ArrowException, OSError, ValueError, KeyError, RecursionError):
        raise InvalidValueError("the body is not an Arrow IPC stream") from None
    if not isinstance(meta, dict):
        raise InvalidValueError("the metadata of the stream is not a JSON object")
    return table, meta
