"""Every built-in filter: described once, documented, and a scikit-learn estimator."""

import subprocess
import sys
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from thresher.cli.select import config_class
from thresher.errors import InvalidValueError
from thresher.options import describe
from thresher.select.filters.base import Filter
from thresher.select.filters.network import NetworkFilter
from thresher.select.filters.random import RandomFilter
from thresher.select.filters.registry import FILTERS, SUMMARIES, load_filter, summary
from thresher.select.inputs import FilterInputs

NAMES = list(FILTERS.built_in)


def test_every_filter_has_a_summary() -> None:
    assert {name: summary(load_filter(name)) for name in NAMES} == SUMMARIES


@pytest.mark.parametrize("name", NAMES)
def test_filters_are_named_and_documented(name: str) -> None:
    filter = load_filter(name)
    assert filter.name == name
    assert [info.name for info in describe(filter) if not info.help] == []
    config = config_class(name)
    assert [info.name for info in describe(config) if not info.help] == []
    # Everything that the filter takes has a flag; nothing else but inputs and outputs has.
    flags = {info.name for info in describe(config)}
    own = {info.name for info in describe(filter)}
    assert own <= flags
    inputs = {"data", "out", "export", "positions"}
    inputs |= {"run", "features", "also", "selections", "like"}
    assert flags - own <= inputs


@pytest.mark.parametrize("name", NAMES)
def test_filters_can_be_cloned(name: str) -> None:
    from sklearn.base import clone

    filter = load_filter(name)()
    if "seed" in filter.get_params():
        filter.set_params(seed=7)
    again = clone(filter)
    assert again is not filter
    assert again == filter
    assert again.get_params() == filter.get_params()


def test_constructors_only_store_and_fit_validates() -> None:
    wrong = RandomFilter(drop=3)
    with pytest.raises(InvalidValueError, match=r"drop must be in \[0, 1\), got 3") as caught:
        wrong.fit(None, [0, 1])
    assert isinstance(caught.value, ValueError)
    with pytest.raises(InvalidValueError, match='has no option "dorp"; did you mean "drop"'):
        wrong.set_params(dorp=0.1)
    assert wrong.set_params(drop=0.5).fit(None, [0, 1]).keep_.sum() == 1


@dataclass
class Unfinished(Filter):
    """A filter whose `_fit` sets what it is given."""

    name: ClassVar[str] = "unfinished"
    score: Any = None
    keep: Any = None

    def _fit(self, inputs: FilterInputs) -> None:
        if self.score is not None:
            self.score_ = self.score
        if self.keep is not None:
            self.keep_ = self.keep


@pytest.mark.parametrize(
    ("score", "keep", "message"),
    [
        (None, None, r"Unfinished\._fit has not set score_; set score_ .* for each sample$"),
        ([0.1, 0.2], None, r"Unfinished\._fit has not set keep_; set score_ .* for each sample$"),
        ([0.1, 0.2], True, r"keep_ must have one value for each of 2 samples, got the shape \(\)$"),
        ([[0.1], [0.2]], [True, False], r"score_ must have .* got the shape \(2, 1\)$"),
    ],
)
def test_a_filter_that_does_not_set_its_result_is_told_what_to_set(
    score: Any, keep: Any, message: str
) -> None:
    with pytest.raises(InvalidValueError, match=message):
        Unfinished(score, keep).fit(None, [0, 1])


@dataclass
class Nameless(Filter):
    """A filter without a name."""

    def _fit(self, inputs: FilterInputs) -> None: ...


def test_a_filter_without_a_name_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="must have a class variable `name`"):
        load_filter(f"{__name__}:Nameless")


def test_ids_are_optional() -> None:
    x = np.random.default_rng(0).normal(size=(60, 4))
    labels = np.arange(60) % 2
    fitted = NetworkFilter(drop=0.1, reduce="pca").fit(x, labels)
    named = NetworkFilter(drop=0.1, reduce="pca").fit(x, labels, ids=[f"s{n}" for n in range(60)])
    np.testing.assert_array_equal(fitted.keep_, named.keep_)
    assert fitted.eps_ == named.eps_ == fitted.report_["eps"]


def test_options_of_filters_load_without_torch() -> None:
    code = (
        "import sys; from thresher.cli.select import config_class;"
        f"[config_class(name) for name in {NAMES}];"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
