"""What a notebook passes to filters: pandas with any index, tensors, lists."""

from typing import Any

import numpy as np
import pandas
import pytest
import torch

from thresher import EL2NFilter, NearDuplicatesFilter, ThresherError
from thresher.select.inputs import as_arrays

FEATURES = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
FEATURES[6] = FEATURES[2]
LABELS = np.zeros(8, np.int64)
ODD = [5, 3, 7, 1, 0, 2, 6, 4]


@pytest.mark.parametrize(
    "features",
    [
        torch.tensor(FEATURES, requires_grad=True),
        torch.tensor(FEATURES).bfloat16(),
        pandas.DataFrame(FEATURES, index=ODD),
        FEATURES.tolist(),
        FEATURES.astype(FEATURES.dtype.newbyteorder()),
        FEATURES.astype(np.longdouble),
    ],
    ids=["gradient", "bfloat16", "pandas", "list", "other byte order", "16 bytes"],
)
def test_features_of_any_kind(features: Any) -> None:
    fitted = NearDuplicatesFilter().fit(features, torch.tensor(LABELS))
    assert np.flatnonzero(~fitted.keep_).tolist() == [6]


def test_ids_of_pandas_count_by_position() -> None:
    ids = pandas.Series([f"image {row}" for row in range(8)], index=ODD)
    fitted = NearDuplicatesFilter().fit(FEATURES, LABELS, ids=ids)
    assert fitted.reason_[6].startswith("like image 2 ")


def test_records_of_pandas_count_by_position() -> None:
    record = pandas.DataFrame({"el2n": np.arange(8.0)}, index=ODD)
    fitted = EL2NFilter(drop=0.25).fit(None, LABELS, dynamics=record)
    assert np.flatnonzero(~fitted.keep_).tolist() == [6, 7]
    made = as_arrays({"dynamics": record, "other_features": [FEATURES.tolist()]})
    assert made["dynamics"]["el2n"][[0, 1]].tolist() == [0.0, 1.0]
    assert made["other_features"][0].shape == (8, 4)


def test_one_number_is_refused() -> None:
    with pytest.raises(ThresherError, match="features has 1 rows for 8 labels"):
        NearDuplicatesFilter().fit(3.0, LABELS)


def test_names_of_classes_are_refused_with_the_way_to_number_them() -> None:
    with pytest.raises(ThresherError, match=r"got <U1 of shape \(8,\); `numpy.unique\(labels, "):
        NearDuplicatesFilter().fit(FEATURES, ["a"] * 8)
