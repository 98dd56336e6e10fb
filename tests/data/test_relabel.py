"""A sample that a person gave another label is trained on, exported and handed on with it."""

import dataclasses
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from quick_tiny import _quick_tiny  # noqa: F401
from thresher import Pack, Selection, TrainConfig, analyse, train
from thresher.app.filter_preview import FilterPreviewer, PreviewSettings
from thresher.app.selection_view import SelectionView
from thresher.data.export import export
from thresher.data.overrides import OverrideLog
from thresher.data.sources.registry import open_source
from thresher.data.write import WriteOptions, write_pack
from thresher.errors import InvalidValueError, ThresherError
from thresher.paths import SelectionPaths
from thresher.select.filters.combine import UnionFilter
from thresher.select.filters.coverage import CoverageFilter
from thresher.select.run import FilterSources, run_filter
from thresher.study.study import Study
from thresher.training.split import split_samples


@pytest.fixture
def made(digits: Path, tmp_path: Path) -> tuple[Pack, Selection, OverrideLog]:
    pack = Pack.open(digits)
    train = pack.indices("train")
    selection = Selection(
        ids=pack.ids.take(train).to_pylist(),
        labels=pack.labels[train],
        keep=np.arange(len(train)) % 10 > 0,
        score=np.zeros(len(train), np.float32),
        reason=[""] * len(train),
        fingerprint=pack.fingerprint,
        meta={"method": "made", "data": str(digits)},
    ).save(tmp_path / "s.parquet")
    return pack, selection, OverrideLog(SelectionPaths(tmp_path / "s.parquet").overrides)


def relabel(made: tuple[Pack, Selection, OverrideLog], rows: list[int], label: int) -> Selection:
    _, selection, log = made
    by_id = dict(zip(selection.ids, selection.keep.tolist(), strict=True))
    samples = {selection.ids[row]: int(selection.labels[row]) for row in rows}
    log.relabel(samples, label, "looks like it", by_id)
    assert selection.path is not None
    return Selection.load(selection.path)


def test_the_log_holds_old_and_new_labels_and_undo_restores_them(made: Any) -> None:
    _, selection, log = made
    loaded = relabel(made, [0, 3], 7)
    assert loaded.keep[[0, 3]].all()  # 0 was dropped by the filter
    assert loaded.final_labels[[0, 3]].tolist() == [7, 7]
    assert np.array_equal(loaded.labels, selection.labels)
    again = relabel(made, [3], 2)
    assert again.final_labels[[0, 3]].tolist() == [7, 2]
    lines = [json.loads(line) for line in log.path.read_text().splitlines()]
    old = selection.labels[[0, 3]].tolist()
    assert [line["previous_labels"] for line in lines] == [old, [7]]
    assert [line["label"] for line in lines] == [7, 2]
    assert [line["format"] for line in lines] == [2, 2]
    by_id = dict(zip(selection.ids, selection.keep.tolist(), strict=True))
    log.undo(by_id)
    assert Selection.load(selection.path).final_labels[[0, 3]].tolist() == [7, 7]
    log.undo(by_id)
    restored = Selection.load(selection.path)
    assert not restored.relabelled.any()
    assert not restored.keep[0]
    log.redo(by_id)
    assert Selection.load(selection.path).final_labels[3] == 7


def test_a_later_decision_replaces_the_label(made: Any) -> None:
    _, selection, log = made
    relabel(made, [3], 7)
    log.decide([selection.ids[3]], False, "", [True])
    loaded = Selection.load(selection.path)
    assert not loaded.keep[3]
    assert not loaded.relabelled.any()


@pytest.mark.slow
def test_a_run_trains_on_the_new_labels(made: Any, tmp_path: Path) -> None:
    """With a new label for every sample, nothing but that label is learned."""
    pack, selection, _ = made
    relabel(made, list(range(len(selection.ids))), 4)
    config = TrainConfig(data=str(pack.root), out=str(tmp_path / "run"), epochs=2, batch_size=64)
    more = {"selection": str(selection.path), "record_dynamics": True}
    config = TrainConfig.from_dict({**config.to_dict(), **more})
    split = split_samples(config, pack)
    assert split.labels is not None
    assert set(split.labels[split.kept].tolist()) == {4}
    result = train(config, quiet=True)
    test = pack.labels[pack.indices("test")]
    assert result.accuracy == pytest.approx(float((test == 4).mean()))
    assert result.train_loss is not None
    assert result.train_loss < 0.2
    recorded = pq.read_table(tmp_path / "run" / "dynamics.parquet")
    assert set(recorded["label"].to_pylist()) == {4}  # which margins and errors belong to


