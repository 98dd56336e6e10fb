"""The data a filter works on, and the files that it comes from."""

from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from thresher.data.image_statistics import ImageStatistics
from thresher.data.selection import Selection
from thresher.data.split import HoldOut
from thresher.errors import InvalidValueError
from thresher.options import option

Need = Literal[
    "features",
    "other_features",
    "dynamics",
    "selections",
    "like",
    "training",
    "other_dynamics",
    "statistics",
]
"""What a filter asks its caller to prepare, beside the labels:

- features: `FilterInputs.features`, and `probabilities` if the network has some;
- other_features: features of further networks, if the user names any;
- dynamics: the record of a training run;
- other_dynamics: records of further runs, if the user names any;
- selections: finished selections of the same pack;
- like: a selection of the same pack to match, if the user names one;
- training: `FilterInputs.retrain`;
- statistics: `FilterInputs.statistics`, measured on the images of the pack.
"""

Retrain = Callable[[int, np.ndarray], np.ndarray]
"""(round, keep (n,) bool) to features (n, d) of all samples, by a network trained on the kept."""

_ROWS = 1 << 14
"""Rows of features that are checked together."""
LARGEST, SMALLEST = 1e12, 1e-10
"""Range of the largest feature. Filters compute in float32: beyond it squares overflow or vanish,
and openTSNE's probabilities were off by 0.4 % at 1e14."""


@dataclass(frozen=True, kw_only=True)
class FilterInputs:
    """Training samples in pack order, n of them, and what is known about each."""

    labels: np.ndarray
    """(n,) int64."""
    ids: Sequence[str]
    classes: Sequence[str] = ()
    """Class names, used in reasons and reports; the label itself where there is no name."""
    features: np.ndarray | None = None
    """(n, d) penultimate features, any float type, possibly memory-mapped."""
    probabilities: np.ndarray | None = None
    """(n, classes) float32 class probabilities of the network that made the features."""
    other_features: Sequence[np.ndarray] = ()
    """Features (n, d') of further networks."""
    dynamics: Mapping[str, np.ndarray] = field(default_factory=dict)
    """`el2n`, `forgetting`, `learned_epoch`, `loss`, `margin` and `uncertainty` of a training run,
    each (n,); NaN where the run did not train on a sample."""
    other_dynamics: Sequence[Mapping[str, np.ndarray]] = ()
    """The same of further runs."""
    selections: Sequence[Selection] = ()
    """Selections to combine."""
    like: Selection | None = None
    """Selection whose number of dropped samples per class is matched."""
    statistics: ImageStatistics | None = None
    """Statistics of the images."""
    retrain: Retrain | None = None
    """Trains a network on a subset and returns its features of all samples."""
    maps: Path | None = None
    """Folder in which maps of the features are cached."""

    def __post_init__(self) -> None:
        arrays: list[tuple[str, Sized | None]]
        arrays = [("ids", self.ids), ("features", self.features)]
        records = [self.dynamics, *self.other_dynamics]
        arrays += [("probabilities", self.probabilities), *(x for r in records for x in r.items())]
        arrays += [("other_features", features) for features in self.other_features]
        arrays += [("statistics", self.statistics)]
        for name, array in arrays:
            if array is not None and len(array) != len(self):
                raise InvalidValueError(
                    f"{name} has {len(array)} rows for {len(self)} labels", "", name
                )

    def __len__(self) -> int:
        return len(self.labels)

    def need_features(self) -> np.ndarray:
        """Return the features, or raise InvalidValueError."""
        if self.features is None:
            raise InvalidValueError("this filter needs features", "give `features` or `run`")
        return self.features

    def check_features(self) -> None:
        """Raise InvalidValueError unless features are (n, d) finite numbers of a usual size.

        Reads all of them.
        """
        own = [] if self.features is None else [self.features]
        for features in (*own, *self.other_features):
            if features.ndim != 2 or features.dtype.kind not in "fiub":
                raise InvalidValueError(
                    "features must be (n, d) numbers, got "
                    f"{features.dtype} of shape {features.shape}",
                    "",
                    "features",
                )
            largest = max(
                (self._largest(features, begin) for begin in range(0, len(features), _ROWS)),
                default=0.0,
            )
            if 0 < largest < SMALLEST:
                raise InvalidValueError(
                    f"the largest feature must be at least {SMALLEST:g} in size, got {largest:.3g}",
                    "scale them",
                    "features",
                )

    def _largest(self, features: np.ndarray, begin: int) -> float:
        """Return the size of the largest feature of a block of rows; refuse one too large."""
        block = np.asarray(features[begin : begin + _ROWS])
        wrong = ~np.isfinite(block).all(axis=1)
        if wrong.any():
            raise InvalidValueError(
                "features must be finite, but those of sample "
                f'"{self.ids[begin + int(wrong.argmax())]}" are not',
                "embed again in float32",
                "features",
            )
        largest = max(float(block.max(initial=0)), -float(block.min(initial=0)))
        if largest > LARGEST:
            row = int(np.abs(block).max(axis=1).argmax())
            raise InvalidValueError(
                f"features must be at most {LARGEST:g} in size, but those of sample "
                f'"{self.ids[begin + row]}" are up to {largest:.3g}',
                "scale them, or check whether the network diverged",
                "features",
            )
        return largest

    def need_dynamics(self, name: str) -> np.ndarray:
        """Return the (n,) array `name` of the training dynamics, or raise InvalidValueError."""
        if name not in self.dynamics:
            raise InvalidValueError(
                f'this filter needs the "{name}" of a training run',
                "give `run`, a run trained with `record_dynamics`",
            )
        return np.asarray(self.dynamics[name])

    def class_name(self, label: int) -> str:
        """Return the name of a class, or its number if it has none."""
        return self.classes[label] if 0 <= label < len(self.classes) else str(label)

    def take(self, rows: np.ndarray) -> "FilterInputs":
        """Return the inputs of some rows, an ascending index array."""
        features, probabilities = self.features, self.probabilities
        return replace(
            self,
            ids=[self.ids[row] for row in rows],
            labels=self.labels[rows],
            features=None if features is None else take_rows(features, rows),
            probabilities=None if probabilities is None else take_rows(probabilities, rows),
            other_features=[take_rows(other, rows) for other in self.other_features],
            statistics=None if self.statistics is None else self.statistics.take(rows),
            dynamics={name: values[rows] for name, values in self.dynamics.items()},
            other_dynamics=[
                {name: values[rows] for name, values in record.items()}
                for record in self.other_dynamics
            ],
        )


