"""`analyse` on studies and on trials of other programs."""

from pathlib import Path
from typing import Any

import pytest

from thresher import Study, analyse, write_report
from thresher.errors import InvalidValueError
from thresher.paths import RunPaths, write_json
from thresher.study.definition import ComparisonConfig
from thresher.study.results import Trial


def trials(values: dict[Any, list[float]], **more: Any) -> list[Trial]:
    return [
        Trial(cell={"arm": arm, **more}, seed=seed, value=value)
        for arm, numbers in values.items()
        for seed, value in enumerate(numbers)
    ]


VALUES = {"a": [90.0, 90.2, 89.9, 90.1], "b": [92.0, 92.3, 91.8, 92.1], "c": [90.0, 90.2, 89.9]}


def test_trials_of_another_program() -> None:
    analysis = analyse(trials(VALUES))
    assert [(c.arm, c.baseline, c.verdict) for c in analysis.verdicts] == [
        ("b", "a", "better"),
        ("c", "a", "equivalent"),
        ("c", "b", "worse"),
    ]
    assert [c.n for c in analysis.verdicts] == [4, 3, 3]
    assert analysis.complete
    assert analysis.to_dict()["cells"][0]["mean"] == pytest.approx(90.05)


def test_what_to_compare() -> None:
    both = [*trials(VALUES, lr=0.1), *trials(VALUES, lr=0.2)]
    analysis = analyse(both, ComparisonConfig(compare="arm", baseline="b", margin=5.0))
    assert [(c.arm, c.baseline) for c in analysis.overall] == [("a", "b"), ("c", "b"), ("c", "a")]
    assert {c.verdict for c in analysis.verdicts} == {"worse", "equivalent"}
    only = analyse(both, ComparisonConfig(pairs=(("c", "a"),)))
    assert {(c.arm, c.baseline) for c in only.verdicts} == {("c", "a")}
    assert [c.cell for c in only.verdicts] == [{}, {"lr": 0.1}, {"lr": 0.2}]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ComparisonConfig(compare="amr"), 'did you mean "arm"'),
        (ComparisonConfig(baseline="d"), '"d" is not a value of arm'),
        (ComparisonConfig(margin=-1.0), "margin must be at least 0"),
    ],
)
def test_a_wrong_comparison(config: ComparisonConfig, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        analyse(trials(VALUES), config)


def test_trials_with_different_axes() -> None:
    with pytest.raises(InvalidValueError, match="must have the same axes"):
        analyse([*trials(VALUES), *trials(VALUES, lr=0.1)])


def test_a_report_of_trials_needs_a_folder(tmp_path: Path) -> None:
    analysis = analyse(trials(VALUES))
    with pytest.raises(InvalidValueError, match="out is required"):
        write_report(analysis)
    assert "b is better than a" in write_report(analysis, tmp_path).read_text()


def _finish(study: Study, **result: Any) -> None:
    for trial in study.plan().trials.values():
        value = {"status": "finished", "accuracy": 0.9, "seconds": 1.0, **result}
        write_json(RunPaths(trial.out).result, value)


def test_an_axis_is_not_mixed_up_with_a_result_of_the_same_name(
    digits: Path, tmp_path: Path
) -> None:
    """Runs that stop early have trained other numbers of epochs than the axis says."""
    grid = {"epochs": [2.0, 4.0]}
    study = Study.from_dict({"seeds": 2, "base": {"data": "digits"}, "grid": grid}, tmp_path)
    _finish(study, epochs=1.5, noise_scale=7.0)
    analysis = analyse(study)
    assert [(c.cell, c.n) for c in analysis.cells] == [({"epochs": 2.0}, 2), ({"epochs": 4.0}, 2)]
    assert {trial.epochs for trial in analysis.trials} == {1.5}
    (comparison,) = analysis.verdicts
    assert (comparison.n, comparison.difference) == (2, 0.0)


def test_an_axis_of_lists(digits: Path, tmp_path: Path) -> None:
    grid = {"step_epochs": [[1.0, 2.0], [2.0, 3.0]], "lr": [0.1, 0.2]}
    base = {"data": "digits", "validation": 0.1}
    content = {"seeds": 2, "base": base, "grid": grid, "tune": ["lr"]}
    study = Study.from_dict({**content, "baseline": [2.0, 3.0]}, tmp_path)
    _finish(study, validation_accuracy=0.5)
    analysis = analyse(study)
    assert [cell.n for cell in analysis.cells] == [2, 2]
    assert [c.baseline for c in analysis.verdicts] == [(2.0, 3.0)]
    assert write_report(analysis).exists()
