"""The batch size that a report prefers."""

import math
from pathlib import Path

import finished_study
import pytest

from thresher.paths import RunPaths, write_json
from thresher.report.figures import draw_all
from thresher.study.analysis import analyse
from thresher.study.definition import ComparisonConfig
from thresher.study.results import Trial
from thresher.study.study import Study
from thresher.study.summaries import preferred_batches


def test_the_preferred_batch_is_that_of_the_metric() -> None:
    trials = [
        Trial(cell={"batch_size": b}, seed=s, value=10.0 * b, validation_accuracy=90 - b / 64)
        for b in (32, 64, 128)
        for s in range(2)
    ]
    found = analyse(trials, ComparisonConfig(metric="images_per_s", compare="batch_size"))
    (best,) = preferred_batches(found.cells, found.margin, metric="images_per_s")
    assert (best.batch_size, best.as_good) == (128, [128])
    (best,) = preferred_batches(found.cells, 0.3)  # as a study of the accuracy
    assert (best.batch_size, best.chosen_by) == (32, "validation accuracy")


def test_the_best_batch_for_a_target_is_not_that_of_one_lucky_run() -> None:
    times: dict[int, list[float | None]] = {
        64: [20, 21, 22],
        128: [15, 16, 17],
        1024: [5, None, None],
    }
    trials = [
        Trial(cell={"batch_size": batch}, seed=seed, value=value, seconds=50.0)
        for batch, values in times.items()
        for seed, value in enumerate(values)
    ]
    found = analyse(trials, ComparisonConfig(metric="time_to_target"))
    (best,) = preferred_batches(found.cells, 0.5, False, "time_to_target")
    assert (best.batch_size, best.as_good) == (128, [128])


@pytest.mark.slow
def test_the_preferred_batch_per_rate(digits: Path, tmp_path: Path) -> None:
    grid = {"batch_size": [32, 128, 512], "lr": [0.01, 0.1, 1.0]}
    study = Study.from_dict(finished_study.definition(grid=grid, steps={}, compare="lr"), tmp_path)
    best = {0.01: 32, 0.1: 128, 1.0: 512}
    for trial in study.plan().trials.values():
        away = abs(math.log2(trial.settings["batch_size"] / best[trial.settings["lr"]]))
        write_json(RunPaths(trial.out).result, finished_study.result(0.9 - 0.02 * away))
    found = analyse(study)
    batches = preferred_batches(found.cells, found.margin)
    assert {batch.cell["lr"]: batch.batch_size for batch in batches} == best
    assert "preferred-batch" in {drawing.name for drawing in draw_all(found)}


def test_the_best_batch_is_not_that_of_the_runs_that_did_not_diverge(
    digits: Path, tmp_path: Path
) -> None:
    """Runs that diverged count as guessing on validation images, too, as on test images."""
    base = {"data": "digits", "model": "tiny", "validation": 100}
    content = {"seeds": 3, "base": base, "grid": {"batch_size": [32, 512], "lr": [0.1, 0.2]}}
    study = Study.from_dict({**content, "compare": "lr"}, tmp_path)
    for trial in study.plan().trials.values():
        large = trial.settings["batch_size"] == 512
        share = 0.95 if large else 0.9
        result = finished_study.result(share, validation_accuracy=share)
        if large and trial.seed:
            lost = {"accuracy": None, "validation_accuracy": None, "loss": None}
            result |= {"status": "diverged", **lost}
        write_json(RunPaths(trial.out).result, result)
    found = analyse(study)
    batches = preferred_batches(found.cells, found.margin)
    assert {batch.batch_size for batch in batches} == {32}
    assert {batch.chosen_by for batch in batches} == {"validation accuracy"}
    cell = next(c for c in found.cells if c.cell["batch_size"] == 512)
    assert cell.validation_accuracy == cell.mean == pytest.approx((95 + 10 + 10) / 3)
