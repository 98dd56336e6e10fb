"""Verdicts on a machine that does not have the data are the same."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from few_digits import FewDigits

from thresher import Study, analyse
from thresher.data.sources.base import Block
from thresher.data.write import write_pack
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


class ThreeSplits(FewDigits):
    """Digits with a validation split of their own: 20 images."""

    def read(self, chunk: str) -> Iterator[Block]:
        for block in super().read(chunk):
            yield replace(block, splits=["validation"] * 20 + list(block.splits)[20:])


def test_the_resolution_is_that_of_the_validation_split_of_the_data(tmp_path: Path) -> None:
    """With 20 images, differences of one image are no evidence, wherever the data is."""
    folder = tmp_path / "data"
    write_pack(ThreeSplits(100), folder)
    base = {"data": str(folder), "model": "tiny"}
    content = {"seeds": 3, "base": base, "grid": {"lr": [0.1, 0.2]}}
    study = Study.from_dict({**content, "metric": "validation_accuracy"}, tmp_path / "study")
    for trial in study.plan().trials.values():
        share = 0.9 if trial.settings["lr"] == 0.1 else 0.95
        result = {"status": "finished", "validation_accuracy": share}
        data = {"classes": 10, "validation": 20, "test": 16}
        write_json(RunPaths(trial.out).config, {"config": {}, "data": data})
        write_json(RunPaths(trial.out).result, result)
    here = analyse(study)
    shutil.move(folder, tmp_path / "elsewhere")
    elsewhere = analyse(study)
    assert here.resolution == elsewhere.resolution == 100 / 20
    assert [v.verdict for v in here.verdicts] == [v.verdict for v in elsewhere.verdicts]
    assert [v.verdict for v in here.verdicts] == ["no worse"]