@pytest.mark.slow  # a study of two arms
def test_a_study_compares_a_relabelled_arm_with_a_dropped_one(made: Any, tmp_path: Path) -> None:
    """The arm in which every sample has one label learns only that."""
    pack, dropped, _ = made
    relabelled = tmp_path / "relabelled.parquet"
    dropped.save(relabelled)
    rows = list(range(len(dropped.ids)))
    relabel(
        (pack, Selection.load(relabelled), OverrideLog(SelectionPaths(relabelled).overrides)),
        rows,
        4,
    )
    study = Study.from_dict(
        {
            "seeds": 2,
            "base": {
                "data": str(pack.root),
                "model": "tiny",
                "epochs": 2,
                "batch_size": 64,
                "device": "cpu",
            },
            "compare": "arm",
            "arms": {
                "dropped": {"selection": str(tmp_path / "s.parquet")},
                "relabelled": {"selection": str(relabelled)},
            },
        },
        tmp_path / "study",
    )
    assert study.run({"kind": "in-process"}).complete
    accuracies: dict[str, list[float]] = {"dropped": [], "relabelled": []}
    for trial in study.trials():
        accuracies[trial.cell["arm"]].append(trial.accuracy or 0)
    only = 100 * float((pack.labels[pack.indices("test")] == 4).mean())
    assert accuracies["relabelled"] == pytest.approx([only, only])
    assert min(accuracies["dropped"]) > 2 * only
    (verdict,) = analyse(study.root).verdicts
    assert (verdict.arm, verdict.baseline) == ("relabelled", "dropped")


@pytest.mark.slow
def test_a_run_is_not_resumed_with_other_decisions(made: Any, tmp_path: Path) -> None:
    pack, selection, log = made
    values = {"data": str(pack.root), "out": str(tmp_path / "run"), "epochs": 1}
    config = TrainConfig.from_dict({**values, "selection": str(selection.path), "resume": True})
    train(config, quiet=True)
    (tmp_path / "run" / "result.json").unlink()  # as if it had been killed
    first = train(config, quiet=True)
    assert train(config, quiet=True) == first
    relabel(made, [3], 7)
    with pytest.raises(InvalidValueError, match="begun on other samples or with other labels"):
        train(config, quiet=True)
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(InvalidValueError, match="begun on other samples or with other labels"):
        train(config, quiet=True)
    log.undo(dict(zip(selection.ids, selection.keep.tolist(), strict=True)))
    assert train(config, quiet=True).status == "finished"


def test_a_run_does_not_branch_from_one_with_other_decisions(made: Any, tmp_path: Path) -> None:
    pack, selection, _ = made
    values = {"data": str(pack.root), "selection": str(selection.path)}
    first = {**values, "out": str(tmp_path / "run"), "epochs": 1, "keep_checkpoint": True}
    train(TrainConfig.from_dict(first), quiet=True)
    relabel(made, [3], 7)
    branch = {**values, "out": str(tmp_path / "branch"), "branch_from": first["out"], "epochs": 2}
    with pytest.raises(InvalidValueError, match="run was begun on other samples or with other"):
        train(TrainConfig.from_dict(branch), quiet=True)
    assert not (tmp_path / "branch" / "run.json").exists()


class Item(NamedTuple):
    image: float
    label: int


@pytest.mark.parametrize("kind", ["tensors", "named"])
def test_batches_of_a_data_set_of_ones_own_hold_the_new_labels(made: Any, kind: str) -> None:
    loaded = relabel(made, [2, 5, 11], 7)
    labels = torch.from_numpy(loaded.labels)
    dataset: Any = TensorDataset(torch.zeros(len(labels)), labels)
    if kind == "named":
        items = [Item(0.0, label) for label in labels.tolist()]
        loader = DataLoader(loaded.apply(items, order="pack"), 16)
    else:
        loader = DataLoader(loaded.apply(dataset), 16)
    seen = torch.cat([batch[1] for batch in loader])
    assert seen.tolist() == loaded.final_labels[loaded.keep].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("format", ["folder", "webdataset"])
def test_an_export_holds_the_new_labels(made: Any, tmp_path: Path, format: str) -> None:
    pack, selection, _ = made
    loaded = relabel(made, [3], 8)
    export(pack, tmp_path / "out", format, loaded)
    again = write_pack(
        open_source(str(tmp_path / "out")), tmp_path / "again", WriteOptions(processes=1)
    )
    labels = dict(zip(again.ids.to_pylist(), again.labels.tolist(), strict=True))
    assert labels[selection.ids[3]] == 8
    assert labels[selection.ids[4]] == selection.labels[4]
    uses: tuple[Callable[[], Any], ...] = (
        lambda: loaded.indices(again),
        lambda: export(again, tmp_path / "twice", format, loaded),
        lambda: SelectionView(Path(str(selection.path)), again),
    )
    for use in uses:  # it says what to do, and not only that the fingerprint is another one
        with pytest.raises(InvalidValueError, match="has been applied to digits already"):
            use()
    dropped = dataclasses.replace(loaded, keep=~loaded.keep)
    with pytest.raises(InvalidValueError, match="was made on a pack with the fingerprint"):
        dropped.indices(again)
    kept = loaded.apply(again.dataset())
    with pytest.raises(InvalidValueError, match="if it has been applied to the data set already"):
        [kept[row] for row in range(len(kept))]


