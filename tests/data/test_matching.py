"""A selection keeps its own samples in any data set, or refuses the data set."""

import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Subset, TensorDataset

from thresher.data.export import export
from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.data.sources.folder import Folder
from thresher.data.write import write_pack
from thresher.errors import InvalidValueError

CLASSES = ("cat", "cat-big", "dog")
EACH = 3


class ImageFolder:
    """torchvision's: classes sorted by name, then the files of each class by name."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.classes = sorted(folder.name for folder in root.iterdir())
        self.samples = [
            (str(file), label)
            for label, name in enumerate(self.classes)
            for file in sorted((root / name).iterdir())
        ]
        self.targets = [label for _, label in self.samples]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> tuple[str, int]:
        return self.samples[row]


def write_images(root: Path) -> None:
    random = np.random.default_rng(0)
    for name in CLASSES:
        (root / name).mkdir(parents=True)
        for n in range(EACH):
            pixels = random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{n}.png")


def select_on(pack: Pack, keep: np.ndarray) -> Selection:
    train = pack.indices("train")
    return Selection(
        ids=pack.ids.take(train).to_pylist(),
        labels=pack.labels[train],
        keep=keep,
        score=np.zeros(len(train), np.float32),
        reason=[""] * len(train),
        fingerprint=pack.fingerprint,
    )


def without_cat_big(pack: Pack) -> Selection:
    """Keep cat and dog."""
    return select_on(pack, pack.labels[pack.indices("train")] != CLASSES.index("cat-big"))


@pytest.mark.parametrize("split", [None, "train"])
def test_an_image_folder_is_matched_by_its_paths(tmp_path: Path, split: str | None) -> None:
    """A pack sorts by path, where "cat-big/" is before "cat/"; ImageFolder sorts by class."""
    root = tmp_path / "images"
    write_images(root / (split or ""))
    if split:
        write_images(root / "test")
    pack = write_pack(Folder(root), tmp_path / "pack")
    assert pack.labels[pack.indices("train")[0]] == CLASSES.index("cat-big")
    kept: Any = without_cat_big(pack).apply(ImageFolder(root / (split or "")))
    names = [Path(path).parent.name for path, _ in kept]
    assert names == ["cat"] * EACH + ["dog"] * EACH


@pytest.mark.parametrize("renamed", ["training-images", "train"])
def test_a_split_folder_of_another_name_or_place(tmp_path: Path, renamed: str) -> None:
    write_images(tmp_path / "images" / "train")
    write_images(tmp_path / "images" / "test")
    write_images(tmp_path / "copy" / renamed)
    pack = write_pack(Folder(tmp_path / "images"), tmp_path / "pack")
    folder = ImageFolder(tmp_path / "copy" / renamed)
    kept: Any = without_cat_big(pack).apply(folder)
    assert {label for _, label in kept} == {0, 2}
    del folder.root  # as in a data set of one's own
    kept = without_cat_big(pack).apply(folder)
    assert {label for _, label in kept} == {0, 2}


def test_files_of_an_export_have_the_ids_of_its_index(tmp_path: Path) -> None:
    """An image with a new label has the path that was another image's id."""
    write_images(tmp_path / "images")
    pack = write_pack(Folder(tmp_path / "images"), tmp_path / "pack")
    selection = without_cat_big(pack)
    swapped = [selection.ids.index(id) for id in ("cat/0.png", "cat-big/0.png")]
    labels = selection.labels.copy()
    labels[swapped] = selection.labels[swapped[::-1]]
    keep = np.ones(len(labels), bool)
    relabelled = dataclasses.replace(selection, keep=keep, new_labels=labels)
    export(pack, tmp_path / "out", "folder", relabelled)
    kept: Any = selection.apply(ImageFolder(tmp_path / "out" / "train"))
    paths = {str(Path(path).relative_to(tmp_path / "out" / "train")) for path, _ in kept}
    assert paths >= {"cat-big/0.png", "cat/1.png", "dog/0.png"}
    assert "cat/0.png" not in paths
    (tmp_path / "out" / "train" / "dog" / "0.png").rename(tmp_path / "out/train/dog/9.png")
    with pytest.raises(InvalidValueError, match=r"1 of .* paths are not .* such as .*dog/9.png"):
        selection.apply(ImageFolder(tmp_path / "out" / "train"))


