"""Labels, class names and ids are checked in one place, for every source."""

import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from made_images import Made, picture
from thresher.data.labels import MAX_CLASSES, as_labels, check_classes, class_names
from thresher.data.sources.base import Block
from thresher.data.sources.protobuf import fields
from thresher.data.sources.registry import SourceOptions, open_source
from thresher.data.write import WriteOptions, write_pack
from thresher.errors import InvalidValueError, NotFoundError

ONE = WriteOptions(processes=1)
BAD_LABELS: list[Any] = [
    [0, -1],
    [0.5, 1],
    [float("nan")] * 3,
    [float("inf")],
    ["cat", "dog"],
    [None, 1],
    [2**62],
    [2**70],
    [10**9],
    [MAX_CLASSES],
]


@pytest.mark.parametrize("labels", BAD_LABELS, ids=str)
def test_labels_that_are_not_class_numbers_are_refused(labels: list[Any]) -> None:
    with pytest.raises(InvalidValueError, match="labels of it must be integers"):
        as_labels(labels, "it")
    with pytest.raises(InvalidValueError, match="labels of it must be integers"):
        class_names(None, lambda: labels, "it")


def test_integers_in_any_form_are_labels() -> None:
    good: list[Any] = [[1, 0, 2], np.array([[1], [0], [2]], np.uint8), np.array([1.0, 0.0, 2.0])]
    for labels in good:
        array = as_labels(labels, "it")
        assert array.dtype == np.int64
        assert array.tolist() == [1, 0, 2]
    assert as_labels([], "it").tolist() == []
    assert class_names(None, lambda: [1, 0, 2], "it") == ["0", "1", "2"]


def test_class_names_from_an_editor_of_windows(tmp_path: Path) -> None:
    """Such a file begins with a byte order mark, which is no part of the first name."""
    file = tmp_path / "names.txt"
    file.write_bytes("cat\r\ndög\r\n".encode("utf-8-sig"))
    assert class_names(file, list, "it") == ["cat", "dög"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"\n \n", "names.txt has no classes"),
        (b"cat\n \ndog\n\n", "line 2 of .*names.txt is blank; give one class name per line"),
        (b"\ncat\n", "line 1 of .*names.txt is blank"),
        (b"cat\ndog\n cat \n", 'names.txt has two classes named "cat"'),
        (b"\xff\xfe", "names.txt cannot be read as a list of class names"),
    ],
)
def test_bad_files_of_class_names(tmp_path: Path, text: bytes, message: str) -> None:
    file = tmp_path / "names.txt"
    file.write_bytes(text)
    with pytest.raises(InvalidValueError, match=message):
        class_names(file, list, "it")
    with pytest.raises(NotFoundError, match="gone does not exist"):
        class_names(tmp_path / "gone", list, "it")


def test_a_file_of_class_names_from_windows(tmp_path: Path) -> None:
    (tmp_path / "names").write_bytes("\ufeffcat\r\ndog\r\n".encode())
    assert class_names(tmp_path / "names", list, "it") == ["cat", "dog"]


def test_blank_lines_after_the_last_class_name(tmp_path: Path) -> None:
    (tmp_path / "names").write_text("cat\ndog\n\n  \n")
    assert class_names(tmp_path / "names", list, "it") == ["cat", "dog"]


def test_class_names_are_text_and_not_empty() -> None:
    wrong: list[Any] = [["a", ""], ["a", 3]]
    for names in wrong:
        with pytest.raises(InvalidValueError, match="class names of it must be text"):
            check_classes(names, "it")


@pytest.mark.parametrize(
    ("names", "alike"),
    [
        (["cat", "dog", "Cat "], True),
        (["caf\u00e9", "cafe\u0301"], True),
        (["t shirt", "t  shirt"], True),
        (["cat", "cat2", "ca t", "\u00e9", "e"], False),
    ],
)
def test_classes_that_are_called_alike_are_mentioned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, names: list[str], alike: bool
) -> None:
    labels = list(range(len(names)))
    write_pack(OneBlock([str(label) for label in labels], labels, names), tmp_path / "pack", ONE)
    assert (f'such as "{names[0]}" and "{names[-1]}"' in caplog.text) == alike
    assert ("called alike" in caplog.text) == alike


class OneBlock(Made):
    """A source with given ids, labels and class names."""

    def __init__(self, ids: Sequence[Any], labels: Any, classes: list[str]) -> None:
        super().__init__(chunks=1)
        self.ids, self.labels, self.classes = ids, labels, classes

    def read(self, chunk: str) -> Iterator[Block]:
        images = np.zeros((len(self.ids), 6, 5, 3), np.uint8)
        yield Block(self.ids, self.labels, ["train"] * len(self.ids), images)


