"""The report of a study with known numbers: verdicts, files, a self-contained page."""

import io
import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import finished_study
import numpy as np
import pyarrow.parquet as pq
import pytest
from matplotlib.figure import Figure
from rich.console import Console
from scipy import stats

from thresher.cli.study import _summary
from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.report.drawing import INK, inline
from thresher.report.figures import _lines, draw_all
from thresher.report.page import render, write_report
from thresher.report.tables import cell_table, number, trial_table
from thresher.report.work import class_counts, class_table, work_table
from thresher.study.analysis import Analysis, analyse
from thresher.study.definition import ComparisonConfig
from thresher.study.results import Trial
from thresher.study.study import Study

pytestmark = pytest.mark.xdist_group("report")  # one worker draws the page


@pytest.fixture(scope="module")
def analysis(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    study = Study.from_dict(finished_study.definition(), tmp_path_factory.mktemp("study"))
    return analyse(finished_study.write(study))


@pytest.fixture(scope="module")
def page(analysis: Analysis) -> Path:
    return write_report(analysis)


def test_the_verdicts_are_those_that_the_numbers_hold(analysis: Analysis) -> None:
    overall = {(c.arm, c.baseline): c for c in analysis.verdicts if not c.cell}
    assert overall["random", "full"].verdict == "worse"
    assert overall["network", "full"].verdict == "better"
    assert overall["network", "random"].verdict == "better"
    assert overall["network", "full"].difference == pytest.approx(1.0, abs=0.15)
    assert len(analysis.verdicts) == 3 * (1 + 3)
    assert all(c.comparisons == 12 for c in analysis.verdicts)
    at = next(c for c in analysis.verdicts if c.cell == {"batch_size": 128})
    assert at.sentence.startswith("At batch size 128: ")


def test_cells_hold_the_mean_of_their_runs(analysis: Analysis) -> None:
    assert len(analysis.cells) == 9
    for cell in analysis.cells:
        values = list(cell.values.values())
        assert cell.n == len(values) == 5
        assert cell.mean == pytest.approx(sum(values) / 5)
        assert cell.mean is not None
        assert cell.low < cell.mean < cell.high


def test_the_json_is_strict(analysis: Analysis) -> None:
    import json

    data = analysis.to_dict()
    assert {"verdicts", "cells", "trials"} <= set(data)
    assert len(data["trials"]) == 45
    json.dumps(data, allow_nan=False)


@pytest.mark.slow
def test_one_seed_is_reported_without_intervals(digits: Path, tmp_path: Path) -> None:
    study = finished_study.write(Study.from_dict(finished_study.definition(seeds=1), tmp_path))
    found = analyse(study)
    assert {c.verdict for c in found.verdicts} == {"not enough runs"}
    assert found.to_dict()["cells"][0]["low"] is None
    assert "not enough runs" in write_report(found).read_text()


@pytest.mark.slow
def test_the_page_needs_nothing_else(page: Path) -> None:
    text = page.read_text()
    assert not re.findall(r'(?:src|href)="(?!data:|#)[^"]+"', text.replace("xlink:href", "href"))
    assert "@import" not in text
    assert "<script" not in text
    order = [text.index(f">{word}<") for word in ("Verdict", "Figures", "Means")]
    assert order == sorted(order)
    assert "network is better than full" in text


@pytest.mark.slow
def test_figures_are_whole_svg_and_png(page: Path) -> None:
    folder = page.parent / "figures"
    names = {file.stem for file in folder.glob("*.svg")}
    assert {"accuracy-batch-size", "differences", "map-network"} <= names
    for file in folder.glob("*.svg"):
        ET.parse(file)
        assert file.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_inline_figures_follow_the_page(analysis: Analysis) -> None:
    for drawing in draw_all(analysis):
        element = inline(drawing.svg)
        assert INK in drawing.svg
        assert INK not in element
        assert "var(--ink)" in element
        assert element.startswith("<svg")
        assert " width=" not in element[: element.index(">")]


def test_every_row_is_in_the_parquet(page: Path, analysis: Analysis) -> None:
    table = pq.read_table(page.parent / "trials.parquet")
    assert table.num_rows == 45
    assert {"batch_size", "selection", "seed", "accuracy", "seconds"} <= set(table.column_names)
    accuracies = table.column("accuracy").to_pylist()
    assert accuracies == pytest.approx([trial.accuracy for trial in analysis.trials])


def test_a_reader_can_recompute_a_verdict_from_the_parquet(page: Path, analysis: Analysis) -> None:
    rows = pq.read_table(page.parent / "trials.parquet").to_pylist()
    value = {(r["batch_size"], r["selection"], r["seed"]): r["value"] for r in rows}
    batches, arms, seeds = (sorted({key[n] for key in value}) for n in range(3))
    table = np.array([[[value[b, a, s] for s in seeds] for a in arms] for b in batches])
    rest = table - table.mean(2, keepdims=True)
    rest -= rest.mean(1, keepdims=True)
    variances = (rest**2).sum((1, 2)) / ((len(arms) - 1) * (len(seeds) - 1))
    resolution = 100 / 360
    pooled = 0
    for c in analysis.verdicts:
        at = [b for b in batches if c.cell.get("batch_size", b) == b]
        arm, base = (
            np.array([np.mean([value[b, a, s] for b in at]) for s in seeds])
            for a in (c.arm, c.baseline)
        )
        differences = arm - base
        t = differences.mean() / (c.sd / math.sqrt(len(seeds)))
        assert c.p == pytest.approx(2 * stats.t.sf(abs(t), c.df))
        half = stats.t.isf(0.025, c.df) * c.sd / math.sqrt(len(seeds))
        assert c.high == pytest.approx(differences.mean() + half)
        if c.cell and c.pooled_arms == 3:
            own = variances[batches.index(at[0])]
            others = (variances.sum() - own) / (len(batches) - 1)
            options = [variances.mean(), own, (own + others) / 2]
            expected = [math.sqrt(2 * (v + resolution**2 / 12)) for v in options]
            assert min(abs(c.sd - sd) for sd in expected) < 1e-9
            pooled += 1
    assert pooled
    text = page.read_text()
    assert "trials.parquet" in text
    assert "(arms − 1)(seeds − 1)" in text


def test_tuning_is_reported_by_validation_and_never_by_test(digits: Path, tmp_path: Path) -> None:
    content = finished_study.definition(
        tune=["lr"],
        grid={"batch_size": [32, 128], "lr": [0.1, 0.2]},
        base={"data": "digits", "validation": 0.1},
        steps={},
        seeds=3,
    )
    study = Study.from_dict(content, tmp_path)
    (tmp_path / "study.toml").write_text(study.definition.text)
    from thresher.paths import RunPaths, write_json

    for trial in study.plan().trials.values():
        # The test set would choose 0.2; validation chooses 0.1.
        high = trial.settings["lr"] == 0.2
        result = finished_study.result(0.9 if high else 0.8, validation_accuracy=0.7 - 0.1 * high)
        write_json(RunPaths(trial.out).result, result)
    found = analyse(study)
    assert [choice.chosen for choice in found.choices] == [{"lr": 0.1}] * 2
    assert all(cell.mean == pytest.approx(80.0) for cell in found.cells)
    text = render(found, [])
    assert ">Tuning<" in text
    assert "The test set was not used" in text
    # Runs that stop at a target have about the same validation accuracy at any rate.
    to_target = analyse(study, ComparisonConfig(metric="steps_to_target"))
    assert any("lr was tuned by validation accuracy" in note for note in to_target.notes)
    assert not any("tuned" in note for note in found.notes)
    by_it = analyse(study, ComparisonConfig(metric="validation_accuracy"))
    assert any("validation accuracy that is compared" in note for note in by_it.notes)


def test_a_diverged_run_counts_as_a_guess(digits: Path, tmp_path: Path) -> None:
    content = finished_study.definition(grid={"lr": [0.1, 9.0]}, steps={}, seeds=2)
    study = Study.from_dict(content, tmp_path)
    from thresher.paths import RunPaths, write_json

    for trial in study.plan().trials.values():
        diverged = trial.settings["lr"] == 9.0
        result = finished_study.result(0.9)
        if diverged:
            result |= {"status": "diverged", "accuracy": None, "loss": None}
        write_json(RunPaths(trial.out).result, result)
    found = analyse(study)
    bad = next(cell for cell in found.cells if cell.cell["lr"] == 9.0)
    assert bad.diverged == 2
    assert bad.mean == pytest.approx(10.0)  # ten classes
    assert "2 runs diverged" in render(found, [])
    # Without them, a verdict on the loss would be that of the lucky runs only.
    by_loss = analyse(study, ComparisonConfig(metric="loss"))
    bad = next(cell for cell in by_loss.cells if cell.cell["lr"] == 9.0)
    assert bad.mean == pytest.approx(math.log(10))
    assert "counted with the last loss, or as guessing" in render(by_loss, [])
    # They ended early, which is not faster.
    by_time = analyse(study, ComparisonConfig(metric="seconds"))
    assert [cell.n for cell in by_time.cells] == [2, 0]
    left_out = (
        "2 finished runs have no seconds, so the verdicts leave them out (2 of them diverged)."
    )
    assert left_out in by_time.notes


def test_runs_that_did_not_reach_the_target_are_named() -> None:
    """Without a word, the mean of the one run that arrives is that of the other arm."""
    times: dict[str, list[float | None]] = {"early": [9, 10, 11], "late": [10, None, None]}
    trials = [
        Trial(cell={"arm": arm}, seed=seed, value=value, seconds=50.0)
        for arm, values in times.items()
        for seed, value in enumerate(values)
    ]
    found = analyse(trials, ComparisonConfig(metric="time_to_target"))
    early, late = cell_table(found).split("<tr>")[2:]
    assert "not reached" not in early
    assert "2 left out: target not reached" in late
    assert "Left out: 2 that did not reach the target." in draw_all(found)[0].caption


@pytest.mark.parametrize(("metric", "shown"), [("accuracy", True), ("seconds", False)])
def test_intervals_of_accuracies_are_shown_up_to_0_and_100(metric: str, shown: bool) -> None:
    values = {"poor": [1.0, 9.0], "good": [91.0, 99.0]}
    trials = [
        Trial(cell={"width": width}, seed=seed, value=value, accuracy=value, seconds=value)
        for width, arm in enumerate(values)
        for seed, value in enumerate(values[arm])
    ]
    found = analyse(trials, ComparisonConfig(metric=metric))
    poor, good = found.cells
    assert poor.low < 0
    assert good.high > 100, "what is computed stays"
    rows = cell_table(found).split("<tr>")[2:]
    table = io.StringIO()
    Console(file=table, width=200).print(_summary(found, None))
    printed = [line for line in table.getvalue().splitlines() if " … " in line]
    for lines in (rows, printed[-2:]):
        ends = [re.findall(r"(\S+) … ([\d.]+)", line.replace(">", " "))[0] for line in lines]
        assert ((float(ends[0][0]), float(ends[1][1])) == (0, 100)) == shown
    figure = Figure()
    axes = figure.subplots()
    _lines(axes, found.cells, "width", None, found)
    low, high = axes.dataLim.intervaly
    assert ((low, high) == pytest.approx((0, 100))) == shown


@pytest.mark.parametrize(
    ("validation", "images"), [({}, 360), ({"validation": 50}, 50), ({"validation": 0.1}, 144)]
)
def test_the_resolution_is_that_of_the_images_that_the_metric_is_measured_on(
    validation: dict[str, float], images: int, digits: Path, tmp_path: Path
) -> None:
    content = finished_study.definition(grid={"lr": [0.1, 0.2]}, steps={}, seeds=2)
    content["base"] |= validation
    metric = "validation_accuracy" if validation else "accuracy"
    study = Study.from_dict({**content, "metric": metric}, tmp_path)
    assert analyse(study).resolution == pytest.approx(100 / images)


def test_the_cost_counts_every_worker_of_a_step(digits: Path, tmp_path: Path) -> None:
    from thresher.paths import RunPaths, write_json

    steps = {
        "net": {"do": "train", "workers": 2},
        "features": {"do": "embed", "run": "net"},
        "network": {"do": "select", "filter": "network", "features": "features"},
    }
    grid = {"selection": ["full", "network"]}
    study = Study.from_dict(finished_study.definition(grid=grid, steps=steps), tmp_path)
    result = finished_study.result(0.9, seconds=1800.0, resolved={"workers": 2})
    write_json(RunPaths(study.output("net")).result, result)
    assert analyse(study).cost.device_hours == pytest.approx(1.0)


def test_small_numbers_are_not_rounded_to_zero() -> None:
    rmse = {"sgd": [0.00412, 0.00409, 0.00415], "adam": [0.00321, 0.00319, 0.00322]}
    trials = [
        Trial(cell={"optimizer": arm, "width": width}, seed=seed, value=value + 0.001 * width)
        for arm, values in rmse.items()
        for seed, value in enumerate(values)
        for width in (0, 1)
    ]
    text = render(analyse(trials, ComparisonConfig(metric="rmse", compare="optimizer")), [])
    assert '<td class="n">0.00412</td>' in text  # a mean
    assert '<td class="n">-0.00091</td>' in text  # a difference
    assert "0.00 … " not in text


def test_runs_without_the_metric_are_mentioned(digits: Path, tmp_path: Path) -> None:
    content = finished_study.definition(grid={"lr": [0.1, 0.2]}, steps={}, seeds=2)
    study = Study.from_dict(content, tmp_path)
    from thresher.paths import RunPaths, write_json

    for trial in study.plan().trials.values():  # as of data without test images
        result = finished_study.result(0.9, validation_accuracy=0.8) | {"accuracy": None}
        write_json(RunPaths(trial.out).result, result)
    assert analyse(study).notes == [
        "4 finished runs have no accuracy, so the verdicts leave them out; "
        'metric = "validation_accuracy" compares them.'
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "figure"),
    [
        ({"grid": {"warmup_epochs": [0, 5, 10]}}, "accuracy-warmup-epochs"),
        ({"grid": {"workers": [1, 2, 4]}, "metric": "time_to_target"}, "time-workers"),
        ({"grid": {"optimizer": ["sgd", "lars"]}}, "accuracy-optimizer"),
    ],
)
def test_each_kind_of_study_has_its_figure(
    changes: dict[str, Any], figure: str, digits: Path, tmp_path: Path
) -> None:
    study = Study.from_dict(finished_study.definition(steps={}, seeds=2, **changes), tmp_path)
    from thresher.paths import RunPaths, write_json

    for trial in study.plan().trials.values():
        seconds = 100.0 / trial.workers
        reached = {"seconds": seconds, "samples": 10, "steps": 1}
        result = finished_study.result(0.9, seconds, time_to_target=reached)
        write_json(RunPaths(trial.out).result, result)
    assert figure in {drawing.name for drawing in draw_all(analyse(study))}


