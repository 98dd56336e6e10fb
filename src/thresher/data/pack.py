"""A pack: images in a folder of memory-mapped Arrow IPC shards, described by `pack.json`.

Each shard holds one record batch with the columns `id` (string), `label` (int32), `split`
(dictionary of strings) and `image`: fixed-size binary of height×width×channels raw bytes where all
images share a shape, else the encoded file. Raw images are read as zero-copy views of the map.
Any Arrow reader (pandas, polars, DuckDB) opens the shards.
"""

import hashlib
import io
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from thresher.errors import ThresherError, nearest
from thresher.paths import PackPaths, cached_pack, home, read_json

FORMAT = 1


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
        self._batches = [_map_shard(root / shard["file"]) for shard in meta["shards"]]
        self._starts = np.cumsum([0, *(batch.num_rows for batch in self._batches)])

    @classmethod
    def open(cls, where: str | Path) -> "Pack":
        """Open a pack by its folder, or by the name it has in the cache."""
        root = resolve(where)
        meta = read_json(PackPaths(root).meta, "pack")
        if not isinstance(meta, dict) or meta.get("format") != FORMAT:
            raise ThresherError(
                f"{root} is not a pack of format {FORMAT}",
                "make it again with `thresher data pack`",
            )
        return cls(root, meta)

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

        Raw images are copied once, out of the memory map. Encoded ones are decoded, and resized
        to `size` × `size` (required for them: a batch has one shape).
        """
        positions = np.asarray(positions, dtype=np.int64)
        if self.image_shape is None:
            return self._decoded(positions, out, size)
        if out is None:
            out = np.empty((len(positions), *self.image_shape), dtype=np.uint8)
        if len(self._raw) == 1:
            np.take(self._raw[0], positions, axis=0, out=out, mode="clip")
            return out
        shard = np.searchsorted(self._starts, positions, side="right") - 1
        for number, raw in enumerate(self._raw):
            (here,) = np.nonzero(shard == number)
            if len(here):
                out[here] = raw[positions[here] - self._starts[number]]
        return out

    def view(self, position: int) -> np.ndarray:
        """One raw image as a zero-copy, read-only view (height, width, channels)."""
        number, row = self._locate(position)
        return self._raw[number][row]

    def encoded(self, position: int) -> bytes:
        """One image as an encoded file: as stored, or a PNG of the raw pixels."""
        if self.image_shape is None:
            number, row = self._locate(position)
            return bytes(self._batches[number].column("image")[row].as_py())
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
            "path": str(self.root),
            "source": self.meta.get("source", ""),
        }

    @cached_property
    def _raw(self) -> list[np.ndarray]:
        """Per shard, the image column as a zero-copy array (n, height, width, channels)."""
        assert self.image_shape is not None
        arrays = []
        for batch in self._batches:
            column = batch.column("image")
            data = np.frombuffer(column.buffers()[1], dtype=np.uint8)
            width = int(np.prod(self.image_shape))
            begin = column.offset * width
            data = data[begin : begin + len(column) * width]
            arrays.append(data.reshape(len(column), *self.image_shape))
        return arrays

    def _locate(self, position: int) -> tuple[int, int]:
        if not 0 <= position < len(self):
            raise IndexError(f"position {position} is outside a pack of {len(self)} samples")
        number = int(np.searchsorted(self._starts, position, side="right")) - 1
        return number, int(position - self._starts[number])

    def _decoded(
        self, positions: np.ndarray, out: np.ndarray | None, size: int | None
    ) -> np.ndarray:
        if size is None:
            raise ThresherError(
                f"the images of {self.name} differ in size", "give one size to read them at"
            )
        if out is None:
            out = np.empty((len(positions), size, size, 3), dtype=np.uint8)
        for row, position in enumerate(positions):
            out[row] = decode(self.encoded(int(position)), size)
        return out


def resolve(where: str | Path) -> Path:
    """The folder of a pack given as a path or as a name in the cache."""
    path = Path(where)
    if PackPaths(path).meta.exists():
        return path
    named = cached_pack(str(where))
    if "/" not in str(where) and PackPaths(named).meta.exists():
        return named
    known = {p.name for p in (home() / "packs").glob("*") if PackPaths(p).meta.exists()}
    if path.exists():
        raise ThresherError(
            f"{where} is not a pack: it holds no pack.json", f"`thresher data pack {where} OUT`"
        )
    from thresher.data.sources.known import NAMES

    if str(where) in NAMES:
        from thresher.data.get import offer

        if (got := offer(str(where))) is not None:
            return got
        raise ThresherError(
            f'the data set "{where}" is not in the cache', f"get it: `thresher data get {where}`"
        )
    raise ThresherError(f'there is no pack "{where}"', nearest(str(where), known | set(NAMES)))


def decode(data: bytes, size: int | None = None) -> np.ndarray:
    """An encoded image as uint8 RGB (height, width, 3): its short side scaled to `size`, then the
    middle square cut out."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        if size is not None:
            # JPEG can be decoded at a fraction of its size, which is several times faster.
            image.draft("RGB", (size, size))
        return square(image.convert("RGB"), size)


def square(image: Any, size: int | None) -> np.ndarray:
    if size is not None and image.size != (size, size):
        from PIL import Image

        width, height = image.size
        side = min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        box = (left, top, left + side, top + side)
        image = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    return np.asarray(image, dtype=np.uint8)


def encode_png(image: np.ndarray) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image).save(file, "PNG")
    return file.getvalue()


def sample_digest(id: str, label: int, pixels: np.ndarray) -> bytes:
    """16 bytes that name one sample: its id, label, shape and pixels."""
    digest = hashlib.sha256(f"{id}\0{label}\0{pixels.shape}\0".encode())
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.digest()[:16]


def fingerprint(digests: np.ndarray) -> str:
    """One name for a set of samples, whatever their order, shards or encoding.

    `digests` is (n, 16) uint8, a `sample_digest` per sample.
    """
    rows = np.ascontiguousarray(digests).view("S16").ravel()
    # numpy compares S16 without trailing zero bytes, which orders them all the same.
    return hashlib.sha256(np.sort(rows).tobytes()).hexdigest()[:32]


def shard_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify(pack: Pack) -> list[str]:
    """The shards whose bytes are not what they were when written, by name."""
    bad = []
    for shard in pack.meta["shards"]:
        if shard_sha256(pack.root / shard["file"]) != shard["sha256"]:
            bad.append(shard["file"])
    return bad


def _map_shard(path: Path) -> pa.RecordBatch:
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        return reader.get_batch(0)
    except (FileNotFoundError, pa.ArrowInvalid, OSError) as error:
        raise ThresherError(
            f"the shard {path} is missing or damaged ({type(error).__name__})",
            "make the pack again, or restore that file",
        ) from None
