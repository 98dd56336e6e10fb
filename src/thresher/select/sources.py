"""Where the inputs of a filter come from: files that other stages wrote."""

from dataclasses import dataclass
from pathlib import Path

from thresher.options import option
from thresher.select.inputs import Need


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
    """Further runs or features, whose networks vote as well."""


@dataclass(kw_only=True)
class SelectionSource:
    selections: tuple[Path, ...] = option((), positional=True)
    """Two or more selections of the same pack."""


@dataclass(kw_only=True)
class FilterSources(FeatureSource, OtherFeatureSource, SelectionSource):
    """Files that the inputs of any filter are read from."""


SOURCES: dict[Need, type] = {
    "features": FeatureSource,
    "other_features": OtherFeatureSource,
    "dynamics": RunSource,
    "training": RunSource,
    "selections": SelectionSource,
}
"""The options that satisfy each need."""
