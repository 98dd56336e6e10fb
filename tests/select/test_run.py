"""run_filter: from files to a selection, with an honest record of where it came from."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from planted import ArraySource
from thresher.data.digest import file_sha256
from thresher.data.ids import rows_by_id
from thresher.data.overrides import OverrideLog
from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.data.split import HoldOut
from thresher.data.write import write_pack
from thresher.errors import AlreadyExistsError, InvalidValueError, NotFoundError
from thresher.models import weights
from thresher.models.features import Features
from thresher.models.registry import build
from thresher.paths import SelectionPaths, write_json
from thresher.select.filters.dynamics import EL2NFilter
from thresher.select.filters.near_duplicates import NearDuplicatesFilter
from thresher.select.filters.random import RandomFilter
from thresher.select.inputs import FilterSources
from thresher.select.run import open_features, run_filter, training_inputs, with_features


@pytest.fixture
def run(tmp_path: Path, digits: Path) -> Path:
    """A run's folder with an untrained network."""
    torch.manual_seed(0)
    weights.save(build("tiny", 10, 1), tmp_path / "run" / "model.safetensors")
    data = {"fingerprint": Pack.open(digits).fingerprint}
    write_json(tmp_path / "run" / "run.json", {"config": {"model": "tiny"}, "data": data})
    return tmp_path / "run"


def test_the_sidecar_names_the_features_that_were_used(digits: Path, run: Path) -> None:
    """Also after the run was trained again, when the first features are stale."""
    pack, sources = Pack.open(digits), FilterSources(run=run)
    for seed in (0, 1):
        torch.manual_seed(seed)
        weights.save(build("tiny", 10, 1), run / "model.safetensors")
        selection = run_filter(NearDuplicatesFilter(), pack, sources)
        assert selection.meta["network"] == "tiny"
        assert selection.meta["run"] == str(run)
        used = Features.open(selection.meta["features"])
        assert used.meta.sha256 == file_sha256(run / "model.safetensors")


def test_a_selection_is_saved_and_never_overwritten(digits: Path, tmp_path: Path) -> None:
    pack, out = Pack.open(digits), tmp_path / "s.parquet"
    made = run_filter(RandomFilter(drop=0.1), pack, out=out)
    assert made.path == out
    loaded = Selection.load(out)
    np.testing.assert_array_equal(loaded.keep, made.keep)
    assert loaded.meta["settings"] == {"drop": 0.1, "per_class": False, "seed": 0}
    with pytest.raises(AlreadyExistsError, match="exists already"):
        run_filter(RandomFilter(), pack, out=out)
    with pytest.raises(InvalidValueError, match=r"out must end in \.parquet, got s\.csv"):
        run_filter(RandomFilter(), pack, out=Path("s.csv"))


def test_missing_inputs_are_named(digits: Path, tmp_path: Path, run: Path) -> None:
    pack = Pack.open(digits)
    with pytest.raises(InvalidValueError, match="give either `run` or `features`"):
        run_filter(NearDuplicatesFilter(), pack)
    with pytest.raises(NotFoundError, match="there is no run at"):
        run_filter(NearDuplicatesFilter(), pack, FilterSources(run=tmp_path / "none"))
    both = FilterSources(run=run, features=run)
    with pytest.raises(InvalidValueError, match="run and `features` exclude each other"):
        run_filter(NearDuplicatesFilter(), pack, both)


def test_el2n_of_checkpoints_is_the_error_of_each_network_without_augmentation(
    digits: Path, run: Path, tmp_path: Path
) -> None:
    pack = Pack.open(digits)
    torch.manual_seed(1)
    other = tmp_path / "other"
    weights.save(build("tiny", 10, 1), other / "model.safetensors")
    trained = run_filter(RandomFilter(drop=0.2), pack, out=tmp_path / "trained.parquet")
    config = {"model": "tiny", "validation": 0.1, "split_seed": 4, "selection": str(trained.path)}
    write_json(other / "run.json", {"config": config, "data": {"fingerprint": pack.fingerprint}})
    train = pack.indices("train")
    held = HoldOut(0.1, 4).mask(pack)
    errors = []
    for folder in (run, other):
        selection = run_filter(EL2NFilter(checkpoint=True), pack, FilterSources(run=folder))
        features = open_features(folder, pack)
        assert features.probabilities is not None
        p = features.probabilities[rows_by_id(selection.ids, features.ids)]
        errors.append(np.linalg.norm(p - np.eye(10)[pack.labels[train]], axis=1))
    errors[1][held | ~trained.keep] = np.nan
    both = run_filter(EL2NFilter(checkpoint=True), pack, FilterSources(run=run, also=(other,)))
    np.testing.assert_allclose(both.score, np.nanmean(errors, axis=0), atol=1e-4)
    assert both.meta["runs"] == 2


