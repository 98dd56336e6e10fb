"""`thresher study` as typed on the command line."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from few_digits import make_pack

from quick_tiny import _quick_tiny  # noqa: F401
from thresher import Study
from thresher.paths import write_text
from thresher.study import reading
from thresher.study.expand import expand
from thresher.study.status import Failures
from thresher.study.toml import dumps

Run = Callable[..., subprocess.CompletedProcess[str]]
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.toml")), ids=lambda file: file.stem)
def test_every_example_expands(file: Path, tmp_path: Path) -> None:
    study = reading.load(file)
    plan = expand(study, tmp_path)
    assert plan.trials
    if file.stem == "ornl-fig7":
        assert len(plan.trials) == 96
        assert len(plan.steps) == 4 * 8  # each seed has its own extractor, map and selections


@pytest.fixture(scope="module")
def study_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study with every kind of step on a tiny pack."""
    folder = tmp_path_factory.mktemp("cli")
    content: dict[str, Any] = {
        "title": "Few digits",
        "seeds": 2,
        "base": {"data": make_pack(folder), "epochs": 1, "batch_size": 48, "device": "cpu"},
        "grid": {"selection": ["full", "random", "network"]},
        "steps": {
            "extractor": {"do": "train"},
            "features": {"do": "embed", "run": "extractor", "device": "cpu"},
            "network": {
                "do": "select",
                "filter": "network",
                "features": "features",
                "drop": 0.1,
                "reduce": "pca",
                "components": 2,
            },
            "random": {"do": "select", "filter": "random", "like": "network", "each": ["seed"]},
        },
        "executor": {"kind": "local", "workers": 2},
    }
    write_text(folder / "study.toml", dumps(content))
    return folder / "study.toml"


def test_status_of_many_tasks_lists_those_that_matter(thresher: Run, tmp_path: Path) -> None:
    content = {"base": {"data": "digits"}, "grid": {"lr": [0.1, 0.2]}}
    for seeds, listed in ((20, 40), (21, 1)):
        root = tmp_path / str(seeds)
        study = Study.from_dict({**content, "seeds": seeds}, root)
        write_text(root / "study.toml", study.definition.text)
        failed = next(iter(study.plan().trials))
        Failures(root).add(failed, "out of memory", "")
        said = thresher("study", "status", root).stdout
        assert said.count("seed=") == listed
        assert "out of memory" in said
        assert f"{2 * seeds} trials: 1 failed, {2 * seeds - 1} waiting; not running" in said
        assert ("--json lists all" in said) == (seeds == 21)


@pytest.mark.slow  # runs a study with every kind of step
def test_run_status_report(thresher: Run, study_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ran = thresher("study", "run", study_file, "--out", out)
    assert ran.returncode == 0, ran.stderr
    assert "network vs. full" in ran.stdout
    assert (out / "report" / "index.html").exists()
    status = json.loads(thresher("study", "status", out, "--json").stdout)
    assert status["complete"]
    assert status["counts"]["finished"] == 6
    assert {step["state"] for step in status["steps"]} == {"finished"}
    said = thresher("study", "status", out)
    assert "6 trials: 6 finished; not running" in said.stdout
    page = out / "report" / "index.html"
    page.unlink()
    report = thresher("study", "report", out, "--json")
    data = json.loads(report.stdout)
    assert data["report"] is None
    assert not page.exists()
    assert "network vs. full" in thresher("study", "report", out).stdout
    assert page.exists()
    assert {"verdicts", "cells", "trials"} <= set(data)
    assert [cell["selection"] for cell in data["cells"]] == ["full", "random", "network"]
    kept = {cell["selection"]: cell["train_samples"] for cell in data["cells"]}
    assert kept["full"] == 240
    assert kept["random"] == kept["network"] == 216
    # Run again: nothing is done twice.
    before = {file: file.stat().st_mtime_ns for file in out.glob("*/*/*") if file.is_file()}
    again = thresher("study", "run", study_file, "--out", out)
    assert "6 of 6 trials are already finished" in again.stderr
    after = {file: file.stat().st_mtime_ns for file in before if "report" not in file.parts}
    assert after == {file: before[file] for file in after}


def test_a_misspelt_key_is_refused_with_the_nearest(thresher: Run, tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    write_text(file, '[base]\ndata = "digits"\nbatchsize = 32\n')
    done = thresher("study", "run", file, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert 'did you mean "batch_size"?' in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_folder_without_a_study(thresher: Run, tmp_path: Path) -> None:
    done = thresher("study", "report", tmp_path)
    assert done.returncode == 2
    assert "is not a study: it has no study.toml" in done.stderr
