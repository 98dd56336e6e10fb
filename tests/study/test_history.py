"""Comparisons that are changed after runs have finished are marked."""

from pathlib import Path
from typing import Any

import pytest
from few_digits import make_pack

from thresher.errors import InvalidValueError
from thresher.paths import RunPaths, StudyPaths, write_json, write_text
from thresher.report.page import write_report
from thresher.study.analysis import analyse
from thresher.study.study import Study

FIRST, OTHER = "0.2 - 0.1", "0.3 - 0.1"


@pytest.fixture
def content(tmp_path: Path) -> dict[str, Any]:
    return {
        "seeds": 2,
        "base": {"data": make_pack(tmp_path), "epochs": 1, "batch_size": 96},
        "grid": {"lr": [0.1, 0.2, 0.3]},
        "executor": {"kind": "in-process"},
        "primary": [FIRST],
    }


def _run(content: dict[str, Any], root: Path, finish: bool = True) -> Study:
    """Run a study whose trials are finished already."""
    study = Study.from_dict(content, root)
    if finish:
        for number, trial in enumerate(study.plan().trials.values()):
            result = {"status": "finished", "accuracy": 0.9 + number / 1e3, "seconds": 1.0}
            write_json(RunPaths(trial.out).result, result)
    study.run()
    return study


@pytest.mark.slow
def test_a_primary_comparison_chosen_after_runs_is_marked(
    content: dict[str, Any], tmp_path: Path
) -> None:
    root = tmp_path / "study"
    assert analyse(_run(content, root)).notes == []
    more = {**content, "seeds": 3, "title": "more seeds"}
    assert analyse(_run(more, root)).notes == []
    changed = analyse(_run({**more, "primary": [OTHER]}, root))
    (note,) = changed.notes
    assert note.startswith(
        f'primary was changed after 9 runs, from ["{FIRST}"] to ["{OTHER}"]: what is chosen'
    )
    assert "primary was changed after 9 runs" in write_report(changed).read_text()
    assert "primary was changed after 9 runs" in changed.to_dict()["notes"][0]
    # Changing it back does not undo it.
    back = analyse(_run(more, root)).notes
    assert [note.split(",")[0] for note in back] == 2 * ["primary was changed after 9 runs"]


@pytest.mark.parametrize(
    "change", [{"seeds": [0, 2]}, {"grid": {"lr": [0.1, 0.2]}}], ids=["seed", "value"]
)
def test_trials_that_were_removed_after_they_finished_are_mentioned(
    content: dict[str, Any], change: dict[str, Any], tmp_path: Path
) -> None:
    root = tmp_path / "study"
    content = {key: value for key, value in content.items() if key != "primary"}
    before = _run(content, root)
    assert analyse(before).notes == []
    removed = _run(content | change, root)
    count = len({*before.plan().trials} - {*removed.plan().trials})
    (note,) = analyse(removed).notes
    assert note.startswith(f"{count} finished trials in the folder, such as lr=0.")


def test_an_edited_file_in_the_folder_is_noticed(content: dict[str, Any], tmp_path: Path) -> None:
    root = tmp_path / "study"
    _run(content, root)
    file = StudyPaths(root).definition
    write_text(file, "margin = 2.0\n" + file.read_text())
    (note,) = analyse(root).notes
    assert note.startswith("margin was changed after 6 runs, from the default to 2.0")


def test_a_study_of_an_earlier_version(content: dict[str, Any], tmp_path: Path) -> None:
    root = tmp_path / "study"
    _run(content, root)
    StudyPaths(root).comparisons.unlink()
    (note,) = analyse(_run({**content, "primary": [OTHER]}, root)).notes
    assert note.startswith("primary was changed after 6 runs")


def test_a_damaged_record_is_one_sentence(content: dict[str, Any], tmp_path: Path) -> None:
    root = tmp_path / "study"
    _run(content, root)
    write_text(StudyPaths(root).comparisons, "{}\n")
    with pytest.raises(InvalidValueError, match=r"comparisons\.jsonl is damaged"):
        analyse(root)