def as_array(values: Any) -> np.ndarray:
    """Return the values of an array, a list, a pandas object or a torch tensor, as numpy's."""
    if hasattr(values, "detach"):  # a tensor: with a gradient, on a GPU or of a type of torch's own
        values = values.detach().cpu()
        values = values.float() if str(values.dtype) == "torch.bfloat16" else values
    return np.atleast_1d(np.asanyarray(values))


def as_arrays(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of `FilterInputs` with numpy arrays: rows of pandas count by position."""
    made = dict(inputs)
    if made.get("probabilities") is not None:
        made["probabilities"] = as_array(made["probabilities"])
    if "other_features" in made:
        made["other_features"] = [as_array(values) for values in made["other_features"]]
    if "dynamics" in made:
        made["dynamics"] = _arrays_by_name(made["dynamics"])
    if "other_dynamics" in made:
        made["other_dynamics"] = [_arrays_by_name(record) for record in made["other_dynamics"]]
    return made


def _arrays_by_name(record: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: as_array(values) for name, values in record.items()}


def take_rows(array: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return `array[rows]`; a view if the rows follow each other, so that a memory map stays one.

    Other rows are copied to memory.
    """
    if len(rows) and rows[0] >= 0 and (np.diff(rows) == 1).all():
        return array[rows[0] : rows[-1] + 1]
    return array[rows]


@dataclass(kw_only=True)
class RunSource:
    run: Path | None = None
    """Training run: its network computes features, kept in the run; its record holds dynamics."""


@dataclass(kw_only=True)
class FeatureSource(RunSource):
    features: Path | None = None
    """Features written by `thresher embed`, or a .npy or Parquet file with ids."""


@dataclass(kw_only=True)
class OtherFeatureSource:
    also: tuple[Path, ...] = ()
    """Further runs or features, whose networks vote as well or whose scores are averaged."""


@dataclass(kw_only=True)
class SelectionSource:
    selections: tuple[Path, ...] = option((), positional=True)
    """Selections of the same pack: two or more to combine, or one whose scores are used."""


@dataclass(kw_only=True)
class LikeSource:
    like: Path | None = None
    """Selection to match: drop as many samples of each class as it does, instead of a share."""


@dataclass(kw_only=True)
class FilterSources(FeatureSource, OtherFeatureSource, SelectionSource, LikeSource):
    """Files that the inputs of any filter are read from."""

    hold_out: HoldOut | None = None
    """Validation samples of the runs that use the selection: the filter does not see them."""


SOURCES: dict[Need, type] = {
    "features": FeatureSource,
    "other_features": OtherFeatureSource,
    "dynamics": RunSource,
    "other_dynamics": OtherFeatureSource,
    "training": RunSource,
    "selections": SelectionSource,
    "like": LikeSource,
}
"""The options that satisfy each need."""
