"""Rows by id."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from thresher.data.ids import read_id_list, rows_by_id, write_id_list
from thresher.errors import InvalidValueError
from thresher.models.features import Features
from thresher.select.filters.listed import ListFilter

AVAILABLE = ["b", "a", "c"]


@pytest.mark.parametrize(
    "available",
    [AVAILABLE, tuple(AVAILABLE), pa.array(AVAILABLE), pa.chunked_array([["b"], ["a", "c"]])],
)
def test_rows_follow_the_wanted_order_and_mark_the_missing(available: object) -> None:
    rows = rows_by_id(["c", "x", "b", "c"], available)
    assert rows.dtype == "int64"
    assert rows.tolist() == [2, -1, 0, 2]


def test_nothing_wanted_and_nothing_available() -> None:
    assert rows_by_id([], AVAILABLE).tolist() == []
    assert rows_by_id(["a"], []).tolist() == [-1]


def test_one_id_is_not_read_letter_by_letter() -> None:
    for one in ("abc", np.str_("abc")):
        with pytest.raises(InvalidValueError, match="must be a list of ids, got one: abc"):
            rows_by_id(one, AVAILABLE)
    with pytest.raises(InvalidValueError, match="ids must be text, got 3"):
        rows_by_id(["a", 3], AVAILABLE)


def test_a_list_of_ids_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Readers split ids at separators that are no line breaks, and cut spaces off."""
    ids = ["a\u2028b", "c\x85d", "e\x0cf", " begin", "end ", "plain", "é", "other", "last"]
    file, array = tmp_path / "x.ids.txt", tmp_path / "x.npy"
    write_id_list(file, ids[:7])
    assert read_id_list(file) == ids[:7]
    np.save(array, np.zeros((7, 2), np.float32))
    assert Features.open(array).ids == ids[:7]
    fitted = ListFilter(file=file).fit(None, [0] * 9, ids=ids)
    assert fitted.keep_.tolist() == [False] * 7 + [True] * 2
    assert not fitted.report_["missing"]
    for broken in ("a\nb", "a\rb"):
        with pytest.raises(InvalidValueError, match="has a line break"):
            write_id_list(file, ["a", broken])