def test_test_images_with_the_names_of_training_images_are_refused(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_images(tmp_path / "images" / split)
    pack = write_pack(Folder(tmp_path / "images"), tmp_path / "pack")
    with pytest.raises(InvalidValueError, match="9 of the data set's 9 paths are not in the"):
        without_cat_big(pack).apply(ImageFolder(tmp_path / "images" / "test"))


def test_a_part_of_the_training_set_is_matched(tmp_path: Path) -> None:
    write_images(tmp_path / "images")
    pack = write_pack(Folder(tmp_path / "images"), tmp_path / "pack")
    part: Any = Subset(ImageFolder(tmp_path / "images"), [8, 4, 0])  # type: ignore[arg-type]
    kept: Any = without_cat_big(pack).apply(part)
    assert [label for _, label in kept] == [2, 0]


@pytest.mark.parametrize("by", ["paths", "ids"])
def test_a_subset_may_leave_out_files_that_the_selection_does_not_name(
    tmp_path: Path, by: str
) -> None:
    """Such as test images and unreadable files in the same folder."""
    write_images(tmp_path / "images")
    pack = write_pack(Folder(tmp_path / "images"), tmp_path / "pack")
    (tmp_path / "images" / "cat" / "0a.jpg").write_bytes(b"unreadable")
    folder: Any = ImageFolder(tmp_path / "images")
    if by == "ids":
        folder.ids = [str(Path(file).relative_to(folder.root)) for file, _ in folder.samples]
    named = [row for row, (file, _) in enumerate(folder.samples) if not file.endswith("0a.jpg")]
    some = Subset(Subset(folder, named), [8, 4, -9])
    kept: Any = without_cat_big(pack).apply(some)
    assert [file for file, _ in kept] == [folder.samples[row][0] for row in (9, 0)]
    with pytest.raises(InvalidValueError, match=f"1 of the data set's 10 {by} are not in the"):
        without_cat_big(pack).apply(folder)


@pytest.mark.parametrize("order", [None, "pack"])
def test_an_empty_data_set_is_refused(tmp_path: Path, order: Any) -> None:
    """As a Subset of the paths below `train/`, where the ids are paths that begin with it."""
    write_images(tmp_path / "images")
    pack = write_pack(Folder(tmp_path / "images"), tmp_path / "pack")
    nothing: Any = Subset(ImageFolder(tmp_path / "images"), [])  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="the data set is empty"):
        without_cat_big(pack).apply(nothing, order)


def test_files_that_the_selection_does_not_name_are_refused(tmp_path: Path) -> None:
    write_images(tmp_path / "images")
    pack = write_pack(Folder(tmp_path / "images"), tmp_path / "pack")
    (tmp_path / "images" / "dog" / "0.png").rename(tmp_path / "images" / "dog" / "new.png")
    with pytest.raises(InvalidValueError, match=r'1 of the data set\'s 9 paths .*dog/new.png"'):
        without_cat_big(pack).apply(ImageFolder(tmp_path / "images"))


class WithIds:
    def __init__(self, ids: Any) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)


def test_ids_decide_in_any_order(digits: Path) -> None:
    pack = Pack.open(digits)
    n = len(pack.indices("train"))
    selection = select_on(pack, np.arange(n) % 3 == 0)
    order = np.random.default_rng(1).permutation(n)
    shuffled = [selection.ids[row] for row in order]
    kept = selection.apply(WithIds(shuffled))
    assert [shuffled[row] for row in kept.indices] == [
        id for id, row in zip(shuffled, order, strict=True) if row % 3 == 0
    ]
    with pytest.raises(
        InvalidValueError, match=r'1 of .* ids are not in the selection.*"other".*such as'
    ):
        selection.apply(WithIds([*shuffled[:-1], "other"]))