@pytest.mark.parametrize(
    ("ids", "labels", "classes", "message"),
    [
        (["a", "b"], [0, 1.5], ["x", "y"], r"labels of made must be integers .* got 1\.5"),
        (["a", "b"], [0, -1], ["x", "y"], r"labels of made must be integers .* got -1"),
        (["a", "b"], ["x", "y"], ["x", "y"], "labels of made must be integers, got 'x'"),
        (["a", "b"], [0, 2], ["x", "y"], r'label of sample "b" of made must be in \[0, 2\), got 2'),
        (["a", "b"], [0], ["x", "y"], "made gave 2 ids and 1 labels"),
        (["a", ""], [0, 1], ["x", "y"], "ids of made must be text without NUL characters, got ''"),
        (["a", "b\0"], [0, 1], ["x", "y"], r"without NUL characters, got 'b\\x00'"),
        (["a", 3], [0, 1], ["x", "y"], "ids of made must be text without NUL characters, got 3"),
        (["a", "b\udce9"], [0, 1], ["x", "y"], r"ids of made must be UTF-8 text, got 'b\\udce9'"),
        (["a", "b"], [0, 1], ["x", "x"], 'made has two classes named "x"'),
        (["a", "b"], [0, 1], [], "made has no classes"),
    ],
)
def test_no_pack_is_written_from_bad_samples(
    tmp_path: Path, ids: list[Any], labels: list[Any], classes: list[str], message: str
) -> None:
    with pytest.raises(InvalidValueError, match=message):
        write_pack(OneBlock(ids, labels, classes), tmp_path / "pack", ONE)
    assert not (tmp_path / "pack").exists()


@pytest.mark.parametrize("labels", [[0.5, 1], [np.nan, np.nan], [-1, 0], ["a", "b"], [0, 2**62]])
def test_npz_with_bad_labels(tmp_path: Path, labels: list[Any]) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((2, 4, 4), np.uint8), labels=np.array(labels))
    with pytest.raises(InvalidValueError, match=r"labels of .*a\.npz must be integers"):
        open_source(tmp_path / "a.npz")


@pytest.mark.parametrize("labels", [[0.5, 1], [np.nan, np.nan], [-1, 0], [0, 10**9]])
def test_hdf5_with_bad_labels(tmp_path: Path, labels: list[Any]) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"] = np.zeros((2, 4, 4), np.uint8)
        file["labels"] = np.array(labels)
    names = tmp_path / "names.txt"
    names.write_text("no\nyes\n")
    with pytest.raises(InvalidValueError, match=r"labels of .*a\.h5 must be integers"):
        open_source(tmp_path / "a.h5")
    source = open_source(tmp_path / "a.h5", SourceOptions(classes=names))
    with pytest.raises(InvalidValueError, match=r"labels of .*a\.h5 must be integers"):
        write_pack(source, tmp_path / "pack", ONE)


@pytest.mark.parametrize("label", ["cat", 1.5, -1, None, 2**62])
def test_webdataset_with_a_bad_label(tmp_path: Path, label: Any) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        image, fields_ = picture(0, 8, 8), json.dumps({"label": label}).encode()
        for name, data in (("one.jpg", image), ("one.json", fields_)):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    with pytest.raises(InvalidValueError, match=r"labels of .*a\.tar must be integers"):
        open_source(tmp_path / "a.tar")


def test_a_field_of_negative_length_does_not_hang() -> None:
    negative = b"\x0a" + b"\xff" * 9 + b"\x01"  # field 1, bytes, of length -1
    with pytest.raises(ValueError, match="extends beyond"):
        list(fields(memoryview(negative)))


def test_classes_that_cannot_be_learned_are_mentioned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number, name in enumerate(("train/cat", "train/dog", "test/cat", "test/Dog")):
        (tmp_path / "images" / name).mkdir(parents=True)
        file = tmp_path / "images" / name / f"{number}.png"
        file.write_bytes(picture(number, 8, 8, "PNG"))
    write_pack(open_source(str(tmp_path / "images"), SourceOptions()), tmp_path / "a", ONE)
    assert (
        '1 of 3 classes have images in other splits, but none for training, such as "Dog" (is it '
        '"dog"?)' in caplog.text
    )
    caplog.clear()
    pixels = np.zeros((4, 8, 8), np.uint8)
    np.savez(tmp_path / "from_one.npz", images=pixels, labels=[1, 2, 1, 2])
    write_pack(open_source(str(tmp_path / "from_one.npz"), SourceOptions()), tmp_path / "b", ONE)
    assert '1 of 3 classes have no images, such as "0"; labels count from 0' in caplog.text
    caplog.clear()
    np.savez(tmp_path / "tested.npz", x_test=pixels, y_test=[0, 1, 0, 1])
    write_pack(open_source(str(tmp_path / "tested.npz"), SourceOptions()), tmp_path / "c", ONE)
    assert not caplog.text
