"""`analyse` on studies and on trials of other programs."""

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quick_tiny import _quick_tiny  # noqa: F401
from thresher import Study, analyse, write_report
from thresher.errors import InvalidValueError
from thresher.paths import RunPaths, write_json
from thresher.report.tables import verdict_table
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


@pytest.mark.parametrize(
    ("value", "message"),
    [(90.0, "two trials are the same run.*seed 0"), (float("nan"), "a finite number, got nan")],
)
def test_trials_that_cannot_be_compared(value: float, message: str) -> None:
    bad = Trial(cell={"arm": "a"}, seed=0 if value == 90.0 else 9, value=value)
    with pytest.raises(InvalidValueError, match=message):
        analyse([*trials(VALUES), bad])


@pytest.mark.parametrize("kind", [np.float32, np.array, torch.tensor], ids=lambda k: k.__name__)
def test_values_may_be_arrays_and_tensors_of_one_number(kind: Any) -> None:
    made = [replace(trial, value=kind(trial.value)) for trial in trials(VALUES)]
    expected = [c.difference for c in analyse(trials(VALUES)).verdicts]
    assert [c.difference for c in analyse(made).verdicts] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("trial", "message"),
    [
        ({"value": "91.2"}, "must be a number, got '91.2'.*seed 9"),
        ({"value": np.ones(2)}, "must be a number, got array"),
        ({"value": 10**400}, "must be a number, got 1000.*seed 9"),
        ({"cell": {"arm": math.nan}}, "arm must be text or a number, got nan .*each axis"),
        ({"cell": {"arm": np.datetime64("NaT")}}, r"arm must be text or a number, got .*NaT"),
        ({"cell": {"arm": ["a"]}}, r"arm must be text or a number, got \['a'\]"),
        ({"seed": math.nan}, "the seed of a trial must be an integer .*seed nan"),
        ({"seed": 0.5}, "the seed of a trial must be an integer"),
        ({"seed": "first"}, "the seed of a trial must be an integer"),
        ({"accuracy": 0.9}, "must be a list of `Trial`, got {"),
    ],
)
def test_what_is_no_trial_is_refused(trial: Any, message: str) -> None:
    if "accuracy" not in trial:
        trial = Trial(**{"cell": {"arm": "a"}, "seed": 9, "value": 90.0, **trial})
    with pytest.raises(InvalidValueError, match=message):
        analyse([*trials(VALUES), trial])


def test_seeds_are_integers_however_they_are_written() -> None:
    """pandas turns a column of seeds into numbers with a point where one is missing."""
    kinds: Iterator[Any] = itertools.cycle([int, float, str, np.int64])
    made = [replace(trial, seed=next(kinds)(trial.seed)) for trial in trials(VALUES)]
    assert [c.n for c in analyse(made).verdicts] == [4, 3, 3]


def test_runs_without_a_partner_are_mentioned() -> None:
    made = trials({"a": VALUES["a"], "b": VALUES["b"]})
    assert not analyse(made).notes
    moved = [replace(t, seed=t.seed + 2) if t.cell["arm"] == "b" else t for t in made]
    (note,) = analyse(moved).notes
    assert note.startswith("4 runs have no partner with the same seed and other axes")
    others = [Trial(cell={"arm": "a", "lr": 0.1}, seed=s, value=90.0 + s) for s in range(3)]
    both = [replace(t, cell={**t.cell, "lr": 0.2}) for t in made]
    assert "3 runs have no partner" in " ".join(analyse([*both, *others]).notes)


def test_the_name_of_a_metric_says_which_is_better() -> None:
    for name in ("loss", "val/loss", "valLoss", "MSELoss", "test_error", "logloss", "RMSE"):
        assert not analyse(trials(VALUES), ComparisonConfig(metric=name)).higher_is_better, name
    for name in ("f1", "mAP", "closeness", "F1score"):
        assert analyse(trials(VALUES), ComparisonConfig(metric=name)).higher_is_better, name


def test_small_numbers_are_shown_with_their_digits() -> None:
    small = trials({arm: [value * 1e-10 for value in values] for arm, values in VALUES.items()})
    analysis = analyse(small, ComparisonConfig(metric="mse"))
    assert "mean difference +0.00000000020 mse" in analysis.verdicts[0].sentence
    assert "+0.00000000020" in verdict_table(analysis)
    assert analysis.cells[0].digits == 12