def test_the_work_and_the_classes_of_each_arm_are_shown(analysis: Analysis, digits: Path) -> None:
    counts = class_counts(analysis)
    labels = Pack.open(digits).labels[Pack.open(digits).indices("train")]
    assert [list(one.values()) for one in counts["full"]] == [np.bincount(labels).tolist()]
    assert len(counts["network"]) == 1
    assert len(counts["random"]) == 5  # one draw per seed
    assert analysis.study is not None
    kept = Selection.load(analysis.study.output("network"))
    assert list(counts["network"][0].values()) == np.bincount(kept.labels[kept.keep]).tolist()
    work = work_table(analysis)
    assert work.count("<tr>") == 1 + 9
    assert '<td class="n">1,400</td><td class="n">100</td><td class="n">2,000</td>' in work
    assert work in render(analysis, [])
    assert class_table(analysis) in render(analysis, [])


def test_work_without_the_data_is_that_of_the_selections(
    analysis: Analysis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("THRESHER_HOME", str(tmp_path))
    counts = class_counts(analysis)
    assert set(counts) == {"network", "random"}
    assert list(counts["network"][0]) == [str(label) for label in range(10)]


def test_numbers_have_units_and_empty_columns_are_left_out() -> None:
    """Of runs made elsewhere, only the accuracy is known."""
    accuracy = {"full": (91.0, 91.4), "half": (90.0, 90.2)}
    trials = [
        Trial(cell={"selection": arm}, seed=seed, value=value, accuracy=value)
        for arm, values in accuracy.items()
        for seed, value in enumerate(values)
    ]
    found = analyse(trials)
    heads = [
        re.findall(r"<th(?: [^>]*)?>(.*?)</th>", table(found))
        for table in (cell_table, trial_table)
    ]
    assert heads == [
        ["selection", "accuracy (%)", "95 % interval", "runs"],
        ["selection", "seed", "state", "test accuracy (%)"],
    ]
    named = analyse(trials, ComparisonConfig(metric="test_acc"))
    assert named.notes[1].startswith("Call it accuracy to have differences in points")
    assert number(-0.001, signed=True) == "+0.00"
