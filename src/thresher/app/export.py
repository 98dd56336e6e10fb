"""The page with its data as plain files, read-only, for any web server."""

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from thresher.app import arrow, static_files, thumbnails
from thresher.app.filter_preview import known_values
from thresher.app.selection_view import SelectionView
from thresher.app.workspace import Workspace
from thresher.data.overrides import effective_overrides
from thresher.paths import atomic_folder, write_json
from thresher.progress import track

SLIDER_SHARES = [step / 1000 for step in range(601)]
"""The steps of the page's share slider."""


@dataclass(frozen=True)
class ExportResult:
    """What `export_page` wrote."""

    folder: str
    files: int
    bytes: int
    samples: int


def export_page(workspace: Workspace, folder: Path) -> ExportResult:
    """Write the page of the first selection, with the others for comparison, to a new folder."""
    view, previewer = workspace.view(), workspace.previewer()
    with atomic_folder(folder) as root:
        for name, data in static_files.static_files().items():
            if name == "index.html":
                live, static = static_files.LIVE_MARK, static_files.STATIC_MARK
                data = data.replace(live.encode(), static.encode())
            _write(root / name, data)
        slot = _thumbnail_slots(view)
        sheets = _write_sheets(view, slot, root / "data" / "sprites")
        described = previewer.describe()
        columns = _columns(view, slot)
        # The page looks up what a slider drops: nothing is computed without a server.
        eps_by_share = None
        if "network" in described.methods:
            graph = previewer.graph(described.min_samples)
            columns["threshold"] = pa.array(graph.threshold)
            eps_by_share = [graph.eps_for_share(share) for share in SLIDER_SHARES]
        if "score" in described.methods:
            columns["drop_step"] = pa.array(_drop_steps(view.selection.score))
        _write(root / "data" / "points.arrow", arrow.encode(columns))
        _write(root / "data" / "copies.arrow", view.copies.stream())
        compared = {}
        for number, other in enumerate(workspace.names[1:]):
            compared[other] = f"compare-{number}.arrow"
            comparison = workspace.compare(workspace.first, other)
            _write(root / "data" / compared[other], comparison.stream())
        info = {
            **workspace.info(workspace.first),
            "compare": compared,
            "knobs": known_values(described),
            "eps_by_share": eps_by_share,
            "sheets": sheets,
            "features": False,
            "log": [asdict(entry) for entry in view.history()],
        }
        del info["settings"]  # the sidecar, which may name files of this machine
        write_json(root / "data" / "info.json", info)
        written = [path for path in root.rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in written)
    return ExportResult(str(folder), len(written), size, len(view))


def _drop_steps(score: np.ndarray) -> np.ndarray:
    """(n,) uint16: the first of `SLIDER_SHARES` at which `highest` marks each sample."""
    known = np.flatnonzero(~np.isnan(score))
    highest_first = known[np.argsort(np.asarray(score, np.float64)[known], kind="stable")[::-1]]
    rank = np.full(len(score), len(score))
    rank[highest_first] = np.arange(len(known))
    counts = [round(share * len(score)) for share in SLIDER_SHARES]
    return np.searchsorted(counts, rank, side="right").astype(np.uint16)


def _columns(view: SelectionView, slot: np.ndarray) -> dict[str, pa.Array]:
    """The points of the live page with the decisions in force and the slot of each thumbnail."""
    state = view.state()
    reasons = list(view.selection.reason)
    for id, entry in effective_overrides(view.log.read()).items():
        reasons[view.row_by_id[id]] = entry.reason
    relabelled = {} if state.labels is None else {"relabel": pa.array(state.labels)}
    return {
        **view.columns(),
        **relabelled,
        "place": view.neighbourhood_labels,
        "decided": pa.array(state.keep),
        "overruled": pa.array(state.overruled),
        "note": pa.array(reasons, pa.string()).dictionary_encode(),
        "slot": pa.array(slot, pa.int32()),
    }


def _thumbnail_slots(view: SelectionView) -> np.ndarray:
    """(n,) int32: the index of each thumbnail in the sheets, in Z-order of a 1024 × 1024 grid.

    Neighbours on the map share a sheet, so a lasso needs few of them.
    """
    if not len(view):
        return np.empty(0, np.int32)
    cells = [_grid_cells(view.layout.x), _grid_cells(view.layout.y)]
    order = np.lexsort((view.selection.labels, _interleave(*cells)))
    return np.argsort(order).astype(np.int32)


def _write_sheets(view: SelectionView, slot: np.ndarray, folder: Path) -> int:
    # The images outside of the selection, if any, come last: their slots are their rows.
    order = np.concatenate([np.argsort(slot), np.arange(len(view), len(view.image_positions))])
    size = thumbnails.SHEET_LIMIT
    starts = range(0, len(order), size)
    for begin in track(starts, "writing thumbnails", unit="sheets"):
        positions = view.image_positions[order[begin : begin + size]]
        picture = thumbnails.thumbnail_sheet(view.pack, positions, lossy=True)
        _write(folder / f"{begin // size}.webp", picture)
    return len(starts)


def _grid_cells(values: np.ndarray) -> np.ndarray:
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
