"""Filters by name: built in, from other packages, or `package.module:Class`.

Importing this module loads no filter, so `thresher --help` stays fast.
"""

import dataclasses
import inspect
from typing import TYPE_CHECKING

from thresher.errors import InvalidValueError
from thresher.plugins import Registry

if TYPE_CHECKING:
    from thresher.select.filters.base import Filter

_HERE = "thresher.select.filters"

FILTERS = Registry(
    "filter",
    "thresher.filters",
    {
        "network": f"{_HERE}.network:NetworkFilter",
        "random": f"{_HERE}.random:RandomFilter",
        "grid": f"{_HERE}.grid:GridFilter",
        "recursive": f"{_HERE}.recursive:RecursiveFilter",
        "el2n": f"{_HERE}.dynamics:EL2NFilter",
        "forgetting": f"{_HERE}.dynamics:ForgettingFilter",
        "aum": f"{_HERE}.dynamics:AUMFilter",
        "uncertainty": f"{_HERE}.dynamics:UncertaintyFilter",
        "ccs": f"{_HERE}.coverage:CoverageFilter",
        "moderate": f"{_HERE}.moderate:ModerateFilter",
        "prototypes": f"{_HERE}.prototypes:PrototypesFilter",
        "knn": f"{_HERE}.knn:KNNFilter",
        "outliers": f"{_HERE}.outliers:OutliersFilter",
        "near-duplicates": f"{_HERE}.near_duplicates:NearDuplicatesFilter",
        "label-errors": f"{_HERE}.label_errors:LabelErrorsFilter",
        "list": f"{_HERE}.listed:ListFilter",
        "union": f"{_HERE}.combine:UnionFilter",
        "intersection": f"{_HERE}.combine:IntersectionFilter",
        "vote": f"{_HERE}.combine:VoteFilter",
    },
)

SUMMARIES = {
    "network": "Drop samples that DBSCAN labels as noise on a map of the network's features.",
    "random": "Drop a random share of the samples: the control.",
    "grid": "Drop samples by how crowded their cell of a grid over the map is.",
    "recursive": "Filter, retrain the network on the kept samples, and filter again.",
    "el2n": "Drop samples by EL2N, the norm of the error early in training.",
    "forgetting": "Drop samples by how often they were forgotten during training.",
    "aum": "Drop samples by the area under the margin, which is low for wrong labels.",
    "uncertainty": "Drop samples whose predicted probability hardly changed during training.",
    "ccs": "Drop the hardest samples, then thin out common scores: coverage-centric selection.",
    "moderate": "Drop samples that are unusually close to or far from the centre of their class.",
    "prototypes": "Drop samples by their distance from prototypes that are found without labels.",
    "knn": "Drop samples whose nearest neighbours have other labels.",
    "outliers": "Drop samples far from their class, and blank, noise or unreadable images.",
    "near-duplicates": "Drop near-copies within a class.",
    "label-errors": "Drop samples that confident learning considers mislabelled.",
    "list": "Drop the samples of a list, such as one that another tool wrote.",
    "union": "Drop samples that any of several selections drops.",
    "intersection": "Drop samples that all of several selections drop.",
    "vote": "Drop samples that most of several selections drop.",
}
"""First line of each built-in filter's docstring, for `--help` (a test keeps them equal)."""


def load_filter(name: str) -> "type[Filter]":
    """Return the filter class called `name`."""
    from thresher.select.filters.base import Filter

    value = FILTERS.load(name)
    if not inspect.isclass(value) or not issubclass(value, Filter):
        raise InvalidValueError(f'"{name}" is not a subclass of {Filter.__module__}.Filter')
    if not dataclasses.is_dataclass(value) or inspect.isabstract(value):
        raise InvalidValueError(f'filter "{name}" must be a dataclass with a method _fit')
    if not isinstance(getattr(value, "name", None), str):
        raise InvalidValueError(f'filter "{name}" must have a class variable `name`, a text')
    return value


def summary(filter: "type[Filter]") -> str:
    """Return the first line of a filter's docstring."""
    return inspect.cleandoc(filter.__doc__ or "").partition("\n")[0]