def test_data_sets_of_others_get_the_new_labels(made: Any) -> None:
    from datasets import ClassLabel, Dataset, Features, Value

    pack, selection, _ = made
    loaded = relabel(made, [3], 8)
    kept = loaded.apply(pack.dataset())
    number = np.flatnonzero(loaded.keep).tolist().index(3)
    assert [kept[n][1] for n in (number - 1, number)] == [int(selection.labels[2]), 8]
    rows = (np.int64(number), torch.tensor(number), number - len(kept))
    assert [kept[row][1] for row in rows] == [8, 8, 8]
    assert [label for _, label in kept[number : number + 1]] == [8]
    batches = DataLoader(kept, batch_size=64)
    seen = torch.cat([labels for _, labels in batches]).tolist()
    assert seen == loaded.final_labels[loaded.keep].tolist()
    names = Features({"id": Value("string"), "label": ClassLabel(names=pack.classes)})
    table = {"id": selection.ids, "label": selection.labels.tolist()}
    chosen = loaded.select(Dataset.from_dict(table, features=names))
    assert chosen["label"] == loaded.final_labels[loaded.keep].tolist()
    assert chosen.features["label"].names == pack.classes
    prepared = Dataset.from_dict(table, features=names).with_transform(
        lambda rows: {"twice": [2 * label for label in rows["label"]]}
    )
    assert loaded.select(prepared)[number] == {"twice": 16}


def test_the_column_that_a_pack_takes_gets_the_new_labels(made: Any) -> None:
    """A column of classes comes before one that is called label."""
    from datasets import ClassLabel, Dataset, Features, Value

    pack, selection, _ = made
    loaded = relabel(made, [3], 8)
    columns = {
        "id": selection.ids,
        "label": [f"text {id}" for id in selection.ids],
        "category": selection.labels.tolist(),
    }
    text = Value("string")
    kinds = Features({"id": text, "label": text, "category": ClassLabel(names=pack.classes)})
    data = Dataset.from_dict(columns, features=kinds)
    assert loaded.select(data)["category"] == loaded.final_labels[loaded.keep].tolist()
    with pytest.raises(ThresherError, match=r"is not a number: 'text .*'"):
        loaded.select(data.remove_columns("category"))


