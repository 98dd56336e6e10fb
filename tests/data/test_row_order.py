"""A table whose rows another program sorted is used by id, and never by position."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import TensorDataset

from thresher.app.filter_preview import FilterPreviewer, PreviewSettings
from thresher.app.selection_view import SelectionView
from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.errors import InvalidValueError

SORTED = "no longer in pack order: another program changed its table"


@pytest.fixture
def pack(digits: Path) -> Pack:
    return Pack.open(digits)


@pytest.fixture
def table(pack: Pack, tmp_path: Path) -> Path:
    """A selection that drops every third sample, sorted by its score by another program."""
    train = pack.indices("train")
    random = np.random.default_rng(0)
    Selection(
        ids=pack.ids.take(train).to_pylist(),
        labels=pack.labels[train],
        keep=np.arange(len(train)) % 3 > 0,
        score=random.random(len(train)),
        reason=[""] * len(train),
        fingerprint=pack.fingerprint,
        meta={"data": str(pack.root), "method": "random"},
    ).save(tmp_path / "s.parquet")
    sort(tmp_path / "s.parquet")
    return tmp_path / "s.parquet"


def sort(path: Path) -> None:
    pq.write_table(pq.read_table(path).sort_by("score"), path)


def test_by_position_it_is_refused(table: Path, pack: Pack) -> None:
    selection, n = Selection.load(table), len(pack.indices("train"))
    with pytest.raises(InvalidValueError, match=SORTED):
        selection.apply(range(n), order="pack")
    labels = torch.from_numpy(pack.labels[pack.indices("train")])
    with pytest.raises(InvalidValueError, match=SORTED):
        selection.apply(TensorDataset(torch.zeros(n), labels))
    with pytest.raises(InvalidValueError, match=SORTED):  # the order of its epochs is by position
        selection.sampler(pack.dataset())


def test_by_id_the_same_samples_are_kept(table: Path, pack: Pack) -> None:
    selection, train = Selection.load(table), pack.indices("train")
    kept = train[np.arange(len(train)) % 3 > 0]
    assert np.array_equal(selection.indices(pack), kept)
    assert np.array_equal(train[selection.apply(pack.dataset()).indices], kept)


def test_a_copy_of_it_is_refused_too(table: Path, pack: Pack) -> None:
    Selection.load(table).save(table.with_name("copy.parquet"))
    page = FilterPreviewer(SelectionView(table, pack))
    page.write(PreviewSettings(method="score", share=0.1), "saved")
    for name in ("copy", "saved"):
        selection = Selection.load(table.with_name(f"{name}.parquet"))
        with pytest.raises(InvalidValueError, match=SORTED):
            selection.apply(range(len(selection.ids)), order="pack")


def test_files_without_the_digest_are_used_as_before(table: Path) -> None:
    sidecar = json.loads(table.with_suffix(".json").read_text())
    assert sidecar.pop("row_order")
    table.with_suffix(".json").write_text(json.dumps(sidecar))
    selection = Selection.load(table)
    assert len(selection.apply(range(len(selection.ids)), order="pack")) == selection.kept


def test_a_table_that_was_read_and_written_in_its_order_is_applied(pack: Pack, table: Path) -> None:
    ids = pack.ids.take(pack.indices("train")).to_pylist()
    rows = pq.read_table(table)
    at = {id: row for row, id in enumerate(rows.column("id").to_pylist())}
    pq.write_table(rows.take([at[id] for id in ids]), table)
    selection = Selection.load(table)
    kept = np.flatnonzero(np.arange(len(ids)) % 3 > 0).tolist()
    assert selection.apply(range(len(ids)), order="pack").indices == kept
