"""The same page with its data as plain files, read-only, for any web server."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from thresher.app import arrow, bundle, sprites
from thresher.app.desk import Desk
from thresher.app.viewed import Viewed
from thresher.data.overrides import standing
from thresher.paths import atomic_folder, write_json
from thresher.progress import track

SHEET = sprites.SPRITE_LIMIT


def export(desk: Desk, folder: Path) -> dict[str, Any]:
    """Write the page of the desk's first selection, the others beside it for comparison.

    The folder must not exist; it appears whole or not at all.
    """
    viewed, knobs = desk.viewed(), desk.knobs()
    files = bundle.files()
    with atomic_folder(folder) as root:
        for name, file in files.items():
            data = file.data
            if name == "index.html":
                data = data.replace(bundle.LIVE_MARK.encode(), bundle.STATIC_MARK.encode())
            _write(root / name, data)
        slot = _map_order(viewed)
        sheets = _write_sheets(viewed, slot, root / "data" / "sprites")
        described = knobs.describe()
        columns = _columns(viewed, slot)
        if "network" in described["methods"]:
            # With each sample's threshold the page moves the eps slider without a server.
            columns["threshold"] = pa.array(knobs.graph(described["min_samples"]).threshold)
        _write(root / "data" / "points.arrow", arrow.encode(columns))
        compared = {}
        for number, other in enumerate(desk.names[1:]):
            numbers, masks = desk.compare(desk.first, other)
            arrays = {key: pa.array(mask) for key, mask in masks.items()}
            _write(root / "data" / f"compare-{number}.arrow", arrow.encode(arrays, numbers))
            compared[other] = f"compare-{number}.arrow"
        info = {
            **viewed.info(),
            "name": desk.first,
            "selections": desk.names,
            "compare": compared,
            "knobs": described,
            "thumb": sprites.thumb_size(viewed.pack),
            "sprite_columns": sprites.COLUMNS,
            "sprite_limit": SHEET,
            "sheets": sheets,
            "features": False,
            "log": viewed.history(),
        }
        write_json(root / "data" / "info.json", info)
        written = [path for path in root.rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in written)
    return {"folder": str(folder), "files": len(written), "bytes": size, "samples": len(viewed)}


def _columns(viewed: Viewed, slot: np.ndarray) -> dict[str, pa.Array]:
    """The live page's points, with the decisions in force and the place of each thumbnail."""
    state = viewed.state()
    columns = viewed.columns()
    reasons = list(viewed.selection.reason)
    for id, entry in standing(viewed.log.read()).items():
        reasons[viewed.row[id]] = entry.reason
    return {
        **columns,
        "place": viewed.places,
        "decided": pa.array(state.keep),
        "overruled": pa.array(state.overruled),
        "note": pa.array(reasons, pa.string()).dictionary_encode(),
        "slot": pa.array(slot, pa.int32()),
    }


def _map_order(viewed: Viewed) -> np.ndarray:
    """(n,) int32: the thumbnail's place in the sheets, near on the map → near in the sheets.

    A lasso then needs few sheets. Places follow a Z-order curve over a 1024 × 1024 grid.
    """
    n = len(viewed)
    if n == 0:
        return np.empty(0, np.int32)
    cells = [_cells(viewed.layout.x), _cells(viewed.layout.y)]
    order = np.lexsort((viewed.selection.labels, _interleave(*cells)))
    slot = np.empty(n, np.int32)
    slot[order] = np.arange(n, dtype=np.int32)
    return slot


def _write_sheets(viewed: Viewed, slot: np.ndarray, folder: Path) -> int:
    order = np.argsort(slot)
    starts = range(0, len(order), SHEET)
    for begin in track(starts, "writing thumbnails", unit="sheets"):
        positions = viewed.positions[order[begin : begin + SHEET]]
        picture = sprites.sprite(viewed.pack, positions, lossy=True)
        _write(folder / f"{begin // SHEET}.webp", picture)
    return len(starts)


def _cells(values: np.ndarray) -> np.ndarray:
    low, high = float(values.min()), float(values.max())
    scaled = (values.astype(np.float64) - low) / max(high - low, 1e-12)
    return np.minimum(scaled * 1024, 1023).astype(np.uint32)


def _interleave(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    code = np.zeros(len(x), np.uint32)
    for bit in range(10):
        code |= ((x >> bit) & 1) << (2 * bit)
        code |= ((y >> bit) & 1) << (2 * bit + 1)
    return code


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
