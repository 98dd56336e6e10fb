"""Labels are numbers: a selection is refused where a pack numbers its classes in another way."""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from made_images import Made
from thresher.app.filter_preview import FilterPreviewer, PreviewSettings
from thresher.app.selection_view import SelectionView
from thresher.data.export import export
from thresher.data.flip import FlipOptions, flip_labels
from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.data.write import WriteOptions, write_pack
from thresher.errors import InvalidValueError
from thresher.paths import SelectionPaths
from thresher.select.filters.combine import UnionFilter
from thresher.select.filters.random import RandomFilter
from thresher.select.inputs import FilterSources
from thresher.select.run import run_filter
from thresher.study.preflight import check_inputs
from thresher.study.study import Study
from thresher.training.split import DataConfig, split_samples

FIRST = ["a", "b", "c", "rare"]
"""No image is in the class "rare", which a person may give to some."""
SHIFTED = ["a", "b", "c", "new", "rare"]


def packed(out: Path, classes: list[str]) -> Pack:
    """The same images with the same numbers: the fingerprint does not tell the packs apart."""
    source = Made()
    source.classes = classes
    return write_pack(source, out, WriteOptions(processes=1))


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Pack, Pack, Pack]:
    folder = tmp_path_factory.mktemp("packs")
    appended = [*FIRST, "new"]
    first, shifted, longer = (
        packed(folder / str(n), names) for n, names in enumerate((FIRST, SHIFTED, appended))
    )
    assert first.fingerprint == shifted.fingerprint == longer.fingerprint
    return first, shifted, longer


@pytest.fixture
def relabelled(packs: tuple[Pack, Pack, Pack], tmp_path: Path) -> Selection:
    path = tmp_path / "s.parquet"
    run_filter(RandomFilter(drop=0.1), packs[0], out=path)
    view = SelectionView(path)
    view.decide(view.selection.ids[:2], True, "rare indeed", FIRST.index("rare"))
    return Selection.load(path)


Apply = Callable[[Selection, Pack, Path], Any]
USES: dict[str, Apply] = {
    "train": lambda s, pack, _: split_samples(
        DataConfig(data=str(pack.root), selection=str(s.path)), pack
    ),
    "export": lambda s, pack, out: export(pack, out, "folder", s),
    "view": lambda s, pack, _: SelectionView(Path(str(s.path)), pack),
    "combine": lambda s, pack, _: run_filter(
        UnionFilter(), pack, FilterSources(selections=(Path(str(s.path)),) * 2)
    ),
    "like": lambda s, pack, _: run_filter(
        RandomFilter(), pack, FilterSources(like=Path(str(s.path)))
    ),
    "study": lambda s, pack, out: check_inputs(
        Study.from_dict(
            {"base": {"data": str(pack.root), "selection": str(s.path), "epochs": 1}}, out
        ).plan()
    ),
    "labels": lambda s, pack, _: s.labels_of(pack),
    "data set": lambda s, pack, _: s.apply(pack.dataset()),
}


@pytest.mark.parametrize("use", USES)
def test_a_class_of_another_number_is_refused_and_an_appended_one_is_not(
    packs: tuple[Pack, Pack, Pack], relabelled: Selection, tmp_path: Path, use: str
) -> None:
    first, shifted, longer = packs
    assert relabelled.class_names == tuple(FIRST)
    text = f'class "rare" is number 3 in the selection {relabelled.path}, but 4 in '
    with pytest.raises(InvalidValueError, match=re.escape(text)):
        USES[use](relabelled, shifted, tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists()
    for number, pack in enumerate((first, longer)):
        USES[use](relabelled, pack, tmp_path / f"right-{number}")


def test_data_sets_of_others_are_asked_for_their_classes(
    packs: tuple[Pack, Pack, Pack], relabelled: Selection
) -> None:
    from datasets import ClassLabel, Dataset, Features, Value

    table = {"id": relabelled.ids, "label": relabelled.labels.tolist()}
    kinds = Features({"id": Value("string"), "label": ClassLabel(names=SHIFTED)})
    with pytest.raises(InvalidValueError, match="but 4 in the data set; number the classes"):
        relabelled.select(Dataset.from_dict(table, features=kinds))
    plain = dataclasses.replace(relabelled, new_labels=None)
    plain.apply(packs[1].dataset())  # nothing but ids is handed on
    unnamed = dataclasses.replace(relabelled, class_names=())
    assert len(unnamed.apply(packs[1].dataset())) == relabelled.kept


def test_selections_of_packs_in_another_order_are_not_combined(relabelled: Selection) -> None:
    other = dataclasses.replace(relabelled, class_names=tuple(SHIFTED), path=None)
    unnamed = dataclasses.replace(relabelled, class_names=())
    with pytest.raises(InvalidValueError, match=r"number 3 in .*, but 4 in the selection"):
        UnionFilter().fit(
            None, relabelled.labels, ids=relabelled.ids, selections=[unnamed, relabelled, other]
        )


def test_files_of_earlier_versions_are_read_and_get_names_with_the_first_label(
    packs: tuple[Pack, Pack, Pack], tmp_path: Path
) -> None:
    first, shifted, _ = packs
    path = tmp_path / "old.parquet"
    run_filter(RandomFilter(drop=0.1), first, out=path)
    sidecar = SelectionPaths(path).sidecar
    content = json.loads(sidecar.read_text())
    assert content.pop("class_names") == FIRST
    assert content["format"] == 1
    sidecar.write_text(json.dumps(content))
    assert Selection.load(path).class_names == ()
    view = SelectionView(path, shifted)
    view.decide(view.selection.ids[:1], False, "a decision without a label")
    assert Selection.load(path).class_names == ()
    view.decide(view.selection.ids[:1], True, "", 4)
    assert Selection.load(path).class_names == tuple(SHIFTED)
    with pytest.raises(InvalidValueError, match='class "rare" is number 4 in'):
        Selection.load(path).indices(first)

    content["class_names"] = "abc"
    sidecar.write_text(json.dumps(content))
    with pytest.raises(InvalidValueError, match="class_names must be a list of text"):
        Selection.load(path)


def test_an_appended_class_is_stored_when_a_person_gives_it(
    packs: tuple[Pack, Pack, Pack], relabelled: Selection
) -> None:
    longer = packs[2]
    view = SelectionView(Path(str(relabelled.path)), longer)
    view.decide(relabelled.ids[5:6], True, "", longer.classes.index("new"))
    loaded = Selection.load(str(relabelled.path))
    assert loaded.class_names == tuple(longer.classes)
    np.testing.assert_array_equal(loaded.labels_of(longer)[loaded.indices(longer)].max(), 4)
    written = FilterPreviewer(view).write(PreviewSettings(method="score", share=0.2), "next")
    assert Selection.load(written).class_names == tuple(longer.classes)


def test_every_writer_stores_the_names(packs: tuple[Pack, Pack, Pack], tmp_path: Path) -> None:
    flipped = flip_labels(packs[0], tmp_path / "flipped", FlipOptions(share=0.2))
    assert Selection.load(flipped.root / "flipped.parquet").class_names == tuple(FIRST)