@pytest.mark.parametrize("kind", [torch.tensor, np.array, lambda ids: np.array(ids, "S9")])
def test_ids_may_be_numbers_or_bytes_in_an_array(kind: Any) -> None:
    selection = Selection(
        ids=["3", "1", "2"],
        labels=np.zeros(3, np.int64),
        keep=np.array([True, True, False]),
        score=np.zeros(3, np.float32),
        reason=[""] * 3,
        fingerprint="",
    )
    assert selection.apply(WithIds(kind([1, 2, 3]))).indices == [0, 2]
    with pytest.raises(InvalidValueError, match="ids are not in the selection"):
        selection.apply(WithIds(np.array([b"1", b"2", b"\xff"])))


def test_ids_of_a_set_have_no_order() -> None:
    selection = Selection(
        ids=["a", "b"],
        labels=np.zeros(2, np.int64),
        keep=np.array([True, False]),
        score=np.zeros(2, np.float32),
        reason=[""] * 2,
        fingerprint="",
    )
    with pytest.raises(InvalidValueError, match="are a set, which has no order"):
        selection.apply(WithIds({"a", "b"}))


@pytest.mark.parametrize("indices", [None, [0, 1], np.array([True, False, True]), {0: 2}])
def test_indices_of_a_wrapper_that_is_no_subset_are_not_used(indices: Any) -> None:
    selection = Selection(
        ids=["a", "b", "c"],
        labels=np.array([0, 1, 0]),
        keep=np.array([True, False, True]),
        score=np.zeros(3, np.float32),
        reason=[""] * 3,
        fingerprint="",
    )
    wrapper = WithIds(["a", "b", "c"])
    wrapper.dataset, wrapper.indices = WithIds(["c", "b", "a"]), indices  # type: ignore[attr-defined]
    assert selection.apply(wrapper).indices == [0, 2]


class Longer(WithIds):
    """Has one more sample than ids."""

    def __len__(self) -> int:
        return len(self.ids) + 1


def test_a_data_set_without_an_id_or_path_for_each_sample_is_refused(
    digits: Path, tmp_path: Path
) -> None:
    """The samples without one would be left out, as if they had been dropped."""
    pack = Pack.open(digits)
    selection = select_on(pack, np.ones(len(pack.indices("train")), bool))
    with pytest.raises(InvalidValueError, match="has 1,437 samples, but 1,436 ids"):
        selection.apply(Longer(selection.ids[:-1]))
    write_images(tmp_path / "images")
    folder = ImageFolder(tmp_path / "images")
    pack = write_pack(Folder(tmp_path / "images"), tmp_path / "pack")
    folder.__class__ = type("Twice", (ImageFolder,), {"__len__": lambda self: 18})
    with pytest.raises(InvalidValueError, match="has 18 samples, but 9 paths"):
        without_cat_big(pack).apply(folder)


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_pixels_are_not_taken_for_paths_or_columns(digits: Path, kind: Any) -> None:
    pack = Pack.open(digits)
    train = pack.indices("train")
    selection = select_on(pack, np.arange(len(train)) % 2 == 0)
    dataset = TensorDataset(torch.zeros(len(train)), torch.from_numpy(pack.labels[train]))
    for name in ("samples", "imgs", "features"):
        setattr(dataset, name, kind(pack.images(train)))
    assert len(selection.apply(dataset)) == 719
    del dataset.tensors
    dataset.__class__ = type("Pixels", (TensorDataset,), {"__len__": lambda self: len(train)})
    with pytest.raises(InvalidValueError, match="cannot be verified"):
        selection.apply(dataset)


