"""Studies that leave out combinations of their axes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from thresher import Study, analyse, write_report
from thresher.errors import InvalidValueError
from thresher.study.definition import ComparisonConfig
from thresher.study.results import Trial

ARMS: dict[str, Any] = {"a": {}, "b": {"flip": False}, "c": {"label_smoothing": 0.1}}
CONTENT: dict[str, Any] = {
    "base": {"data": "digits", "epochs": 1},
    "grid": {"batch_size": [32, 64, 128], "lr": [0.05, 0.1]},
    "arms": ARMS,
    "pairs": [["b", "a"], ["c", "a"]],
    "seeds": 4,
}
LARGE_ONLY = [{"arm": "c", "batch_size": [32, 64]}]


def _study(root: Path, **changed: Any) -> Study:
    return Study.from_dict({**CONTENT, **changed}, root)


def test_what_is_excluded_is_not_run(tmp_path: Path) -> None:
    exclude = [*LARGE_ONLY, {"lr": 0.1, "batch_size": 32}]
    cells = {
        tuple(t.cell.values())
        for t in _study(tmp_path, exclude=exclude).plan().trials.values()
        if t.cell
    }
    assert cells == {
        *((batch, lr, arm) for batch in (64, 128) for lr in (0.05, 0.1) for arm in "ab"),
        *((32, 0.05, arm) for arm in "ab"),
        *((128, lr, "c") for lr in (0.05, 0.1)),
    }


def test_the_written_study_file_leaves_out_the_same(tmp_path: Path) -> None:
    study = _study(tmp_path, exclude=LARGE_ONLY)
    (tmp_path / "study.toml").write_text(study.definition.text)
    again = Study.open(tmp_path)
    assert again.definition.exclude == study.definition.exclude
    assert again.plan().trials.keys() == study.plan().trials.keys()


def test_a_tuned_axis_keeps_the_candidates_that_are_left(tmp_path: Path) -> None:
    study = _study(
        tmp_path,
        base={**CONTENT["base"], "validation": 0.1},
        tune=["lr"],
        exclude=[{"lr": 0.1, "batch_size": 32}],
        primary=["b - a @ batch_size=32"],
    )
    assert len(study.plan().trials) == (3 * 2 - 1) * 3 * 4
    analysis = analyse(study)  # nothing has run
    (primary,) = (c for c in analysis.verdicts if c.primary)
    assert (primary.cell, primary.n, primary.verdict) == ({"batch_size": 32}, 0, "not enough runs")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"exclude": {"arm": "c"}}, "exclude must be a list of tables"),
        ({"exclude": ["c"]}, "an entry of exclude in the study must be a table"),
        ({"exclude": [{"am": "c"}]}, 'exclude names "am", which is not an axis.*"arm"'),
        (
            {"exclude": [{"batch_size": 63}]},
            'exclude names "63", which is not a value of batch_size',
        ),
        ({"exclude": [{}]}, "exclude leaves nothing to run"),
        (
            {"exclude": LARGE_ONLY, "primary": ["c - a @ batch_size=64, lr=0.1"]},
            "there are no runs of c there",
        ),
    ],
)
def test_a_wrong_exclusion_is_one_sentence(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidValueError, match=message):
        _study(tmp_path, **changed)


def test_arms_are_compared_where_both_have_runs(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    trials = [
        Trial(cell={"batch_size": n, "arm": arm}, seed=seed, value=effect + random.normal(0, 0.1))
        for n in (32, 64, 128)
        for arm, effect in (("a", 90), ("b", 91 if n == 128 else 90), ("c", 92))
        for seed in range(4)
        if arm != "c" or n > 32
    ]
    pairs = (("b", "a"), ("c", "a"))
    analysis = analyse(
        trials, ComparisonConfig(pairs=pairs, primary=("c - a", "c - a @ batch_size=64"))
    )
    places = [(c.arm, c.cell.get("batch_size")) for c in analysis.verdicts]
    assert places == [
        ("b", None),
        ("c", None),
        *(("b", n) for n in (32, 64, 128)),
        ("c", 64),
        ("c", 128),
    ]
    overall = next(c for c in analysis.verdicts if c.arm == "c" and not c.cell)
    cells = [c.difference for c in analysis.verdicts if c.arm == "c" and c.cell]
    assert overall.difference == pytest.approx(np.mean(cells))
    assert (overall.n, overall.verdict, overall.primary) == (4, "better", True)
    assert write_report(analysis, tmp_path).exists()


def test_a_pair_that_is_run_in_one_cell_can_be_primary_without_naming_it() -> None:
    trials = [
        Trial(cell={"batch_size": n, "arm": arm}, seed=seed, value=90.0 + seed)
        for n in (32, 64)
        for arm in ("a", "b", "c")
        for seed in range(3)
        if arm != "c" or n == 32
    ]
    analysis = analyse(trials, ComparisonConfig(primary=("b - a", "c - a"), claimed={"c - a": 2.0}))
    found = [(c.arm, c.cell, c.claimed) for c in analysis.verdicts if c.primary]
    assert found == [("b", {}, None), ("c", {"batch_size": 32}, 2.0)]
