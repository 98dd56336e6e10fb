"""Errors in a study file name the key, the value and the nearest valid name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from thresher import Study
from thresher.errors import ThresherError
from thresher.study import reading
from thresher.study.toml import dumps

GOOD: dict[str, Any] = {
    "title": "t",
    "seeds": 2,
    "base": {"data": "digits", "epochs": 1, "validation": 0.1},
    "grid": {"batch_size": [32, 64], "lr": [0.1, 0.2], "selection": ["full", "random"]},
    "steps": {"random": {"do": "select", "filter": "random", "each": ["seed"]}},
    "tune": ["lr"],
}


def changed(**tables: Any) -> dict[str, Any]:
    """Return GOOD with tables merged in; a table given as None is removed."""
    content: dict[str, Any] = {k: dict(v) if isinstance(v, dict) else v for k, v in GOOD.items()}
    for key, value in tables.items():
        if isinstance(value, dict):
            content.setdefault(key, {}).update(value)
        else:
            content[key] = value
    return {key: value for key, value in content.items() if value is not None}


def test_a_good_file() -> None:
    study = reading.from_dict(GOOD)
    assert study.seeds == (0, 1)
    assert study.axes == ["batch_size", "lr", "selection"]
    assert study.compared == "selection"
    assert study.compared_pairs == [("random", "full")]


def test_numbers_of_numpy_are_written_as_numbers(tmp_path: Path) -> None:
    grid = {"batch_size": list(np.array([32, 64])), "lr": list(np.array([0.1, 0.2]))}
    study = Study.from_dict(changed(grid=grid, seeds=np.int64(3)), tmp_path)
    (tmp_path / "study.toml").write_text(study.definition.text)
    again = Study.open(tmp_path)
    assert again.plan().trials.keys() == study.plan().trials.keys()
    assert {type(v) for v in study.definition.grid["batch_size"]} == {int}


@pytest.mark.parametrize(
    "more",
    [
        {"base": {"target_accuracy": None}},
        {"arms": {"plain": {}, "decay": {"bias_lr": 2.0, "cutout": None}}},
        {"arms": {"plain": {}, "with DEL \x7f": {"bias_lr": 2.0}}},
    ],
)
def test_a_study_of_python_is_the_one_in_its_folder(more: dict[str, Any], tmp_path: Path) -> None:
    """Otherwise the folder has no finished trials when it is opened again."""
    study = Study.from_dict(changed(**more), tmp_path)
    (tmp_path / "study.toml").write_text(study.definition.text)
    assert Study.open(tmp_path).plan() == study.plan()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"arms": {"a": {}, "b": {"epochs": None}}}, r'"epochs" is None in \[arms.b\]'),
        ({"steps": {"r": {"do": "train", "epochs": None}}}, r'"epochs" is None in \[steps.r\]'),
        ({"grid": {"cutout": [None, 4]}}, '"cutout" contains None'),
        ({"exclude": [{"lr": [None]}]}, '"lr" contains None'),
    ],
)
def test_none_that_a_file_cannot_hold_is_refused(
    more: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ThresherError, match=message):
        Study.from_dict(changed(**more), tmp_path)


def test_full_random_network_are_compared_each_with_each() -> None:
    steps = {"network": {"do": "select", "filter": "network"}}
    study = reading.from_dict(
        changed(grid={"selection": ["full", "random", "network"]}, steps=steps)
    )
    assert study.compared_pairs == [
        ("random", "full"),
        ("network", "full"),
        ("network", "random"),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            changed(base={"bach_size": 3}),
            r'unknown option "bach_size" in \[base\].*did you mean "batch_size"',
        ),
        (changed(grid={"weight_decy": [1]}), 'did you mean "weight_decay"'),
        (changed(sedes=3), 'unknown option "sedes" in the study; did you mean "seeds"'),
        (changed(arms={"a": {"lr_rul": "linear"}}), 'did you mean "lr_rule"'),
        (changed(tune=["lrr"]), 'tune .* "lrr".*did you mean "lr"'),
        (changed(base={"validation": 0.1}, compare="selction"), 'did you mean "selection"'),
        (changed(base={"seed": 3}), "the study sets it; write seeds = 3"),
        (changed(base={"epochs": "many"}), r"epochs must be a number, got 'many' \(in \[base\]"),
        (changed(grid={"batch_size": [32, "x"]}), "batch_size must be an integer, got 'x'"),
        (changed(grid={"batch_size": 32}), r"write batch_size = \[ … \]"),
        (changed(grid={"batch_size": [32, 32]}), "contains 32 twice"),
        (changed(base={"flip": 1}), "flip must be true or false, got 1"),
        (changed(base={"optimizer": "sdg"}), 'optimizer cannot be "sdg".*did you mean "sgd"'),
        (changed(seeds=[1, 1]), "list of different integers"),
        (changed(seeds=0), r"seeds must be an integer in \[1, 10000\] .*, got 0"),
        (changed(seeds=True), "seeds must be .*, got True"),
        (changed(metric="acuracy"), 'did you mean "accuracy"'),
        (changed(baseline="fulll"), 'did you mean "full"'),
        (changed(pairs=[["full", "full"]]), "pairs compares full with itself"),
        *(
            (
                changed(pairs=[["random", "full"], pair]),
                f"pairs compares {pair[0]} with {pair[1]} twice",
            )
            for pair in (["random", "full"], ["full", "random"])
        ),
        (changed(steps={"x": {"do": "trian"}}), 'did you mean "train"'),
        (changed(steps={"x": {"do": "train", "modl": "tiny"}}), 'did you mean "model"'),
        (changed(steps={"full": {"do": "select"}}), 'cannot be called "full"'),
        (changed(steps={"random": {"do": "select", "each": ["sed"]}}), 'did you mean "seed"'),
        *(
            (changed(steps={"x": {"do": "train", "each": ["seed"], "draws": n}}), "at least 1")
            for n in (0, -1, 1.5, True, "2")
        ),
        (changed(steps={"x": {"do": "train", "draws": 2}}), "no effect without seed in each"),
        (changed(arms={"a": {"lr": 1.0}}), r'both \[grid\] and \[arms\].* "lr"'),
        (changed(compare="lr"), "cannot be both tuned and compared"),
    ],
)
def test_refusals(content: dict[str, Any], message: str) -> None:
    with pytest.raises(ThresherError, match=message):
        reading.from_dict(content)


@pytest.mark.parametrize("validation", [{}, {"validation": 0}, {"validation": 0.0}])
def test_the_test_set_never_tunes(validation: dict[str, float]) -> None:
    base = {"data": "digits", "epochs": 1, **validation}
    content = {**GOOD, "base": base}
    with pytest.raises(ThresherError, match="the test set must not choose"):
        reading.from_dict(content)
    reading.from_dict({**content, "grid": {**GOOD["grid"], "validation": [0.1, 0.2]}})


def test_text_that_is_not_toml() -> None:
    with pytest.raises(ThresherError, match="is not valid TOML"):
        reading.parse("seeds = = 3")


def test_what_is_written_is_read_again() -> None:
    content = changed(arms={"weak + linear": {"scaling": "weak"}}, title='a "quoted" – title')
    assert reading.parse(dumps(content)).arms == {"weak + linear": {"scaling": "weak"}}
    assert reading.parse(dumps(content)).title == 'a "quoted" – title'
    again = reading.parse(dumps(GOOD))
    assert (again.base, again.grid, again.steps) == (
        GOOD["base"],
        GOOD["grid"],
        reading.from_dict(GOOD).steps,
    )
