"""A pack: images in a folder of memory-mapped Arrow IPC shards, described by `pack.json`.

A shard has the columns `id` (string), `label` (int32), `split` (string) and `image`: fixed-size
binary of height × width × channels raw bytes where all images share a shape, else the encoded
file. Raw images are read as zero-copy views of the map. Any Arrow reader (pandas, polars, DuckDB)
opens the shards.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from thresher.data.digest import file_sha256
from thresher.data.gather import Gather, share
from thresher.data.images import decode, encode_png
from thresher.data.meta import checked
from thresher.errors import ThresherError, nearest
from thresher.paths import PackPaths, cached_pack, home, read_json
from thresher.progress import bar

__all__ = ["Pack", "decode", "encode_png", "resolve", "verify"]


class Pack:
    """An opened pack. Samples have positions 0 … len-1 in shard order, and stable string ids."""

    def __init__(self, root: Path, meta: dict[str, Any]) -> None:
        self.root = root
        self.meta = meta
        self.name: str = meta["name"]
        self.classes: list[str] = meta["classes"]
        self.fingerprint: str = meta["fingerprint"]
        shape = meta["image_shape"]
        self.image_shape: tuple[int, int, int] | None = tuple(shape) if shape else None
        self.mean = np.array(meta["mean"], dtype=np.float64)
        self.std = np.array(meta["std"], dtype=np.float64)
        self._batches: list[pa.RecordBatch] = []
        for shard in meta["shards"]:
            self._batches += map_shard(root / shard["file"], shard, self.image_shape)
        self._starts = np.cumsum([0, *(batch.num_rows for batch in self._batches)])

    @classmethod
    def open(cls, where: str | Path) -> "Pack":
        """Open a pack by its folder, or by the name it has in the cache."""
        root = resolve(where)
        return cls(root, checked(read_json(PackPaths(root).meta, "pack"), root))

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and other processes map the files anew; no pixel is pickled."""
        return Pack, (self.root, self.meta)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @cached_property
    def ids(self) -> pa.ChunkedArray:
        """The ids in position order, an Arrow string array (no Python strings are made)."""
        return pa.chunked_array([batch.column("id") for batch in self._batches], type=pa.string())

    @cached_property
    def labels(self) -> np.ndarray:
        """(n,) int64."""
        columns = [batch.column("label").to_numpy() for batch in self._batches]
        return np.concatenate(columns).astype(np.int64) if columns else np.empty(0, np.int64)

    @cached_property
    def splits(self) -> pa.ChunkedArray:
        columns = [batch.column("split").cast(pa.string()) for batch in self._batches]
        return pa.chunked_array(columns, type=pa.string())

    def indices(self, split: str) -> np.ndarray:
        """Positions of the samples of one split, ascending, (n,) int64."""
        if split not in self.meta["splits"]:
            raise ThresherError(
                f'the pack {self.name} has no split "{split}"', nearest(split, self.meta["splits"])
            )
        return np.flatnonzero(pc.equal(self.splits, split).to_numpy()).astype(np.int64)

    def positions(self, ids: Sequence[str] | pa.Array | pa.ChunkedArray) -> np.ndarray:
        """Positions of the given ids, (n,) int64; -1 where an id is not in the pack."""
        wanted = ids if isinstance(ids, pa.Array | pa.ChunkedArray) else pa.array(ids, pa.string())
        found = pc.index_in(wanted, value_set=self.ids.combine_chunks())
        return pc.fill_null(found, -1).to_numpy().astype(np.int64)

    def images(
        self, positions: np.ndarray, out: np.ndarray | None = None, size: int | None = None
    ) -> np.ndarray:
        """Gather images as uint8 (n, height, width, channels), in the order of `positions`.

        Raw images are copied once, out of the memory map; an `out` that is used again is two to
        three times as fast as new memory. Encoded ones are decoded in threads, and resized to
        `size` × `size` (required for them: a batch has one shape).
        """
        positions = np.asarray(positions, dtype=np.int64)
        if len(positions) and not (positions.min() >= 0 and positions.max() < len(self)):
            raise IndexError(f"a position is outside a pack of {len(self)} samples")
        if self.image_shape is None and size is None:
            raise ThresherError(
                f"the images of {self.name} differ in size", "give one size to read them at"
            )
        shape = self.image_shape or (size or 0, size or 0, 3)
        if out is None:
            out = np.empty((len(positions), *shape), dtype=np.uint8)
        elif out.shape != (len(positions), *shape) or out.dtype != np.uint8:
            raise ValueError(
                f"out is {out.dtype} {out.shape}, not uint8 {(len(positions), *shape)}"
            )
        if self.image_shape is None:
            self._decode_into(positions, out, size)
        elif len(positions):
            room = out if out.flags.c_contiguous else np.empty(out.shape, np.uint8)
            self._gather.into(positions, room.reshape(len(positions), -1))
            if room is not out:
                out[...] = room
        return out

    def view(self, position: int) -> np.ndarray:
        """One raw image as a zero-copy, read-only view (height, width, channels)."""
        number, row = self._locate(position)
        return self._raw[number][row]

    def encoded(self, position: int) -> bytes:
        """One image as an encoded file: as stored, or a PNG of the raw pixels."""
        if self.image_shape is None:
            number, row = self._locate(position)
            return bytes(self._batches[number].column("image")[row].as_buffer())
        return encode_png(self.view(position))

    def info(self) -> dict[str, Any]:
        """What `thresher data info` prints."""
        size = sum(shard["bytes"] for shard in self.meta["shards"])
        keys = ("name", "splits", "classes", "image_shape", "mean", "std", "fingerprint")
        return {
            **{key: self.meta[key] for key in keys},
            "bytes": size,
            "samples": len(self),
            "shards": len(self.meta["shards"]),
            "broken": len(self.meta.get("broken", [])),
            "path": str(self.root),
            "source": self.meta.get("source", ""),
        }

    @cached_property
    def _raw(self) -> list[np.ndarray]:
        """Per record batch, the image column as a zero-copy array (n, height, width, channels)."""
        assert self.image_shape is not None
        arrays = []
        for batch in self._batches:
            column = batch.column("image")
            width = int(np.prod(self.image_shape))
            data = np.frombuffer(column.buffers()[1], dtype=np.uint8)
            begin = column.offset * width
            data = data[begin : begin + len(column) * width]
            arrays.append(data.reshape(len(column), *self.image_shape))
        return arrays

    @cached_property
    def _gather(self) -> Gather:
        assert self.image_shape is not None
        return Gather(self._raw, int(np.prod(self.image_shape)))

    def _locate(self, position: int) -> tuple[int, int]:
        if not 0 <= position < len(self):
            raise IndexError(f"position {position} is outside a pack of {len(self)} samples")
        number = int(np.searchsorted(self._starts, position, side="right")) - 1
        return number, int(position - self._starts[number])

    def _decode_into(self, positions: np.ndarray, out: np.ndarray, size: int | None) -> None:
        def work(begin: int, end: int) -> None:
            for row in range(begin, end):
                out[row] = decode(self.encoded(int(positions[row])), size)

        share(work, len(positions), least=4)


