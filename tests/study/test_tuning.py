"""Tuned studies: what their progress counts, and what their report says of the choices."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from thresher import progress
from thresher.paths import RunPaths, write_json
from thresher.study.analysis import analyse
from thresher.study.status import Failures
from thresher.study.study import Study
from thresher.study.tune import choices

SCRIPT = """
import json, sys
rate, width, seed, out = sys.argv[1:]
score = 0.5 + int(rate) / 10
with open(out + "/result.json", "w") as file:
    json.dump({"accuracy": score, "validation_accuracy": score}, file)
"""
TWO: dict[str, Any] = {"grid": {"lr": [1, 2], "width": [1, 2]}}
THREE: dict[str, Any] = {"grid": {"lr": [1, 2, 3], "width": [1, 2]}}


def _study(folder: Path, **changed: Any) -> Study:
    """Return a study whose best rate is the highest."""
    (folder / "script.py").write_text(SCRIPT)
    command = f"{{python}} -I -S '{folder / 'script.py'}' {{lr}} {{width}} {{seed}} {{out}}"
    values = {"seeds": 3, "tune": ["lr"], "tune_seeds": 1, "executor": {"kind": "in-process"}}
    return Study.from_dict({**values, "base": {"command": command}, **changed}, folder / "out")


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> list[progress.Bar]:
    """The progress bars of studies, in the order in which they were shown."""
    shown: list[progress.Bar] = []

    @contextlib.contextmanager
    def bar(label: str, total: float | None = None, unit: str = "") -> Iterator[progress.Bar]:
        shown.append(progress.Bar(label, total, unit, active=False))
        yield shown[-1]

    monkeypatch.setattr(progress, "bar", bar)
    return shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "now", "count"),
    [
        ({**TWO, "tune_seeds": 2}, {**TWO, "tune_seeds": 1}, 10),
        ({**TWO, "tune": [], "tune_seeds": None}, TWO, 12),
        (TWO, {**TWO, "tune_seeds": 2}, 10),
        (TWO, THREE, 14),  # another candidate is chosen, so that the seeds of the first are extra
    ],
)
def test_progress_counts_what_ran_before_the_tuning_was_changed(
    before: dict[str, Any],
    now: dict[str, Any],
    count: int,
    tmp_path: Path,
    bars: list[progress.Bar],
) -> None:
    """It had said "14 of 10 trials are already finished"."""
    _study(tmp_path, **before).run()
    status = _study(tmp_path, **now).run()
    assert status.complete
    assert (bars[-1].done, bars[-1].total, status.count("finished")) == (count, count, count)


@pytest.mark.slow
def test_a_failed_trial_of_a_candidate_that_is_no_longer_chosen_is_not_needed(
    tmp_path: Path,
) -> None:
    study = _study(tmp_path, **TWO)
    assert study.run().complete
    chosen = [t for t in study.plan().trials.values() if t.seed == 2 and t.finished]
    RunPaths(chosen[0].out).result.unlink()
    Failures(study.root).add(chosen[0].name, "broken", "")
    status = study.run()
    assert (status.complete, status.count("failed")) == (False, 1)
    status = _study(tmp_path, **THREE).run()
    assert (status.complete, status.count("failed")) == (True, 0)


def test_a_choice_without_other_axes_and_seeds_without_validation_accuracy(tmp_path: Path) -> None:
    """The last seed ran before the study was tuned: it did not choose, so the report needs no
    validation accuracy of it."""
    values = {"base": {"command": "true {seed} {out} {lr}"}, "grid": {"lr": [1, 2]}, "seeds": 4}
    study = Study.from_dict({**values, "tune": ["lr"], "tune_seeds": 2}, tmp_path)
    for trial in study.plan().trials.values():
        first = trial.seed in (0, 1)
        score = 0.8 if trial.settings["arguments"][-1] == "1" else 0.82 if first else 0.6
        result = {"status": "finished", "accuracy": score}
        validation = {} if trial.seed == 3 else {"validation_accuracy": score}
        write_json(RunPaths(trial.out).result, result | validation)
    (note,) = (note for note in analyse(study).notes if "what tuning chose" in note)
    assert "20.0 points of validation accuracy (lr 2): arms" in note


def test_a_run_that_diverged_counts_as_guessing_as_in_the_report(tmp_path: Path) -> None:
    """It counted as 0 %, below a rate whose runs learned less than nothing."""
    values = {"base": {"command": "true {seed} {out} {lr}"}, "grid": {"lr": [1, 2]}, "seeds": 1}
    study = Study.from_dict({**values, "tune": ["lr"]}, tmp_path)
    plan = study.plan()
    for trial in plan.trials.values():
        learned = trial.settings["arguments"][-1] == "1"
        scores = {"accuracy": 0.2, "validation_accuracy": 0.2} if learned else {}
        status = "finished" if learned else "diverged"
        write_json(RunPaths(trial.out).result, {"status": status, **scores})
        write_json(RunPaths(trial.out).config, {"config": {}, "data": {"classes": 4}})
    (choice,) = choices(study.definition, plan)
    assert choice.chosen == {"lr": 2}
    assert [c.validation_accuracy for c in choice.candidates] == [0.2, 0.25]
