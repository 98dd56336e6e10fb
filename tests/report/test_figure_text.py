"""Names that users give to arms and axes, in the figures of a report."""

import warnings

import pytest

from thresher.report.figures import draw_all
from thresher.study.analysis import Analysis, analyse
from thresher.study.definition import ComparisonConfig
from thresher.study.results import Trial


def analysed(arms: list[str], places: list[str]) -> Analysis:
    trials = [
        Trial(cell={"arm": arm, "place": place, "batch_size": batch}, seed=seed, value=90.0 + seed)
        for arm in arms
        for place in places
        for batch in (32, 64)
        for seed in range(3)
    ]
    return analyse(trials, ComparisonConfig(compare="arm"))


def test_names_are_drawn_as_they_are() -> None:
    """Not as formulas, and not left out of the legend."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawings = {one.name: one.svg for one in draw_all(analysed(["$a$", r"$\x", "_b"], ["x"]))}
    legend = drawings["accuracy-batch-size-place-x"]
    for name in ("$a$", r"$\x", "_b"):
        assert f"{name}</text>" in legend
    assert "$a$" in drawings["differences"]


@pytest.mark.slow
def test_each_figure_has_a_file_of_its_own() -> None:
    drawings = draw_all(analysed(["a", "b"], ["да", "нет", "a b", "a+b"]))
    assert len({one.name for one in drawings}) == len(drawings) == 5
