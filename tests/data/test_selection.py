"""Selections: what is saved comes back, and damaged files are named."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from thresher.data import selection_file
from thresher.data.selection import Selection
from thresher.errors import AlreadyExistsError, InvalidValueError, NotFoundError
from thresher.paths import write_json

N = 4


def made(**changes: Any) -> Selection:
    values: dict[str, Any] = {
        "ids": [f"s{n}" for n in range(N)],
        "labels": np.array([0, 1, 0, 1]),
        "keep": np.array([True, False, True, True]),
        "score": np.array([0.1, 0.9, 0.2, 0.3], np.float32),
        "reason": ["", "noise", "", ""],
        "fingerprint": "f" * 32,
        "meta": {"method": "network", "settings": {"drop": 0.25}},
    }
    return Selection(**{**values, **changes})


@pytest.mark.parametrize("name", ["keep", "labels", "score", "reason", "new_labels"])
def test_arrays_have_one_value_for_each_id(name: str) -> None:
    """A mask over all samples of a pack would be read as one over the training samples."""
    values = ["", ""] if name == "reason" else np.zeros(6, int)
    with pytest.raises(InvalidValueError, match=rf"{name} has \d values for 4 ids"):
        made(**{name: values})
    assert made(labels=[0, 1, 0, 1]).digest == made().digest


@pytest.mark.parametrize("full", [False, True])
def test_saved_and_loaded(tmp_path: Path, full: bool) -> None:
    more: dict[str, Any] = {}
    if full:
        more = {"x": np.arange(N), "y": np.arange(N) / 2, "cluster": np.array([0, -1, 0, 1])}
        more["votes"] = np.array([0, 1, 0.5, 0], np.float32)
        more["suggested"] = np.array([-1, 2, -1, 0])
    saved = made(**more).save(tmp_path / "s.parquet")
    loaded = Selection.load(tmp_path / "s.parquet")
    assert (loaded.ids, loaded.reason, loaded.meta) == (saved.ids, saved.reason, saved.meta)
    assert loaded.keep.tolist() == saved.keep.tolist()
    assert (loaded.labels.dtype, loaded.keep.dtype) == (np.int64, np.bool_)
    assert loaded.score.tolist() == saved.score.tolist()
    assert (loaded.kept, loaded.dropped) == (3, 1)
    assert loaded.x is not None
    assert loaded.cluster is not None
    if full:
        assert loaded.x.tolist() == [0, 1, 2, 3]
        assert loaded.cluster.tolist() == [0, -1, 0, 1]
        assert loaded.votes is not None
        assert loaded.suggested is not None
        assert loaded.suggested.tolist() == [-1, 2, -1, 0]
    else:
        assert np.isnan(loaded.x).all()
        assert loaded.cluster.tolist() == [-2] * N
        assert loaded.votes is None
        assert loaded.suggested is None


def test_the_sidecar_has_a_format_version(tmp_path: Path) -> None:
    saved = made(meta={"method": "network", "format": "jpeg"}).save(tmp_path / "s.parquet")
    sidecar = tmp_path / "s.json"
    content = json.loads(sidecar.read_text())
    assert content["format"] == 1
    del content["format"]  # as written before versions were stored
    sidecar.write_text(json.dumps(content))
    assert Selection.load(tmp_path / "s.parquet").ids == saved.ids
    sidecar.write_text(json.dumps({**content, "format": 2}))
    newer = (
        r"s\.json was written by a newer version of Thresher \(format 2, this one reads up to 1\)"
    )
    with pytest.raises(InvalidValueError, match=f"{newer}; upgrade Thresher"):
        Selection.load(tmp_path / "s.parquet")
    sidecar.write_text(json.dumps({**content, "format": "x"}))
    with pytest.raises(InvalidValueError, match=r"s\.json: format must be .*, got 'x'"):
        Selection.load(tmp_path / "s.parquet")


def test_tables_of_other_tools_are_read(tmp_path: Path) -> None:
    """They write wider types."""
    made().save(tmp_path / "s.parquet")
    table = pq.read_table(tmp_path / "s.parquet")
    wide = {"id": pa.large_string(), "label": pa.int64(), "score": pa.float64()}
    for name, kind in wide.items():
        at = table.column_names.index(name)
        table = table.set_column(at, name, table.column(name).cast(kind))
    pq.write_table(table, tmp_path / "s.parquet")
    loaded = Selection.load(tmp_path / "s.parquet")
    assert loaded.ids == ["s0", "s1", "s2", "s3"]
    assert loaded.score.dtype == np.float32


@pytest.mark.parametrize(
    ("column", "values", "why"),
    [
        ("keep", ["true", "false", "true", "true"], "string instead of bool"),
        ("keep", [True, None, True, True], "missing values"),
        ("keep", [1, 0, 1, 1], "int64 instead of bool"),
        ("id", [1, 2, 3, 4], "int64 instead of string"),
        ("id", ["a", "b", None, "d"], "missing values"),
        ("id", ["a", "b", "b", "d"], "repeated values"),
        ("label", [0.0, 1.0, 0.5, 1.0], "double instead of int32"),
        ("label", [0, 1, 2**40, 1], "not in range"),
        ("score", ["a", "b", "c", "d"], "string instead of float"),
        ("reason", [1, 2, 3, 4], "int64 instead of string"),
    ],
)
def test_a_wrong_column_is_named(tmp_path: Path, column: str, values: list[Any], why: str) -> None:
    made().save(tmp_path / "s.parquet")
    table = pq.read_table(tmp_path / "s.parquet")
    at = table.column_names.index(column)
    pq.write_table(table.set_column(at, column, pa.array(values)), tmp_path / "s.parquet")
    with pytest.raises(InvalidValueError, match=f'its column "{column}" is wrong .*{why}'):
        Selection.load(tmp_path / "s.parquet")
    pq.write_table(table.drop_columns([column]), tmp_path / "s.parquet")
    with pytest.raises(InvalidValueError, match=f"it has no column {column}"):
        Selection.load(tmp_path / "s.parquet")


@pytest.mark.parametrize(
    "text", ["[]", "null", "3", "{}", '{"fingerprint": null}', "{", "[" * 9999]
)
def test_a_wrong_sidecar_is_named(tmp_path: Path, text: str) -> None:
    made().save(tmp_path / "s.parquet")
    (tmp_path / "s.json").write_text(text)
    with pytest.raises(InvalidValueError, match=r"s\.json is not"):
        Selection.load(tmp_path / "s.parquet")


def test_missing_and_foreign_files(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no selection at"):
        Selection.load(tmp_path / "s.parquet")
    (tmp_path / "s.parquet").write_bytes(b"no table")
    with pytest.raises(InvalidValueError, match="is not a Parquet file"):
        Selection.load(tmp_path / "s.parquet")
    with pytest.raises(InvalidValueError, match=r"must end in \.parquet"):
        made().save(tmp_path / "s.csv")


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    made().save(tmp_path / "s.parquet")
    with pytest.raises(AlreadyExistsError, match=r"s\.parquet exists already"):
        made().save(tmp_path / "s.parquet")
    (tmp_path / "notes.json").write_text('{"mine": 1}')
    with pytest.raises(AlreadyExistsError, match=r"notes\.json exists already"):
        made().save(tmp_path / "notes.parquet")
    assert json.loads((tmp_path / "notes.json").read_text()) == {"mine": 1}


def test_of_two_that_are_saved_at_once_one_is_kept_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(path: Path, value: Any) -> None:
        time.sleep(0.05)  # the other one sees that there is no table yet
        write_json(path, value)

    monkeypatch.setattr(selection_file, "write_json", slow)

    def save(method: str) -> str:
        try:
            made(reason=[method] * N, meta={"method": method}).save(tmp_path / "new" / "s.parquet")
        except AlreadyExistsError:
            return ""
        return method

    with ThreadPoolExecutor() as pool:
        saved = "".join(pool.map(save, "ab"))
    kept = Selection.load(tmp_path / "new" / "s.parquet")
    assert (kept.meta["method"], kept.reason[0]) == (saved, saved)


def test_a_sidecar_that_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    made().save(tmp_path / "s.parquet")
    (tmp_path / "s.parquet").unlink()
    made(fingerprint="e" * 32).save(tmp_path / "s.parquet")
    assert Selection.load(tmp_path / "s.parquet").fingerprint == "e" * 32
