"""Run a filter on a pack and write the selection: the one way from files to a selection."""

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from thresher.data.ids import rows_by_id
from thresher.data.image_statistics import image_statistics
from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.data.selection_file import check_free
from thresher.data.split import HoldOut
from thresher.effect import mention
from thresher.environment import versions
from thresher.errors import (
    AlreadyExistsError,
    InvalidValueError,
    NotFoundError,
    ThresherError,
    check_type,
    counted,
)
from thresher.foreign_data import instead_of
from thresher.home_paths import expand_home
from thresher.models.embed_config import EmbedOptions
from thresher.models.features import Features
from thresher.options import to_mapping
from thresher.paths import RunPaths, SelectionPaths, as_path, read_run_json
from thresher.read_errors import unreadable
from thresher.select.filters.base import Filter
from thresher.select.inputs import FilterInputs, FilterSources, Retrain, take_rows

DYNAMICS = ("el2n", "forgetting", "learned_epoch", "loss")
LATER_DYNAMICS = ("margin", "uncertainty")
"""Columns that runs of version 0.1 did not record."""
PACKAGES = ("numpy", "scipy", "scikit-learn", "torch", "openTSNE", "cleanlab")
_BLOCK = 1 << 24
"""Probabilities that are read together."""
logger = logging.getLogger(__name__)


def run_filter(
    filter: Filter,
    pack: Pack,
    sources: FilterSources | None = None,
    out: Path | None = None,
    retrain: Retrain | None = None,
    notes: Mapping[str, str] | None = None,
) -> Selection:
    """Fit a filter to the training samples of a pack and save the selection.

    The same input gives the same table; the sidecar differs in its timings.

    Args:
        filter: The filter; it is left fitted.
        pack: The pack to select from. Only its training samples are considered.
        sources: Files that the filter's inputs are read from, as `filter.needs` demands.
        out: The selection to write, a new .parquet file; None writes nothing.
        retrain: For filters that need training; see `thresher.study.selecting.run_selection`.
        notes: Further entries of the sidecar.
    """
    check_type(pack, Pack, "pack", "a Pack", instead_of(pack))
    if out is not None:
        out = as_path(out, "out")
        check_new(out)
    inputs, origin = load_inputs(filter, pack, sources or FilterSources())
    mention(filter)
    filter.fit_inputs(replace(inputs, retrain=retrain))
    for warning in filter.warnings_:
        logger.warning(warning)
    selection = as_selection(filter, inputs, pack, {**origin, **(notes or {})})
    return selection if out is None else selection.save(out)


def check_new(out: Path) -> None:
    """Raise if `out` is not the name of a new selection."""
    if out.suffix != ".parquet":
        raise InvalidValueError(f"out must end in .parquet, got {out}", "", "out")
    check_free(SelectionPaths(out))
    nearest_parent = next(parent for parent in out.absolute().parents if parent.exists())
    if not nearest_parent.is_dir():
        raise AlreadyExistsError(f"{nearest_parent} is a file, not a folder", "choose another name")


def load_inputs(
    filter: Filter, pack: Pack, sources: FilterSources
) -> tuple[FilterInputs, dict[str, str]]:
    """Return what a filter needs, and where it comes from, for the sidecar."""
    expand_home(sources)
    inputs = training_inputs(pack, sources.hold_out)
    origin: dict[str, str] = {}
    if "training" in filter.needs and sources.run is None:
        raise InvalidValueError("run is required: its network is retrained", "", "run")
    if "features" in filter.needs:
        inputs, origin = _load_features(inputs, pack, filter, sources)
    if "statistics" in filter.needs:
        positions = pack.positions(inputs.ids)
        inputs = replace(inputs, statistics=image_statistics(pack, positions))
    if "dynamics" in filter.needs:
        if sources.run is None:
            raise InvalidValueError("run is required: it holds the training dynamics", "", "run")
        others = sources.also if "other_dynamics" in filter.needs else ()
        for run in (sources.run, *others):
            _check_trained_on(_existing_run(run), pack)
        first, *more = [_dynamics(inputs, pack, filter, run) for run in (sources.run, *others)]
        inputs = replace(inputs, dynamics=first, other_dynamics=more)
        origin["run"] = ", ".join(map(str, (sources.run, *others)))
    if "selections" in filter.needs:
        selections = [Selection.load(path) for path in sources.selections]
        for selection in selections:
            selection.indices(pack)  # raises if it is of another pack
        inputs = replace(inputs, selections=selections)
    if "like" in filter.needs and sources.like is not None:
        model = Selection.load(sources.like)
        model.indices(pack)  # raises if it is of another pack
        inputs, origin["like"] = replace(inputs, like=model), str(sources.like)
    if sources.run is not None:
        _mention_new_labels(_existing_run(sources.run), pack)
    return inputs, origin


def training_inputs(pack: Pack, hold_out: HoldOut | None = None) -> FilterInputs:
    """Return ids, labels and class names of the training samples, in pack order.

    Those that `hold_out` reserves for validation are left out.
    """
    positions = pack.indices("train")
    if hold_out is not None and len(positions):
        positions = positions[~hold_out.mask(pack)]
    if len(positions) == 0:
        raise InvalidValueError(f"pack {pack.name} has no training samples")
    return FilterInputs(
        ids=pack.ids.take(positions).to_pylist(),
        labels=pack.labels[positions],
        classes=list(pack.classes),
    )


