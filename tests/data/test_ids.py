"""Rows by id."""

import numpy as np
import pyarrow as pa
import pytest

from thresher.data.ids import rows_by_id
from thresher.errors import InvalidValueError

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