class Stream(torch.utils.data.IterableDataset[int]):
    """A stream that knows its length."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(1437))

    def __len__(self) -> int:
        return 1437


def test_a_stream_is_refused(digits: Path) -> None:
    pack = Pack.open(digits)
    selection = select_on(pack, np.ones(len(pack.indices("train")), bool))
    for stream in (Stream(), iter(range(1437))):
        with pytest.raises(InvalidValueError, match="have no positions"):
            selection.apply(stream, order="pack")  # type: ignore[arg-type]


def test_labels_show_pack_order(digits: Path) -> None:
    pack = Pack.open(digits)
    labels = torch.from_numpy(pack.labels[pack.indices("train")])
    selection = select_on(pack, np.arange(len(labels)) % 2 == 0)
    assert len(selection.apply(TensorDataset(torch.zeros(len(labels)), labels))) == 719
    moved = TensorDataset(torch.zeros(len(labels)), labels.roll(1))
    with pytest.raises(InvalidValueError, match=r"not in pack order: [\d,]+ labels differ"):
        selection.apply(moved)
    with pytest.raises(InvalidValueError, match="the data set has 10 samples, the selection 1437"):
        selection.apply(TensorDataset(torch.zeros(10), labels[:10]))


def test_an_order_that_cannot_be_verified_is_refused(digits: Path) -> None:
    pack = Pack.open(digits)
    n = len(pack.indices("train"))
    selection = select_on(pack, np.arange(n) % 2 == 0)
    with pytest.raises(InvalidValueError, match=r'cannot be verified: it has no .*order="pack"'):
        selection.apply(range(n))
    assert selection.apply(range(n), order="pack").indices == list(range(0, n, 2))
    with pytest.raises(InvalidValueError, match="got 'path'"):
        selection.apply(range(n), order="path")  # type: ignore[arg-type]
    selection.labels = np.sort(selection.labels)
    by_class = TensorDataset(torch.zeros(n), torch.from_numpy(selection.labels))
    with pytest.raises(InvalidValueError, match="its labels are grouped by class"):
        selection.apply(by_class)
    assert len(selection.apply(by_class, order="pack")) == 719


def test_other_labels_in_a_stated_order_are_logged(
    digits: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pack = Pack.open(digits)
    labels = torch.from_numpy(pack.labels[pack.indices("train")]).clone()
    selection = select_on(pack, np.ones(len(labels), bool))
    labels[0] += 1
    with caplog.at_level(logging.WARNING):
        selection.apply(TensorDataset(labels), order="pack")
    assert "1 label differs from" in caplog.text


def test_hugging_face_data_sets() -> None:
    datasets = pytest.importorskip("datasets")
    ids = [f"s{n}" for n in range(6)]
    labels = np.array([0, 1, 0, 1, 2, 0])
    selection = Selection(
        ids=ids,
        labels=labels,
        keep=np.array([True, False, True, True, False, False]),
        score=np.zeros(6, np.float32),
        reason=[""] * 6,
        fingerprint="f" * 32,
    )
    known = datasets.Dataset.from_dict({"id": ids, "label": labels.tolist()})
    shuffled = known.shuffle(seed=3)
    assert sorted(selection.select(shuffled)["id"]) == ["s0", "s2", "s3"]
    assert list(selection.select(shuffled)["id"]) == [
        id for id in shuffled["id"] if id in ("s0", "s2", "s3")
    ]
    bare = known.add_column("row", list(range(6))).remove_columns("id")
    assert list(selection.select(bare)["row"]) == [0, 2, 3]
    with pytest.raises(InvalidValueError, match="not in pack order"):
        selection.select(bare.select([1, 0, 2, 3, 4, 5]))
    with pytest.raises(InvalidValueError, match="cannot be verified"):
        selection.select(bare.remove_columns("label"))
    rows = selection.select(bare.remove_columns("label"), order="pack")["row"]
    assert list(rows) == [0, 2, 3]
    # A transform sees whole columns, and may leave out those that samples are matched by.
    unseen = {"known": known, "bare": bare}
    for name, dataset in unseen.items():
        prepared = dataset.with_transform(lambda rows: {"size": [len(rows) for _ in rows["label"]]})
        assert len(selection.select(prepared)) == 3, name
        assert selection.select(prepared)[0] == {"size": len(dataset.column_names)}
