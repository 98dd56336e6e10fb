"""New labels in data sets whose labels are of other types."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from source_packs import packed
from torch.utils.data import DataLoader

from made_images import picture
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
    with pytest.raises(InvalidValueError, match=r"is not a number") as error:
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


def test_new_labels_stay_in_the_column_that_a_pack_reads(tmp_path: Path) -> None:
    """CIFAR-100 has two: the one with new labels became the last, so packs read the other."""
    datasets = pytest.importorskip("datasets")
    names = {"img": datasets.Image(), "fine_label": "abcd", "coarse_label": "XY"}
    kinds = {
        n: datasets.ClassLabel(names=list(k)) if isinstance(k, str) else k for n, k in names.items()
    }
    fine = [0, 1, 2, 3]
    images = [{"bytes": picture(n, 9, 9), "path": None} for n in range(4)]
    values = {"img": images, "fine_label": fine, "coarse_label": [0, 0, 1, 1]}
    data = datasets.Dataset.from_dict(values, features=datasets.Features(kinds))
    rows: dict[str, Any] = {"score": np.zeros(4), "reason": [""] * 4, "fingerprint": ""}
    keep, given = np.arange(4) > 0, np.array([-1, -1, -1, 1], np.int32)
    selection = Selection(list("abcd"), np.array(fine), keep, new_labels=given, **rows)
    kept = selection.select(data, order="pack")
    assert kept.column_names == list(names)
    kept.save_to_disk(str(tmp_path / "kept"))
    pack = packed(tmp_path / "kept", tmp_path / "pack")
    assert (pack.classes, pack.labels.tolist()) == (list("abcd"), [1, 2, 1])


def test_ids_that_are_bytes_are_the_same_in_packs_and_selections(tmp_path: Path) -> None:
    """A pack had the id "b'a'", which no data set matched."""
    datasets = pytest.importorskip("datasets")
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["x", "y"])}
    features = datasets.Features({**kinds, "id": datasets.Value("binary")})
    images = [{"bytes": picture(n, 9, 9), "path": None} for n in range(2)]
    values = {"image": images, "label": [0, 1], "id": [b"a", "\u00e9".encode()]}
    data = datasets.Dataset.from_dict(values, features=features)
    data.save_to_disk(str(tmp_path / "saved"))
    pack = packed(tmp_path / "saved", tmp_path / "pack")
    ids = pack.ids.to_pylist()
    rows: dict[str, Any] = {"score": np.zeros(2), "reason": [""] * 2, "fingerprint": ""}
    selection = Selection(ids, pack.labels, np.array([False, True]), **rows)
    assert ids == ["a", "\u00e9"]
    assert selection.select(data)["label"] == [1]


@pytest.mark.parametrize(
    ("kind", "columns"), [("torch", None), ("arrow", None), ("numpy", ["image", "label"])]
)
def test_the_format_of_a_saved_data_set_does_not_change_its_ids(
    kind: str, columns: list[str] | None, tmp_path: Path
) -> None:
    """A pack had the id "tensor(7)", or "train/00000" where the format hides the column."""
    datasets = pytest.importorskip("datasets")
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["x", "y"])}
    features = datasets.Features({**kinds, "id": datasets.Value("int64")})
    images = [{"bytes": picture(n, 9, 9), "path": None} for n in range(2)]
    values = {"image": images, "label": [0, 1], "id": [7, 8]}
    data = datasets.Dataset.from_dict(values, features=features).with_format(kind, columns)
    data.save_to_disk(str(tmp_path / "saved"))
    pack = packed(tmp_path / "saved", tmp_path / "pack")
    ids = pack.ids.to_pylist()
    assert ids == ["7", "8"]
    rows: dict[str, Any] = {"score": np.zeros(2), "reason": [""] * 2, "fingerprint": ""}
    kept = Selection(ids, pack.labels, np.array([False, True]), **rows).select(data)
    assert kept.with_format(None)["id"][:] == [8]
