"""New labels in data sets whose labels are of other types."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from thresher.data.relabelled import RelabelledSubset
from thresher.data.selection import Selection
from thresher.errors import InvalidValueError


@pytest.mark.parametrize(
    "kind",
    [int, float, str, np.int32, np.float64, np.array, torch.tensor],
    ids=lambda k: k.__name__,
)
def test_a_new_label_has_the_type_of_the_others(kind: Any) -> None:
    items: Any = [(torch.zeros(1), kind(1)) for _ in range(3)]
    relabelled = RelabelledSubset(items, [0, 1, 2], {0: (1, 2)})
    assert type(relabelled[0][1]) is type(items[0][1])
    (_, labels), (_, plain) = (
        next(iter(DataLoader(relabelled, 3))),
        next(iter(DataLoader(items, 3))),
    )
    assert [int(label) for label in labels] == [2, 1, 1]
    assert getattr(labels, "dtype", None) == getattr(plain, "dtype", None)


@pytest.mark.parametrize("label", [torch.zeros(3, 64, 64), np.zeros((3, 64, 64)), "word " * 99])
def test_the_error_about_a_label_stays_one_line(label: Any) -> None:
    relabelled = RelabelledSubset([(0, label)], [0], {0: (1, 2)})
    with pytest.raises(InvalidValueError, match=r"no number") as error:
        relabelled[0]
    assert len(str(error.value)) < 200


def test_a_label_that_a_person_confirmed_is_not_new(caplog: pytest.LogCaptureFixture) -> None:
    labels, given = np.array([0, 1, 2, 3]), np.array([-1, 1, 0, 0], np.int32)
    rows: dict[str, Any] = {"score": np.zeros(4, np.float32), "reason": [""] * 4}
    selection = Selection(
        list("abcd"), labels, labels < 3, fingerprint="", new_labels=given, **rows
    )
    applied: Any = selection.apply([(0, label) for label in range(4)], order="pack")
    assert [label for _, label in applied] == [0, 1, 0]
    assert applied.changes == {2: (2, 0)}
    assert selection.keeps("b")
    assert caplog.text.count("1 sample has a new label, which") == 1