def test_new_labels_that_a_run_was_trained_with_are_mentioned(
    digits: Path, run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The selection would be trained on with the labels of the pack, without a word."""
    pack, used = Pack.open(digits), tmp_path / "used.parquet"
    made = run_filter(RandomFilter(drop=0.1), pack, out=used)
    config = {"model": "tiny", "selection": str(used)}
    write_json(run / "run.json", {"config": config, "data": {"fingerprint": pack.fingerprint}})
    run_filter(NearDuplicatesFilter(), pack, FilterSources(run=run))
    assert "new label" not in caplog.text
    row = int(np.flatnonzero(made.keep)[0])
    sample = {made.ids[row]: int(made.labels[row])}
    log = OverrideLog(SelectionPaths(used).overrides)
    log.relabel(sample, 7, "", dict(zip(made.ids, map(bool, made.keep), strict=True)))
    selection = run_filter(NearDuplicatesFilter(), pack, FilterSources(run=run))
    assert f"trained on {used}, which now has 1 new label that the selection" in caplog.text
    assert not selection.relabelled.any()


def test_what_is_said_of_new_labels_does_not_need_the_selection_of_the_run(
    digits: Path, run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be damaged, or of other data, to which its labels belong."""
    pack, used = Pack.open(digits), tmp_path / "used.parquet"
    made = run_filter(RandomFilter(drop=0.1), pack)
    made.fingerprint = "0" * 32
    made.new_labels = np.where(np.arange(len(made.ids)) == 3, 7, -1)
    assert made.save(used).relabelled.any()
    write_json(run / "run.json", {"config": {"model": "tiny", "selection": str(used)}})
    run_filter(NearDuplicatesFilter(), pack, FilterSources(run=run))
    used.write_bytes(b"damaged")
    run_filter(NearDuplicatesFilter(), pack, FilterSources(run=run))
    assert "new label" not in caplog.text


def test_what_a_run_held_out_does_not_depend_on_the_order_of_the_pack(
    digits: Path, run: Path, tmp_path: Path
) -> None:
    pack = Pack.open(digits)
    order = np.random.default_rng(0).permutation(len(pack))
    ids, splits = pack.ids.take(order).to_pylist(), pack.splits.take(order).to_pylist()
    source = ArraySource(pack.images(order), pack.labels[order], splits, ids, pack.classes)
    again = write_pack(source, tmp_path / "again")
    config = {"model": "tiny", "validation": 0.1, "data": str(digits)}
    write_json(run / "run.json", {"config": config, "data": {"fingerprint": pack.fingerprint}})
    first, second = (
        run_filter(EL2NFilter(checkpoint=True), one, FilterSources(run=run))
        for one in (pack, again)
    )
    rows = rows_by_id(first.ids, second.ids)
    np.testing.assert_array_equal(first.keep, second.keep[rows])
    np.testing.assert_array_equal(first.score, second.score[rows])


def test_rows_that_follow_each_other_stay_a_memory_map(digits: Path, tmp_path: Path) -> None:
    pack = Pack.open(digits)
    train, test = pack.indices("train"), pack.indices("test")
    order = np.concatenate([test[:3], train, test[3:]])
    pixels = pack.images(order).reshape(len(order), -1).astype(np.float16)
    np.save(tmp_path / "f.npy", pixels)
    features = Features.from_array(tmp_path / "f.npy", pack.ids.take(order).to_pylist())
    features = replace(features, probabilities=features.array[:, :10])
    inputs = with_features(training_inputs(pack), features, pack)
    for part in (inputs, inputs.take(np.arange(len(train))), inputs.take(np.arange(5, 90))):
        for own, whole in (
            (part.features, features.array),
            (part.probabilities, features.probabilities),
        ):
            assert own is not None
            assert whole is not None
            assert np.shares_memory(own, whole)
            begin = 3 + (5 if len(part) == 85 else 0)
            np.testing.assert_array_equal(own, whole[begin : begin + len(part)])
    held = with_features(training_inputs(pack, HoldOut(0.1)), features, pack)
    rows = rows_by_id(held.ids, features.ids)
    np.testing.assert_array_equal(held.need_features(), pixels[rows])
    for some in ([4, 3, 2], [1, 2, 4], [7], []):
        taken = inputs.take(np.array(some, int)).need_features()
        np.testing.assert_array_equal(taken, pixels[3:][np.array(some, int)])


def test_features_whose_labels_are_those_of_other_rows_are_mentioned(
    digits: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pack = Pack.open(digits)
    train = pack.indices("train")
    labels, columns = pack.labels[train], {"id": pack.ids.take(train)}
    columns["x"] = pa.array(np.arange(len(train), dtype=np.float32))
    named = [pack.classes[label] for label in labels]
    for own, differ in ((labels, 0), (np.roll(labels, 1), (np.roll(labels, 1) != labels).sum())):
        caplog.clear()
        pq.write_table(pa.table({**columns, "label": own}), tmp_path / "f.parquet")
        with_features(training_inputs(pack), Features.open(tmp_path / "f.parquet"), pack)
        messages = [record.getMessage() for record in caplog.records]
        assert len(messages) == bool(differ)
        assert not differ or messages[0].startswith(f"{differ:,} labels differ between ")
    caplog.clear()
    pq.write_table(pa.table({**columns, "label": named[::-1]}), tmp_path / "f.parquet")
    with_features(training_inputs(pack), Features.open(tmp_path / "f.parquet"), pack)
    assert not caplog.records  # names may be other words for the same classes
