"""Verdicts on a machine that does not have the data are the same."""

from pathlib import Path
from typing import Any

import pytest

from thresher import Study, analyse
from thresher.paths import RunPaths, write_json
from thresher.study.definition import ComparisonConfig


def finished(root: Path) -> Study:
    """Three arms of four seeds: runs of the first are right on one image more than those of the
    second, and those of the third diverged."""
    content: dict[str, Any] = {
        "seeds": 4,
        "base": {"data": "digits", "model": "tiny", "validation": 100},
        "grid": {"lr": [0.1, 0.2, 9.0]},
    }
    study = Study.from_dict(content, root)
    for trial in study.plan().trials.values():
        share = (330 + (trial.settings["lr"] == 0.1)) / 360
        result = {"status": "finished", "accuracy": share, "validation_accuracy": 0.9}
        if trial.settings["lr"] == 9.0:
            result = {"status": "diverged", "accuracy": None, "validation_accuracy": None}
        data = {"classes": 10, "validation": 100, "test": 360}
        write_json(RunPaths(trial.out).config, {"config": {}, "data": data})
        write_json(RunPaths(trial.out).result, result)
    return study


@pytest.mark.parametrize(("metric", "images"), [("accuracy", 360), ("validation_accuracy", 100)])
def test_the_verdicts_do_not_depend_on_the_data_being_here(
    metric: str, images: int, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, config = finished(tmp_path / "study"), ComparisonConfig(metric=metric)
    here = analyse(study, config)
    monkeypatch.setenv("THRESHER_HOME", str(tmp_path / "empty"))
    elsewhere = analyse(study, config)
    assert elsewhere.resolution == here.resolution == pytest.approx(100 / images)
    assert [v.sentence for v in elsewhere.verdicts] == [v.sentence for v in here.verdicts]
    assert [cell.mean for cell in elsewhere.cells] == [cell.mean for cell in here.cells]
    assert here.cells[-1].mean == pytest.approx(10.0)  # a guess among ten classes