def _load_features(
    inputs: FilterInputs, pack: Pack, filter: Filter, sources: FilterSources
) -> tuple[FilterInputs, dict[str, str]]:
    if sources.run is None and sources.features is None:
        raise InvalidValueError("features are required", "give either `run` or `features`")
    if sources.run is not None and sources.features is not None and "training" not in filter.needs:
        raise InvalidValueError("run and `features` exclude each other", "give one of them", "run")
    device = getattr(filter, "device", "auto")
    where = sources.features or _existing_run(sources.run)
    features = open_features(where, pack, device)
    inputs = with_features(inputs, features, pack)
    others = [
        with_features(inputs, open_features(path, pack, device), pack).need_features()
        for path in (sources.also if "other_features" in filter.needs else ())
    ]
    maps = where / "maps" if where.is_dir() else None
    origin = {"run": str(sources.run)} if sources.run is not None else {}
    origin["features"] = str((features.path or where).resolve())
    if features.meta.model:
        origin["network"] = features.meta.model
    return replace(inputs, other_features=others, maps=maps), origin


def _existing_run(run: Path | None) -> Path:
    assert run is not None
    if not RunPaths(run).config.exists():
        raise NotFoundError(f"there is no run at {run}", "check the path")
    return run


def _check_trained_on(run: Path, pack: Pack) -> None:
    """Refuse the training dynamics of other data: samples of the same id may have other labels."""
    content = read_run_json(RunPaths(run).config, "run's configuration")
    data = content.get("data") if isinstance(content, dict) else None
    trained_on = data.get("fingerprint") if isinstance(data, dict) else None
    if trained_on is not None and trained_on != pack.fingerprint:
        raise InvalidValueError(
            f"the run in {run} was trained on other data than {pack.name}",
            "give a run of this pack",
            "run",
        )


def _mention_new_labels(run: Path, pack: Pack) -> None:
    """Warn if a run was trained on a selection with new labels: filters go by those of the pack."""
    content = read_run_json(RunPaths(run).config, "run's configuration")
    config = content.get("config") if isinstance(content, dict) else None
    path = config.get("selection") if isinstance(config, dict) else None
    if not isinstance(path, str):
        return
    with contextlib.suppress(ThresherError):  # the run does not need it any more
        used = Selection.load(path)
        changed = used.final_labels != used.labels
        count = int(changed.sum()) if used.fingerprint == pack.fingerprint else 0
        if count:
            logger.warning(
                f"{run} was trained on {path}, which now has {counted(count, 'new label')} that "
                f"the selection does not have; `thresher select union {path} THIS.parquet` adds "
                f"{'it' if count == 1 else 'them'}"
            )


def open_features(path: Path, pack: Pack, device: str = "auto") -> Features:
    """Open features from a file, or compute those of a run's network if they are missing."""
    if not RunPaths(path).config.exists():
        return Features.open(path)
    # Here because it loads torch, which reading features does not need.
    from thresher.models.embed import features_of_run

    kinds: tuple[Literal["cpu", "cuda", "mps"], ...] = ("cpu", "cuda", "mps")
    kind: Literal["auto", "cpu", "cuda", "mps"] = next(filter(device.startswith, kinds), "auto")
    return features_of_run(path, pack, EmbedOptions(device=kind))


def with_features(inputs: FilterInputs, features: Features, pack: Pack) -> FilterInputs:
    """Add the rows of `features` for these samples; it may hold others, in any order.

    Rows that follow each other in the file are not copied, so a memory map stays one.
    """
    fingerprint = features.meta.fingerprint
    if fingerprint and fingerprint != pack.fingerprint:
        raise InvalidValueError(
            f"features were computed on a pack with the fingerprint {fingerprint[:8]}…, but "
            f"{pack.name} has {pack.fingerprint[:8]}…",
            "embed this pack",
            "features",
        )
    rows = rows_by_id(inputs.ids, features.ids)
    if (rows < 0).any():
        missing = inputs.ids[int(np.argmax(rows < 0))]
        raise InvalidValueError(
            f"features lack {int((rows < 0).sum()):,} of {len(inputs):,} training samples "
            f'(the first is "{missing}")',
            "embed the training split of this pack",
            "features",
        )
    _mention_other_labels(inputs, features, rows)
    array, probabilities = take_rows(features.array, rows), features.probabilities
    if probabilities is not None:
        probabilities = take_rows(probabilities, rows)
    return replace(inputs, features=array, probabilities=probabilities)


def _mention_other_labels(inputs: FilterInputs, features: Features, rows: np.ndarray) -> None:
    """Warn if features from elsewhere come with other labels: their ids may be those of others."""
    own = None
    with contextlib.suppress(InvalidValueError):  # names of classes, which cannot be compared
        own = features.labels
    count = 0 if own is None else int((own[rows] != inputs.labels).sum())
    if count:
        logger.warning(
            f"{counted(count, 'label differs', 'labels differ')} between {features.path} and the "
            "pack: are the ids in its rows those of the features?"
        )


