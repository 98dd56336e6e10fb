"""Columns as Arrow IPC streams: how points, bitmasks and ids travel to the page and back.

A boolean column of Arrow *is* a bitmask, so "later changes as bitmasks" needs no format of ours.
"""

import json
from typing import Any

import pyarrow as pa

from thresher.errors import ThresherError

MEDIA_TYPE = "application/vnd.apache.arrow.stream"


def encode(columns: dict[str, pa.Array], meta: dict[str, Any] | None = None) -> bytes:
    """One record batch; `meta` goes as JSON into the schema's metadata under `thresher`."""
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    if meta is not None:
        text = json.dumps(meta, allow_nan=False)
        batch = batch.replace_schema_metadata({"thresher": text})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def decode(data: bytes) -> tuple[pa.Table, dict[str, Any]]:
    """The inverse of `encode`; what does not parse or does not validate is refused."""
    try:
        with pa.ipc.open_stream(data) as reader:
            table = reader.read_all()
        # Offsets and dictionaries come from outside: an unchecked one would read past its buffer.
        table.validate(full=True)
        meta = json.loads((table.schema.metadata or {}).get(b"thresher", b"{}"))
    except (pa.ArrowException, OSError, ValueError, KeyError):
        raise ThresherError("the body is not an Arrow IPC stream") from None
    if not isinstance(meta, dict):
        raise ThresherError("the stream's metadata is not a JSON object")
    return table, meta
