"""An object of a wrong type given to the Python API is one sentence that names the parameter."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import thresher
from thresher import Pack, Selection, ThresherError

PATHS: dict[str, Callable[[Any], object]] = {
    "name_or_path": Pack.open,
    "path": lambda path: thresher.Features.open(path) or Selection.load(path),
    "run": thresher.RunResult.load,
    "root": thresher.Study.open,
    "file": thresher.TrainConfig.load,
    "data": lambda data: thresher.audit(data, "out"),
    "out": thresher.report_result,
}


@pytest.mark.parametrize("wrong", [None, 3, {}, [1]], ids=repr)
@pytest.mark.parametrize("parameter", PATHS)
def test_what_is_no_path(parameter: str, wrong: object, tmp_path: Path) -> None:
    given = "None" if wrong is None else type(wrong).__name__
    with pytest.raises(ThresherError, match=f"^{parameter} must be a path, got {given}$") as error:
        PATHS[parameter](wrong)
    assert isinstance(error.value, TypeError)


OTHERS: dict[str, Callable[[Any], object]] = {
    "config must be a TrainConfig": thresher.train,
    "loader must be a torch DataLoader": lambda value: thresher.prune(value, epochs=4),
    "model must be a torch Module": thresher.NoiseScale,
    "source must be a source of images": lambda value: thresher.write_pack(value, "out"),
    "study must be a study, its folder": thresher.write_report,
    "content must be a mapping": lambda value: thresher.Study.from_dict(value, "out"),
    "values must be a mapping of options": thresher.TrainConfig.from_dict,
    "path must be a path": Selection.load,
}


@pytest.mark.parametrize("wrong", [None, 3, object()], ids=["None", "3", "object"])
@pytest.mark.parametrize("sentence", OTHERS)
def test_what_is_not_of_the_type_that_is_needed(sentence: str, wrong: object) -> None:
    with pytest.raises(ThresherError, match=f"^{sentence}.*, got") as error:
        OTHERS[sentence](wrong)
    assert isinstance(error.value, TypeError | ValueError)


def test_the_options_of_a_run_as_a_dictionary() -> None:
    with pytest.raises(ThresherError, match="got dict; build one: `TrainConfig"):
        thresher.train({"data": "digits", "out": "run"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda pack: pack.images(3), r"positions must be \(n,\) integers, got 3; give a list"),
        (lambda pack: pack.images(None), r"positions must be \(n,\) integers, got None"),
        (lambda pack: pack.view(None), "position must be an integer, got None"),
        (lambda pack: pack.encoded("a"), "position must be an integer, got str"),
        (lambda pack: pack.indices(None), "split must be a name, got None"),
        (lambda pack: pack.positions(None), "ids must be a list of ids, got None"),
    ],
)
def test_a_pack(digits: Path, call: Callable[[Pack], object], sentence: str) -> None:
    with pytest.raises(ThresherError, match=sentence) as error:
        call(Pack.open(digits))
    assert isinstance(error.value, TypeError)


def test_a_selection() -> None:
    arrays: dict[str, Any] = {"keep": np.ones(1, bool), "score": np.zeros(1), "reason": [""]}
    chosen = Selection(["a"], np.zeros(1, int), fingerprint="", **arrays)
    calls: dict[str, Callable[[], object]] = {
        "pack must be a Pack, got str": lambda: chosen.indices("digits"),  # type: ignore[arg-type]
        "sample must be an id or a sample": lambda: chosen.keeps(3),  # type: ignore[arg-type]
        "path must be a path, got None": lambda: chosen.save(None),  # type: ignore[arg-type]
        "ids must be a list of ids, got None": lambda: Selection(
            None,  # type: ignore[arg-type]
            np.zeros(1, int),
            fingerprint="",
            **arrays,
        ),
        "labels must be an array, got None": lambda: Selection(
            ["a"],
            None,  # type: ignore[arg-type]
            fingerprint="",
            **arrays,
        ),
    }
    for sentence, call in calls.items():
        with pytest.raises(ThresherError, match=sentence) as error:
            call()
        assert isinstance(error.value, TypeError)