def _dynamics(
    inputs: FilterInputs, pack: Pack, filter: Filter, run: Path
) -> Mapping[str, np.ndarray]:
    """Return the record of a run, or the errors of its final network if the filter asks for it."""
    if not getattr(filter, "checkpoint", False):
        return with_dynamics(inputs, RunPaths(run).dynamics).dynamics
    p = with_features(inputs, open_features(run, pack), pack).probabilities
    if p is None:
        raise InvalidValueError(f"features of {run} come without probabilities", "", "run")
    error = _errors(p, inputs.labels)
    # As in the record: nothing is known of samples that the run did not train on.
    config = read_run_json(RunPaths(run).config, "run")["config"]
    held = HoldOut(config.get("validation"), int(config.get("split_seed") or 0))
    trained = training_inputs(_pack_of_run(config, pack), held).ids
    error[rows_by_id(inputs.ids, trained) < 0] = np.nan
    if config.get("selection"):
        used = Selection.load(config["selection"])
        kept = pack.ids.take(used.indices(pack)).to_pylist()
        error[rows_by_id(inputs.ids, kept) < 0] = np.nan
    return {"el2n": error}


def _pack_of_run(config: Mapping[str, Any], pack: Pack) -> Pack:
    """Return the pack that a run was trained on, if it is there: its order decides what was held
    out, and `pack` may hold the same samples in another order."""
    with contextlib.suppress(ThresherError):
        own = Pack.open(config["data"]) if config.get("data") else pack
        return own if own.fingerprint == pack.fingerprint else pack
    return pack


def _errors(p: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the length of p - one-hot label, (n,) float32, for probabilities (n, classes)."""
    error = np.empty(len(p), np.float32)
    step = max(1, _BLOCK // p.shape[1])
    for begin in range(0, len(p), step):
        rows = slice(begin, begin + step)
        rest = np.array(p[rows], np.float32)
        rest[np.arange(len(rest)), labels[rows]] -= 1
        error[rows] = np.linalg.norm(rest, axis=1)
    return error


def with_dynamics(inputs: FilterInputs, path: Path) -> FilterInputs:
    """Add a run's training dynamics; NaN (`learned_epoch`: 0) for samples it did not train on."""
    if not path.exists():
        raise NotFoundError(
            f"run {path.parent} did not record training dynamics", "train it with `record_dynamics`"
        )
    try:
        recorded = pq.read_schema(path).names
        names = [*DYNAMICS, *(name for name in LATER_DYNAMICS if name in recorded)]
        table = pq.read_table(path, columns=["id", *names])
        rows = rows_by_id(inputs.ids, table.column("id").cast(pa.string()))
    except (pa.ArrowException, OSError, KeyError) as error:
        fix = "train the run again with `record_dynamics`"
        wrong = InvalidValueError(f"{path} is damaged", fix, "run")
        raise unreadable(path, error) or wrong from None
    if (rows < 0).all():
        raise InvalidValueError(
            f"run {path.parent} was trained on none of these samples", "give another run", "run"
        )
    dynamics = {}
    for name in names:
        values = table.column(name).to_numpy().astype(np.float32)
        missing = 0 if name == "learned_epoch" else np.nan
        dynamics[name] = np.where(rows >= 0, values[rows], np.float32(missing))
    return replace(inputs, dynamics=dynamics)


def as_selection(
    fitted: Filter, inputs: FilterInputs, pack: Pack, origin: dict[str, str] | None = None
) -> Selection:
    """Return the choice of a fitted filter; `origin` of its inputs goes into the sidecar."""
    x, y = (None, None) if fitted.map_ is None else fitted.map_.T
    labels, keep = inputs.labels, fitted.keep_
    per_class = {
        inputs.class_name(int(label)): _counts(keep[labels == label]) for label in np.unique(labels)
    }
    meta: dict[str, Any] = {
        "method": fitted.name,
        "data": str(pack.root.resolve()),
        "pack": pack.name,
        **(origin or {}),
        "settings": to_mapping(fitted),
        **_counts(keep),
        "per_class": per_class,
        **fitted.report_,
        "warnings": fitted.warnings_,
        "versions": versions(PACKAGES),
        "seconds": {stage: round(seconds, 3) for stage, seconds in fitted.seconds_.items()},
    }
    return Selection(
        ids=list(inputs.ids),
        labels=labels,
        keep=keep,
        score=fitted.score_,
        reason=fitted.reason_,
        fingerprint=pack.fingerprint,
        class_names=tuple(pack.classes),
        x=x,
        y=y,
        cluster=fitted.cluster_,
        votes=fitted.votes_,
        new_labels=fitted.new_labels_,
        suggested=fitted.suggested_,
        copies=fitted.copies_,
        meta=meta,
    )


def _counts(keep: np.ndarray) -> dict[str, float]:
    kept = int(keep.sum())
    return {"kept": kept, "dropped": len(keep) - kept, "dropped_share": float((~keep).mean())}
