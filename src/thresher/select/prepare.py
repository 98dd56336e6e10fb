"""From a pack to what a filter looks at, and from what it found to a selection file."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.environment import versions
from thresher.errors import ThresherError
from thresher.select.filters.base import Filter, per_class_counts
from thresher.select.samples import Samples

DYNAMICS = ("el2n", "forgetting", "learned_epoch", "loss")
PACKAGES = ("numpy", "scipy", "scikit-learn", "torch", "openTSNE", "cleanlab")


class FeatureTable(Protocol):
    """What is asked of features: `thresher.models.features.Features` gives it."""

    @property
    def array(self) -> np.ndarray: ...
    @property
    def probabilities(self) -> np.ndarray | None: ...
    @property
    def ids(self) -> Sequence[str]: ...
    @property
    def meta(self) -> dict[str, Any]: ...


def training_samples(pack: Pack) -> Samples:
    """The training samples of a pack, in pack order: nothing else is ever filtered."""
    at = pack.indices("train")
    if len(at) == 0:
        raise ThresherError(f"the pack {pack.name} has no training samples")
    return Samples(
        ids=pack.ids.take(pa.array(at)).to_pylist(),
        labels=pack.labels[at],
        classes=list(pack.classes),
    )


def with_features(samples: Samples, features: FeatureTable, pack: Pack) -> Samples:
    """The samples with their rows of `features`, which may hold others and in any order.

    Rows that stand as they should are not copied: a memory map stays one.
    """
    made_on = features.meta.get("fingerprint")
    if made_on and made_on != pack.fingerprint:
        raise ThresherError(
            f"these features were made on a pack with the fingerprint {made_on[:8]}…, but "
            f"{pack.name} has {pack.fingerprint[:8]}…",
            "embed this pack",
        )
    found = _rows(samples.ids, features.ids)
    if (found < 0).any():
        missing = samples.ids[int(np.argmax(found < 0))]
        raise ThresherError(
            f"the features lack {int((found < 0).sum()):,} of {len(samples):,} training samples "
            f'(the first is "{missing}")',
            "embed the training split of this pack",
        )
    array, probabilities = features.array, features.probabilities
    if not np.array_equal(found, np.arange(len(array))):
        array = array[found]
        probabilities = None if probabilities is None else probabilities[found]
    return replace(samples, features=array, probabilities=probabilities)


def with_dynamics(samples: Samples, path: Path) -> Samples:
    """The samples with a run's record of their training; NaN (learned: -1) where it has none."""
    if not path.exists():
        raise ThresherError(
            f"the run {path.parent} did not record training dynamics",
            "train it with `--record-dynamics`",
        )
    table = pq.read_table(path)
    row = _rows(samples.ids, table.column("id").to_pylist())
    if (row < 0).all():
        raise ThresherError(
            f"the run {path.parent} was trained on none of these samples", "give another run"
        )
    dynamics = {}
    for name in DYNAMICS:
        values = table.column(name).to_numpy().astype(np.float32)
        missing = 0 if name == "learned_epoch" else np.nan
        dynamics[name] = np.where(row >= 0, values[row], np.float32(missing))
    return replace(samples, dynamics=dynamics)


def as_selection(
    fitted: Filter, samples: Samples, pack: Pack, sources: dict[str, Any] | None = None
) -> Selection:
    """What a fitted filter found, as a selection that can be saved.

    `sources` says where things came from (run, features, network) and goes into the sidecar. The
    table is the same for the same input; only `seconds` in the sidecar differs.
    """
    meta = {
        "method": fitted.method(),
        "data": str(pack.root.resolve()),
        "pack": pack.name,
        **(sources or {}),
        "settings": fitted.settings(),
        "kept": int(fitted.keep_.sum()),
        "dropped": int((~fitted.keep_).sum()),
        "dropped_share": float((~fitted.keep_).mean()),
        "per_class": per_class_counts(samples, fitted.keep_),
        **fitted.report_,
        "warnings": fitted.warnings_,
        "versions": versions(PACKAGES),
        "seconds": {stage: round(spent, 3) for stage, spent in fitted.seconds_.items()},
    }
    return Selection(
        ids=samples.ids,
        labels=samples.labels,
        keep=fitted.keep_,
        score=fitted.score_,
        reason=fitted.reason_,
        fingerprint=pack.fingerprint,
        x=fitted.x_,
        y=fitted.y_,
        cluster=fitted.cluster_,
        votes=fitted.votes_,
        meta=meta,
    )


def _rows(wanted: Sequence[str], there: Sequence[str]) -> np.ndarray:
    """The row in `there` of each wanted id, -1 where it is missing."""
    row = {id: n for n, id in enumerate(there)}
    return np.array([row.get(id, -1) for id in wanted], np.int64)