def test_accuracies_must_be_in_points() -> None:
    """Shares differ by less than the margin of 0.3 points, whatever they are."""
    shares = trials({arm: [value / 100 for value in values] for arm, values in VALUES.items()})
    with pytest.raises(InvalidValueError, match=r"accuracy must be in points.*100 times"):
        analyse(shares)
    for config in (ComparisonConfig(metric="f1"), ComparisonConfig(margin=0.003)):
        assert analyse(shares, config).verdicts[0].verdict == "better"
    for wrong in (-0.5, 101):
        with pytest.raises(InvalidValueError, match=rf"in \[0, 100\], got {wrong:g}"):
            analyse([*shares, Trial(cell={"arm": "a"}, seed=9, value=wrong)])


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


@pytest.mark.parametrize("axis", ["n", "seed", "value"])
def test_an_axis_that_would_replace_a_column_of_results(axis: str) -> None:
    trials = [Trial(cell={axis: a}, seed=s, value=90 + a + s) for a in (1, 2) for s in range(3)]
    with pytest.raises(InvalidValueError, match=f'an axis cannot be called "{axis}"'):
        analyse(trials)
    usual = [replace(trial, cell={"device": trial.cell[axis]}) for trial in trials]
    assert analyse(usual).compared == "device"  # an option of training may be an axis


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
    paired = Study.from_dict({**content, "pairs": [[[1.0, 2.0], [2.0, 3.0]]]}, tmp_path)
    assert paired.definition.compared_pairs == study.definition.compared_pairs


GRID = [
    trial
    for batch, effect in ((256, 0.0), (6272, 0.8))
    for trial in trials(
        {
            "full": [90.0, 90.2, 89.9, 90.1],
            "random": [89.9, 90.1, 90.1, 90.0],
            "network": [90.1 + effect, 90.1 + effect, 89.8 + effect, 90.2 + effect],
        },
        batch_size=batch,
    )
]
PRIMARY = "network - full @ batch_size=6272"


def test_primary_comparisons_are_corrected_among_themselves() -> None:
    config = ComparisonConfig(primary=(PRIMARY,), claimed=2.3, margin=0.1)
    analysis = analyse(GRID, config)
    (primary,) = (c for c in analysis.verdicts if c.primary)
    assert (primary.arm, primary.baseline, primary.cell) == (
        "network",
        "full",
        {"batch_size": 6272},
    )
    assert (primary.comparisons, primary.p_holm) == (1, primary.p)
    assert (primary.verdict, primary.claimed_excluded) == ("better", True)
    assert "The runs exclude the claimed effect of +2.3 points" in primary.sentence
    others = [c for c in analysis.verdicts if not c.primary]
    assert {(c.primary, c.comparisons, c.claimed_excluded) for c in others} == {(False, 9, None)}
    assert analysis.headlines[0] is primary
    before = analyse(GRID, ComparisonConfig(margin=0.1))
    assert {c.primary for c in before.verdicts} == {None}
    assert [c.p for c in before.verdicts] == [c.p for c in analysis.verdicts]


def test_the_words_that_are_true_without_a_difference() -> None:
    config = ComparisonConfig(margin=0.01, primary=("random - full",), claimed=2.3)
    by_pair = {(c.arm, c.baseline): c for c in analyse(GRID, config).overall}
    assert by_pair["random", "full"].verdict == "excludes the claimed effect"
    few = [t for t in GRID if t.seed < 2 and t.cell["batch_size"] == 256]
    assert {c.verdict for c in analyse(few).verdicts} == {"not enough runs"}
    text = analyse(few).verdicts[0].sentence
    assert re.search(
        r"takes about [\d,]+ seeds \([\d,]+ to [\d,]+\); showing that equal arms", text
    )
    levels = trials({"a": [90.0, 90.4, 89.7, 90.1], "b": [90.5, 90.2, 90.3, 90.0]})
    (verdict,) = analyse(levels, ComparisonConfig(margin=0.5)).verdicts
    assert verdict.verdict == "no worse"
    assert "b is no worse than a by 0.5 points or more" in verdict.sentence