def test_labels_that_cannot_be_handed_on_are_refused_or_named(
    made: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pack, selection, _ = made
    loaded = relabel(made, [3], 8)
    number = np.flatnonzero(loaded.keep).tolist().index(3)
    bare = loaded.apply([torch.zeros(1)] * len(selection.ids), order="pack")
    with pytest.raises(InvalidValueError, match=r"items are not \(image, label\)"):
        bare[number]
    other = [(0, (int(label) + 1) % 10) for label in selection.labels]
    with pytest.raises(InvalidValueError, match="number the classes as the pack does"):
        loaded.apply(other, order="pack")[number]
    with caplog.at_level(logging.WARNING):
        loaded.export(tmp_path / "kept.npy", pack)
        loaded.sampler(pack.dataset())
        assert loaded.keeps(selection.ids[3])
    assert caplog.text.count("1 sample has a new label, which") == 3


def test_a_sampler_of_what_apply_returns_gives_the_new_labels(
    made: Any, caplog: pytest.LogCaptureFixture
) -> None:
    pack, _, _ = made
    loaded = relabel(made, [2, 5, 11], 7)
    kept = loaded.apply(pack.dataset())
    sampler = loaded.sampler(kept)
    assert "new labels" not in caplog.text
    seen = torch.cat([labels for _, labels in DataLoader(kept, 16, sampler=sampler)])
    rows = list(loaded.sampler(pack.dataset()))
    assert seen.tolist() == loaded.final_labels[rows].tolist()


def test_keep_may_be_zeros_and_ones(made: Any) -> None:
    pack, selection, _ = made
    for keep in (selection.keep.astype(int), selection.keep.tolist()):
        numbers = dataclasses.replace(selection, keep=keep)
        np.testing.assert_array_equal(numbers.indices(pack), selection.indices(pack))
        assert numbers.digest == selection.digest
        union = UnionFilter().fit(
            None, selection.labels, ids=selection.ids, selections=[numbers, numbers]
        )
        np.testing.assert_array_equal(union.keep_, selection.keep)


def test_other_labels_are_those_of_the_pack(made: Any) -> None:
    """A table that another program wrote may hold anything in its column `label`."""
    pack, _, _ = made
    loaded = relabel(made, [3], 8)
    loaded.labels[:] = 0
    expected = pack.labels.copy()
    expected[pack.positions([loaded.ids[3]])] = 8
    np.testing.assert_array_equal(loaded.labels_of(pack), expected)


def test_a_class_that_does_not_exist_is_refused(made: Any, tmp_path: Path) -> None:
    pack, selection, _ = made
    loaded = relabel(made, [3], 10)
    with pytest.raises(ThresherError, match="class number 10, but digits has 10 classes"):
        loaded.labels_of(pack)
    config = TrainConfig(
        data=str(pack.root), out=str(tmp_path / "run"), selection=str(selection.path)
    )
    with pytest.raises(ThresherError, match="undo that decision"):
        train(config, quiet=True)


def test_training_samples_that_a_selection_does_not_name_are_mentioned(
    made: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As after packing again with a smaller test split, which keeps the fingerprint."""
    pack, selection, _ = made
    some = Selection(
        ids=selection.ids[:-20],
        labels=selection.labels[:-20],
        keep=selection.keep[:-20],
        score=selection.score[:-20],
        reason=selection.reason[:-20],
        fingerprint=selection.fingerprint,
    ).save(tmp_path / "some.parquet")
    out, data = str(tmp_path / "run"), str(pack.root)
    config = TrainConfig(
        data=data, out=out, selection=str(some.path), model="tiny", epochs=1, batch_size=512
    )
    train(config, quiet=True)
    assert "20 training samples are left out because the selection" in caplog.text
    whole = dataclasses.replace(config, selection=str(selection.path))
    assert split_samples(whole, pack).unnamed == 0


@pytest.mark.slow
def test_a_class_that_a_selection_drops_whole_is_mentioned(
    made: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its test images count as wrong, and other readers number the folders of an export anew."""
    pack, selection, _ = made
    dataclasses.replace(selection, keep=selection.labels != 3).save(tmp_path / "no3.parquet")
    data, out = str(pack.root), str(tmp_path / "run")
    config = TrainConfig(data=data, out=out, model="tiny", epochs=0.1, batch_size=512)
    text = '1 of 10 classes have images in other splits, but none for training, such as "3"'
    train(config, quiet=True)
    export(pack, tmp_path / "a", "folder", selection)
    assert text not in caplog.text
    no3 = str(tmp_path / "no3.parquet")
    train(dataclasses.replace(config, out=f"{out}3", selection=no3), quiet=True)
    assert caplog.text.count(text) == 1
    export(pack, tmp_path / "b", "folder", Selection.load(no3))
    assert caplog.text.count(text) == 2


def test_a_selection_by_the_scores_of_another_keeps_its_labels(made: Any) -> None:
    pack, selection, _ = made
    relabel(made, [3], 8)
    spread = run_filter(
        CoverageFilter(drop=0.0), pack, FilterSources(selections=(Path(str(selection.path)),))
    )
    assert spread.final_labels[3] == 8
    assert spread.relabelled.sum() == 1


def test_combined_selections_keep_the_labels(made: Any, tmp_path: Path) -> None:
    pack, selection, _ = made
    loaded = relabel(made, [3], 8)
    plain = Selection.load(selection.path, overrides=False)
    rule = UnionFilter().fit(None, loaded.labels, ids=loaded.ids, selections=[plain, loaded])
    assert rule.new_labels_ is not None
    assert rule.new_labels_[3] == 8
    both = [tmp_path / "a.parquet", Path(str(selection.path))]
    plain.save(both[0])
    combined = run_filter(UnionFilter(), pack, FilterSources(selections=tuple(both)))
    stored = Selection.load(combined.save(tmp_path / "c.parquet").path or "")
    assert stored.final_labels[3] == 8
    view = SelectionView(tmp_path / "c.parquet", pack)
    shown = view.state().labels
    assert shown is not None
    assert np.flatnonzero(shown >= 0).tolist() == [3]
    saved = FilterPreviewer(view).write(PreviewSettings(method="score", share=0.1), "saved")
    assert Selection.load(saved).final_labels[3] == 8
    view.decide([loaded.ids[3]], keep=True, reason="")  # with the label of the pack
    shown = view.state().labels
    assert shown is not None
    assert shown[3] == -1
    assert not Selection.load(tmp_path / "c.parquet").relabelled.any()
