"""Selections of samples that somebody listed."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from thresher import ListFilter, Selection, ThresherError

IDS = [f"s/{n}" for n in range(6)]
LABELS = [0, 0, 0, 1, 1, 1]


def _fit(**options: object) -> ListFilter:
    return ListFilter(**options).fit(None, LABELS, ids=IDS)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(6,), (6, 1)])
@pytest.mark.parametrize("kind", ["S", "U"])
def test_ids_of_samples_may_be_bytes_or_a_column(shape: tuple[int, ...], kind: str) -> None:
    """They were called "b's/0'" or "['s/0']", so that no list named any of them."""
    ids: Any = np.array(IDS, kind).reshape(shape)
    fitted = ListFilter(ids=("s/1",)).fit(None, LABELS, ids=ids)
    assert fitted.keep_.tolist() == [True, False, True, True, True, True]


def _written(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("list.txt", "s/4\ns/1\r\n\n  s/4  \n"),
        ("list.ids", "\ufeffs/1\ns/4"),
        ("list.csv", "reason,id\n,s/1\n,s/4\n"),
        ("list.csv", "reason;id\n;s/1\n;s/4\n"),
        ("list.csv", "\ufeffReason;ID\r\n;s/1\r\n;s/4\r\n"),
        ("list.TSV", "id\tlabel\ns/4\t1\ns/1\t0\n"),
    ],
)
def test_listed_samples_are_dropped_or_kept(tmp_path: Path, name: str, content: str) -> None:
    file = _written(tmp_path / name, content)
    dropped = _fit(file=file)
    assert [id for id, keep in zip(IDS, dropped.keep_, strict=True) if not keep] == ["s/1", "s/4"]
    assert dropped.reason_ == ["", "listed", "", "", "listed", ""]
    kept = _fit(file=file, keep=True)
    assert (kept.keep_ == ~dropped.keep_).all()
    assert kept.reason_[0] == "not listed"
    assert kept.reason_[1] == ""
    assert not dropped.warnings_


def test_tables_have_scores_and_reasons(tmp_path: Path) -> None:
    rows = {"id": ["s/2", "s/3"], "score": [0.25, None], "reason": ["blurred", None]}
    pq.write_table(pa.table(rows), tmp_path / "list.parquet")
    fitted = _fit(file=tmp_path / "list.parquet")
    assert fitted.score_.tolist() == [0, 0, 0.25, 1, 0, 0]
    assert fitted.reason_ == ["", "", "blurred", "listed", "", ""]


def test_numbers_of_a_table_may_be_ids(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [0, 2]}), tmp_path / "list.parquet")
    fitted = ListFilter(file=tmp_path / "list.parquet").fit(None, [0, 0, 1])
    assert fitted.keep_.tolist() == [False, True, False]


def test_a_few_ids_of_other_samples_are_ignored_and_mentioned() -> None:
    fitted = _fit(ids=("s/0", "test/9"))
    assert fitted.keep_.tolist() == [False, *[True] * 5]
    assert fitted.warnings_ == ["1 of 2 listed ids are not training samples and are ignored"]
    assert fitted.report_ == {"listed": 2, "missing": 1}


def test_a_list_of_other_data_is_refused() -> None:
    with pytest.raises(ThresherError, match=r'2 of 3 listed ids .* "a"; its ids look like "s/0"'):
        _fit(ids=("a", "s/0", "b"))


def test_the_table_of_a_selection_is_no_list(tmp_path: Path) -> None:
    """Its rows are all samples, kept or not; those that it drops are a list."""
    rows = {"id": IDS, "keep": [True, True, False, True, True, False]}
    pq.write_table(pa.table(rows), tmp_path / "all.parquet")
    with pytest.raises(ThresherError, match=r"row 1 of .* has keep = True, but .* be dropped"):
        _fit(file=tmp_path / "all.parquet")
    with pytest.raises(ThresherError, match=r"row 3 of .* has keep = False, but .* be kept"):
        _fit(file=tmp_path / "all.parquet", keep=True)
    dropped = _written(tmp_path / "dropped.csv", "id,keep\ns/2,False\ns/5,False\n")
    assert _fit(file=dropped).keep_.tolist() == rows["keep"]
    with pytest.raises(ThresherError, match="names every training sample"):
        _fit(file=_written(tmp_path / "all.csv", "id,is_issue\n" + ",1\n".join([*IDS, ""])))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.txt", "\n \n", "is empty"),
        ("x.csv", "id\n", "is empty"),
        ("x.csv", "name\ns/1\n", "has no column id, but name"),
        ("x.csv", "id,score\ns/1,high\n", "score in row 1 .* must be a number, got high"),
        ("x.csv", "id,score\ns/1,nan\n", "score in row 1 .* must be a number, got nan"),
        ("x.csv", "id,score\n,1\n", "row 1 .* has no id"),
        ("x.csv", "id,score\ns/1,0,5\n", "line 2 .* has 3 values, but the header has 2"),
        ("x.parquet", "id\ns/1\n", "is not a Parquet file"),
    ],
)
def test_a_bad_list_is_refused(tmp_path: Path, name: str, content: str, message: str) -> None:
    with pytest.raises(ThresherError, match=message):
        _fit(file=_written(tmp_path / name, content))


def test_text_that_is_not_utf8_and_no_list_at_all(tmp_path: Path) -> None:
    for name in ("x.txt", "x.csv"):
        (tmp_path / name).write_bytes(b"id\n\xff\xfe\n")
        with pytest.raises(ThresherError, match=r"is not (UTF-8 text|a CSV file)"):
            _fit(file=tmp_path / name)
    with pytest.raises(ThresherError, match="does not exist"):
        _fit(file=tmp_path / "none.txt")
    for options in ({}, {"ids": ("s/1",), "file": tmp_path / "x.txt"}):
        with pytest.raises(ThresherError, match="name a file with ids or give `ids`"):
            _fit(**options)


def test_an_exported_list_gives_the_same_selection(
    thresher: Callable[..., subprocess.CompletedProcess[str]], digits: Path, tmp_path: Path
) -> None:
    common = ("--data", digits, "--out")
    first, again = tmp_path / "first.parquet", tmp_path / "again.parquet"
    kept = tmp_path / "kept.txt"
    assert not thresher("select", "random", *common, first, "--export", kept).returncode
    assert not thresher("select", "list", kept, "--keep", *common, again).returncode
    assert Selection.load(first).digest == Selection.load(again).digest