def test_the_json_of_a_verdict() -> None:
    keys = "word mean low high p p_adjusted df seeds primary claimed_excluded verdict p_holm n"
    for verdict in analyse(GRID).to_dict()["verdicts"]:
        assert set(keys.split()) <= set(verdict)
        assert verdict["word"] == verdict["verdict"]
        low, high = verdict["adjusted_low"], verdict["adjusted_high"]
        assert low <= verdict["low"] < verdict["high"] <= high
        assert (low <= 0 <= high) == (verdict["p_adjusted"] >= verdict["level"])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"primary": ["network - ful"]},
            r'must name comparisons as "ARM - BASELINE" with values of',
        ),
        ({"primary": ["full - network"]}, 'does not compare.*write "network - full"'),
        ({"primary": [PRIMARY.replace("6272", "6273")]}, "6273 is not a value of batch_size"),
        ({"primary": [PRIMARY.replace("batch", "bach")]}, '"bach_size" is not an axis beside arm'),
        ({"primary": [PRIMARY, PRIMARY]}, "twice"),
        ({"claimed": 2.3}, "claimed needs primary comparisons"),
        ({"primary": [PRIMARY], "claimed": "2.3 %"}, "claimed must be a number"),
        ({"primary": [PRIMARY], "claimed": 0}, "claimed must be an effect other than 0"),
        ({"claimed": {"network": 2.3}}, "claimed must name comparisons"),
    ],
)
def test_wrong_primary_comparisons_are_refused_before_the_first_trial(
    more: dict[str, Any], message: str, tmp_path: Path
) -> None:
    content = {
        "seeds": 2,
        "base": {"data": "digits"},
        "grid": {"batch_size": [256, 6272]},
        "arms": {"full": {"lr": 0.1}, "random": {"lr": 0.2}, "network": {"lr": 0.3}},
    }
    with pytest.raises(InvalidValueError) as caught:
        Study.from_dict({**content, **more}, tmp_path)
    assert re.search(message, f"{caught.value.what} {caught.value.fix}")
    config: Any = {key: tuple(v) if isinstance(v, list) else v for key, v in more.items()}
    with pytest.raises(InvalidValueError):
        analyse(GRID, ComparisonConfig(**config))


def test_an_arm_without_runs_is_said_once() -> None:
    waiting = [
        Trial(cell={"arm": "d", "batch_size": 256}, seed=seed, state="waiting") for seed in range(2)
    ]
    analysis = analyse([*GRID, *waiting])
    assert analysis.notes == ["arm d has no run with a result, so nothing is known about it."]


def test_a_number_of_draws_decides_the_degrees_of_freedom(digits: Path, tmp_path: Path) -> None:
    own = {"each": ["seed"], "draws": 3}
    steps = {
        "extractor": {"do": "train", "epochs": 1, **own},
        "features": {"do": "embed", "run": "extractor", **own},
        "network": {
            "do": "select",
            "filter": "network",
            "features": "features",
            "drop": 0.1,
            **own,
        },
    }
    base = {"data": "digits", "model": "tiny"}
    content = {"seeds": 12, "base": base, "grid": {"selection": ["full", "network"]}}
    study = Study.from_dict({**content, "steps": steps}, tmp_path)
    rng = np.random.default_rng(0)
    for trial in study.plan().trials.values():
        accuracy = 0.9 + 0.002 * rng.standard_normal()
        write_json(RunPaths(trial.out).result, {"status": "finished", "accuracy": accuracy})
    analysis = analyse(study)
    (comparison,) = analysis.verdicts
    assert (comparison.n, comparison.df) == (3, 2)
    assert "Seeds that share a draw" in comparison.sentence
    assert analysis.notes == []


def test_draws_that_all_seeds_share_are_noted(digits: Path, tmp_path: Path) -> None:
    steps = {
        "extractor": {"do": "train", "epochs": 1},
        "features": {"do": "embed", "run": "extractor"},
        "network": {"do": "select", "filter": "network", "features": "features", "drop": 0.1},
        "random": {"do": "select", "filter": "random", "like": "network", "each": ["seed"]},
    }
    base = {"data": "digits", "model": "tiny"}
    content = {"seeds": 3, "base": base, "grid": {"selection": ["full", "random", "network"]}}
    study = Study.from_dict({**content, "steps": steps}, tmp_path)
    for number, trial in enumerate(study.plan().trials.values()):
        write_json(
            RunPaths(trial.out).result, {"status": "finished", "accuracy": 0.9 + number / 1e3}
        )
    (note,) = analyse(study).notes
    assert 'network: all 3 seeds share one outcome of "extractor" and "network"' in note


def test_runs_that_stopped_at_a_target_are_noted() -> None:
    """Their accuracies are those at which they stopped, which says little about the arms."""
    trials = [
        Trial(
            cell={"lr": lr},
            seed=seed,
            value=90 + lr + seed / 7,
            status="target" if seed else "finished",
        )
        for lr in (0.1, 0.2)
        for seed in range(3)
    ]
    (note,) = analyse(trials).notes
    assert note.startswith("4 of 6 runs stopped at the target, so the accuracy is that of unequal")
    assert '"steps_to_target"' in note
    for metric in ("time_to_target", "steps_to_target", "images_per_s", "seconds"):
        assert analyse(trials, ComparisonConfig(metric=metric)).notes == []