def resolve(where: str | Path) -> Path:
    """The folder of a pack given as a path or as a name in the cache.

    A known data set that is not there yet is offered to whoever sits at the terminal.
    """
    path = Path(where)
    if PackPaths(path).meta.exists():
        return path
    named = cached_pack(str(where))
    if "/" not in str(where) and PackPaths(named).meta.exists():
        return named
    from thresher.data.sources.known import NAMES

    if str(where) in NAMES:
        from thresher.data.get import offer

        if (got := offer(str(where))) is not None:
            return got
        raise ThresherError(
            f'the data set "{where}" is not in the cache', f"get it: `thresher data get {where}`"
        )
    if path.exists():
        raise ThresherError(
            f"{where} is not a pack: it holds no pack.json", f"`thresher data pack {where} OUT`"
        )
    known = {p.name for p in (home() / "packs").glob("*") if PackPaths(p).meta.exists()}
    raise ThresherError(f'there is no pack "{where}"', nearest(str(where), known | set(NAMES)))


def verify(pack: Pack) -> list[str]:
    """The shards whose bytes are not what they were when written, by name."""
    bad = []
    total = sum(shard["bytes"] for shard in pack.meta["shards"])
    with bar(f"verifying {pack.name}", total, "bytes") as shown:
        for shard in pack.meta["shards"]:
            if file_sha256(pack.root / shard["file"]) != shard["sha256"]:
                bad.append(shard["file"])
            shown.advance(shard["bytes"])
    return bad


def map_shard(
    path: Path, record: dict[str, Any], shape: tuple[int, int, int] | None
) -> list[pa.RecordBatch]:
    """The record batches of a shard, mapped into memory; a missing or damaged one is named."""
    try:
        with pa.memory_map(str(path)) as file:  # the batches keep the map, not the descriptor
            if file.size() != record["bytes"]:
                raise _damaged(path, f"it has {file.size():,} bytes, not {record['bytes']:,}")
            reader = pa.ipc.open_file(file)
            batches = [reader.get_batch(n) for n in range(reader.num_record_batches)]
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(path, type(error).__name__) from None
    width = None if shape is None else int(np.prod(shape))
    for batch in batches:
        if not _fits(batch.schema, width):
            raise _damaged(path, "its columns are not those of a pack")
    if sum(batch.num_rows for batch in batches) != record["samples"]:
        raise _damaged(path, f"it does not hold {record['samples']:,} samples")
    return batches


def _fits(schema: pa.Schema, width: int | None) -> bool:
    if not {"id", "label", "split", "image"} <= set(schema.names):
        return False
    image = schema.field("image").type
    fits = pa.types.is_fixed_size_binary(image) if width else pa.types.is_large_binary(image)
    return bool(
        fits
        and (width is None or image.byte_width == width)
        and schema.field("id").type == pa.string()
        and schema.field("label").type == pa.int32()
    )


def _damaged(path: Path, why: str) -> ThresherError:
    return ThresherError(
        f"the shard {path} is missing or damaged ({why})",
        "make the pack again, or restore that file",
    )
