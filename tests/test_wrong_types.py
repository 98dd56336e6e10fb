"""An object of a wrong type given to the Python API is one sentence that names the parameter."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

import thresher
from thresher import Pack, Selection, ThresherError
from thresher.data.export import export
from thresher.models.embed import embed_pack
from thresher.models.embed_config import EmbedConfig
from thresher.select.run import run_filter

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


class DataFrame:
    """Told by its name, as that of pandas, which is not loaded for it."""

    def __len__(self) -> int:
        return 1


PAIRS = TensorDataset(torch.zeros(4, 1, 2, 2), torch.zeros(4, dtype=torch.int64))
FOREIGN: dict[str, tuple[Any, str]] = {
    "frame": (DataFrame(), "a table has no images: pack the folder or file that has them"),
    "subset": (Subset(PAIRS, [1]), "write its images and labels with `numpy.savez.*a selection of"),
    "parts": (ConcatDataset([PAIRS, PAIRS]), "and use that pack, which holds the samples of all"),
    "data set": (PAIRS, "`thresher data pack FILE PACK`, and use that pack$"),
    "array": (np.zeros((2, 4, 4), np.uint8), "write its images and labels with"),
}
WANTED: dict[str, Callable[[Any], object]] = {
    "data must be a folder or name of a pack": lambda value: thresher.train(
        thresher.TrainConfig(data=value, out="run")
    ),
    "data must be a path": lambda value: thresher.audit(value, "out"),
    "name_or_path must be a path": Pack.open,
    "source must be a source of images": lambda value: thresher.write_pack(value, "out"),
    "pack must be a Pack": lambda value: embed_pack(EmbedConfig(run=Path("run")), value, "out"),
    "pack must be a  Pack": lambda value: run_filter(thresher.RandomFilter(), value),
    "pack must be a   Pack": lambda value: export(value, Path("out"), "folder"),
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("sentence", WANTED)
def test_a_data_set_of_another_library_is_refused_with_what_to_pass(
    kind: str, sentence: str
) -> None:
    value, fix = FOREIGN[kind]
    with pytest.raises(ThresherError, match=f"^{' '.join(sentence.split())}, got .*; .*{fix}"):
        WANTED[sentence](value)


def test_other_objects_where_a_pack_or_a_path_is_needed(digits: Path) -> None:
    pack = Pack.open(digits)
    with pytest.raises(ThresherError, match=r"got PackDataset; use the pack that it was made from"):
        run_filter(thresher.RandomFilter(), pack.dataset())  # type: ignore[arg-type]
    with pytest.raises(ThresherError, match=r"got str; open it with `Pack\.open`"):
        run_filter(thresher.RandomFilter(), "digits")  # type: ignore[arg-type]
    with pytest.raises(ThresherError, match=r"got Pack; pass its folder"):
        thresher.train(thresher.TrainConfig(data=pack, out="run"))  # type: ignore[arg-type]
    chosen = run_filter(thresher.RandomFilter(drop=0.1), pack)
    with pytest.raises(ThresherError, match=r"got Selection; save the selection and pass its path"):
        thresher.train(thresher.TrainConfig(data="digits", selection=chosen, out="run"))  # type: ignore[arg-type]
    whole = pack.dataset()
    parts: ConcatDataset[Any] = ConcatDataset(
        [Subset(whole, range(700)), Subset(whole, range(700, len(whole)))]
    )
    assert len(chosen.apply(parts, order="pack")) == chosen.kept
    with pytest.raises(ThresherError, match=r"got a ConcatDataset without them; apply the select"):
        chosen.apply(parts)
    with pytest.raises(ThresherError, match=r"got a DataFrame without them; .*keeps"):
        chosen.sampler(DataFrame())
    with pytest.raises(ThresherError, match=r"Hugging Face Dataset, got PackDataset; use `apply`"):
        chosen.select(whole)


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
