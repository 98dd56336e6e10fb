"""`thresher study import`: verdicts and report on runs that were made elsewhere."""

import json
import math
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from thresher.cli.study import Import, import_runs
from thresher.errors import ThresherError
from thresher.paths import RunPaths, write_json
from thresher.study.analysis import analyse
from thresher.study.definition import ComparisonConfig
from thresher.study.imported import read_runs
from thresher.study.results import Trial
from thresher.study.study import Study

Run = Callable[..., subprocess.CompletedProcess[str]]


def _rows() -> list[tuple[str, int, int, float]]:
    chance = np.random.default_rng(0)
    return [
        (arm, batch, seed, 0.9 + 0.02 * (arm == "new") + 0.002 * chance.standard_normal())
        for arm in ("old", "new")
        for batch in (64, 256)
        for seed in range(4)
    ]


def _csv(separator: str = ",") -> str:
    lines = [("arm", "batch_size", "seed", "accuracy"), *_rows()]
    return "".join(separator.join(map(str, line)) + "\r\n" for line in lines)


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_the_verdicts_are_those_of_a_study(separator: str, tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    file.write_bytes(b"\xef\xbb\xbf" + _csv(separator).encode())  # as spreadsheets write it
    trials = [
        Trial(cell={"arm": arm, "batch_size": batch}, seed=seed, value=100 * value)
        for arm, batch, seed, value in _rows()
    ]
    expected = analyse(trials, ComparisonConfig(compare="arm")).verdicts
    assert expected[0].verdict == "better"
    found = analyse(read_runs(file, "accuracy"), ComparisonConfig(compare="arm")).verdicts
    assert [c.to_dict() for c in found] == [c.to_dict() for c in expected]


@pytest.mark.slow
def test_from_the_command_line(thresher: Run, tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    file.write_text(_csv().replace("accuracy", "val/rmse"))
    words = ("study", "import", file, "--compare", "arm", "--metric", "val/rmse")
    done = thresher(*words, "--out", tmp_path / "S", "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["verdicts"][0]["word"] == "worse"  # a larger error
    assert [cell["batch_size"] for cell in data["cells"]] == [64, 256, 64, 256]
    page = (tmp_path / "S" / "report" / "index.html").read_text()
    assert data["report"] == str(tmp_path / "S" / "report" / "index.html")
    assert "new is worse than old" in page
    assert (tmp_path / "S" / "report" / "figures" / "val-rmse-batch-size.svg").exists()
    other = thresher(*words, "--better", "higher", "--out", tmp_path / "S", "--json")
    assert json.loads(other.stdout)["verdicts"][0]["word"] == "better"


def test_columns_that_are_not_axes_are_left_out(tmp_path: Path) -> None:
    head, *rows = _csv().splitlines()
    lines = [f"{head},seconds", *(f"{row},{n}" for n, row in enumerate(rows))]
    file = tmp_path / "runs.csv"
    file.write_text("\n".join(lines))
    with pytest.raises(ThresherError, match=r'"seconds" of .* cannot be an axis; .*`axes`'):
        read_runs(file, "accuracy")
    assert {*read_runs(file, "accuracy", ("arm", "batch_size"))[0].cell} == {"arm", "batch_size"}


def test_a_column_that_numbers_the_rows_is_no_axis(tmp_path: Path) -> None:
    """As pandas writes it."""
    head, *rows = _csv().splitlines()
    file = tmp_path / "runs.csv"
    file.write_text("\n".join([f",{head}", "", *(f"{n},{row}" for n, row in enumerate(rows))]))
    trials = read_runs(file, "accuracy")
    assert {*trials[0].cell} == {"arm", "batch_size"}
    assert trials[0].name == "line 3"


@pytest.mark.parametrize("metric", ["accuracy", "validation_accuracy"])
def test_shares_and_percents_in_one_column_are_refused(metric: str, tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"

    def read(*values: float) -> list[float | None]:
        rows = [f"{'ab'[n % 2]},{n // 2},{value}\n" for n, value in enumerate(values)]
        file.write_text(f"arm,seed,{metric}\n" + "".join(rows))
        return [trial.value for trial in read_runs(file, metric)]

    mixed = rf"line 4 of .*: {metric} 0\.93 is a share, but 93\.1 in line 2 is in percent; write"
    with pytest.raises(ThresherError, match=mixed):
        read(93.1, 94, 0.93, 92)
    with pytest.raises(ThresherError, match=r"line 2 .* 1 is a share, but 92 in line 5"):
        read(1, 0.94, 0.93, 92)
    assert read(0, 0.5, 0.25, 1) == [0, 50, 25, 100]
    assert read(0, 50, 25, 100) == [0, 50, 25, 100]  # 0 is the same in both units
    assert read(0, 0, 0, 0) == [0, 0, 0, 0]
    # A sign would turn the shares of the whole column into percent.
    for wrong in (-0.5, 101):
        with pytest.raises(ThresherError, match=rf"line 3 .* in \[0, 100\], got {wrong:g}"):
            read(0.93, wrong, 0.94, 0.92)


@pytest.mark.parametrize(("unit", "step"), [(1, 1.0), (0.01, 1.0), (0.1, 0.1)])
def test_the_rounding_of_the_values_is_part_of_the_error(
    unit: float, step: float, tmp_path: Path
) -> None:
    """Differences that are equal only because they are rounded are not certain."""
    values = {"old": [91, 92, 93], "new": [92, 93, 94]}
    rows = [f"{a},{n},{v * unit:.9g}" for a, vs in values.items() for n, v in enumerate(vs)]
    file = tmp_path / "runs.csv"
    file.write_text("\n".join(["arm,seed,accuracy", *rows]))
    analysis = analyse(read_runs(file, "accuracy"))
    (verdict,) = analysis.verdicts
    assert analysis.resolution == pytest.approx(step)
    assert verdict.sd == pytest.approx(step / math.sqrt(6))
    n, error = 3, step / math.sqrt(6) / math.sqrt(3)
    assert verdict.p == pytest.approx(2 * scipy.stats.t.sf(verdict.difference / error, n - 1))
    assert verdict.verdict != "better"


@pytest.mark.parametrize("images", [60, 360, 10_000])
@pytest.mark.parametrize("kind", [float, np.float32])
def test_one_image_more_for_each_seed_is_not_certain(images: int, kind: type[float]) -> None:
    """Also if accuracies have no last decimal, or that of single precision, as torch's means."""
    trials = [
        Trial(cell={"arm": arm}, seed=seed, value=100 * float(kind((correct + arm) / images)))
        for arm in (0, 1)
        for seed, correct in enumerate((images - 31, images - 26, images - 17))
    ]
    analysis = analyse(trials)
    assert analysis.resolution == pytest.approx(100 / images)
    (verdict,) = analysis.verdicts
    assert verdict.sd == pytest.approx(analysis.resolution / math.sqrt(6), rel=1e-3)
    assert verdict.p is not None
    assert verdict.p > 0.04


def test_the_digits_that_a_command_reports_are_its_resolution(digits: Path, tmp_path: Path) -> None:
    """Its `data` is that of the steps: on which images it is tested is not known."""
    base = {"command": "{python} x.py {lr} {seed} {out}", "data": str(digits)}
    study = Study.from_dict({"base": base, "grid": {"lr": [0.1, 0.2]}, "seeds": 3}, tmp_path)
    for trial in study.plan().trials.values():
        accuracy = 0.94 if "lr=0.2" in trial.name else 0.93
        write_json(RunPaths(trial.out).result, {"accuracy": accuracy, "status": "finished"})
    analysis = analyse(study)
    assert analysis.resolution == 1
    assert analysis.verdicts[0].sd == pytest.approx(1 / math.sqrt(6))
    assert analysis.verdicts[0].verdict == "no worse"


def test_exact_values_have_no_rounding() -> None:
    trials = [
        Trial(cell={"arm": arm}, seed=seed, value=90 + arm + (seed + arm) / math.pi)
        for arm in (0, 1)
        for seed in range(3)
    ]
    analysis = analyse(trials)
    assert analysis.resolution == 0
    assert "p < 1e-15" in analysis.verdicts[0].sentence


@pytest.mark.parametrize(
    ("names", "read"),
    [
        (("16_4", "16_8"), None),
        (("007", "7"), None),
        (("0.5", "10"), (0.5, 10.0)),
        (("0", "-1"), (0, -1)),
    ],
)
def test_names_that_python_reads_as_numbers_stay_names(
    names: tuple[str, str], read: tuple[float, float] | None, tmp_path: Path
) -> None:
    file = tmp_path / "runs.csv"
    file.write_text(f"arm,seed,score\n{names[0]},0.0,1\n{names[1]},0.0,2\n{names[0]},1.0,1\n")
    trials = read_runs(file, "score")
    assert tuple(trial.cell["arm"] for trial in trials[:2]) == (read or names)
    assert [trial.seed for trial in trials] == [0, 0, 1]


GOOD = "arm,seed,score\na,0,1\nb,0,2\na,1,1.5\nb,1,2\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("seed", "sede"), 'has no column "seed"; did you mean "sede"'),
        (GOOD.replace("seed", "n"), 'has no column "seed"; add one; runs with the same seed are'),
        (GOOD.replace("1.5", "1_5"), 'score must be a number, got "1_5"'),
        (GOOD.replace("a,0,", "a,1_0,"), 'seed must be an integer, got "1_0"'),
        (GOOD.replace("score", "scores"), 'has no column "score"; did you mean "scores"'),
        (GOOD.replace("arm", "arms"), '"arm" is not an axis of the trials'),
        (GOOD + "b,1,3\n", "lines 5 and 6 of .* are the same run: seed 1"),
        (GOOD.replace("1.5", "good"), 'line 4 of .*: score must be a number, got "good"'),
        (GOOD.replace("1.5", "nan"), 'score must be a number, got "nan"'),
        (GOOD.replace("1.5", ""), 'score must be a number, got ""'),
        (GOOD.replace("a,0,", "a,first,"), 'line 2 of .*: seed must be an integer, got "first"'),
        (GOOD.replace("a,0,", ",0,"), "line 2 of .* has no arm"),
        (GOOD.replace(",1,", ",0,").replace("a,0,1\nb,0,2\n", ""), "has one seed"),
        (GOOD.replace("b,", "a,", 1).replace("b,", "a,").replace("a,0,2\n", "").replace(
            "a,1,2\n", ""), 'column "arm" of .* has one value'),
        ("arm,seed,score\n", "has no runs"),
        (GOOD + "b,1\n", "line 6 of .* has 2 values, but the header has 3"),
        (GOOD.replace("score\n", "arm\n", 1), 'has two columns "arm"'),
        ("", "is not a CSV file: it has no header"),
        (GOOD.replace("b,1,2", 'b,1,"2'), "is not a CSV file: "),
        ("arm,n,seed,score\na,0,0,1\nb,1,0,2\na,2,1,1\nb,3,1,2\n", '"n" of .* cannot be an axis'),
        ("arm,k,seed,score\na,0,0,1\nb,1,0,2\na,2,1,1\nb,3,1,2\n", "differ in arm only.*k count"),
    ],
)  # fmt: skip
def test_a_bad_file_is_one_sentence(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    file.write_text(text)
    with pytest.raises(ThresherError) as error:
        import_runs(Import(file=file, out=tmp_path / "S", compare="arm", metric="score"))
    assert re.search(message, str(error.value)), error.value
    assert not (tmp_path / "S").exists()
