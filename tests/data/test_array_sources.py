"""Arrays in HDF5 and .npz files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from source_packs import packed

from thresher.data.sources.registry import open_source
from thresher.errors import ThresherError

h5py = pytest.importorskip("h5py")
lmdb = pytest.importorskip("lmdb")
webdataset = pytest.importorskip("webdataset")
TFRecordWriter = pytest.importorskip("tfrecord.writer").TFRecordWriter


def written(file: Path, arrays: dict[str, Any]) -> Path:
    """Write arrays to an .npz or HDF5 file, and return it."""
    if file.suffix == ".npz":
        np.savez(file, **arrays)
    else:
        with h5py.File(file, "w") as content:
            content.update(arrays)
    return file


def test_hdf5_with_a_group_per_split(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (12, 6, 6), dtype=np.uint8)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for split, rows in (("train", slice(0, 8)), ("test", slice(8, 12))):
            file[f"{split}/x"] = images[rows]
            file[f"{split}/y"] = np.arange(12)[rows] % 3
    pack = packed(tmp_path / "a.h5", tmp_path / "pack")
    assert pack.meta.splits == {"train": 8, "test": 4}
    assert pack.image_shape == (6, 6, 1)
    assert "test/000001" in pack.ids.to_pylist()
    got = pack.images(pack.positions([f"train/{n:06d}" for n in range(8)]))
    assert (got[..., 0] == images[:8]).all()


def test_hdf5_that_is_wrong(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"] = np.zeros((3, 4, 4), np.float32)
        file["labels"] = np.zeros(3, int)
    with pytest.raises(ThresherError, match="must be uint8, got float32; convert them"):
        open_source(str(tmp_path / "a.h5"))
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["pictures"] = np.zeros(3)
    with pytest.raises(ThresherError, match="no data set named images; images may be called"):
        open_source(str(tmp_path / "b.h5"))
    whole = (tmp_path / "a.h5").read_bytes()
    (tmp_path / "c.h5").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ThresherError, match=r"c\.h5 is truncated or not an HDF5 file"):
        open_source(str(tmp_path / "c.h5"))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("names", ["x_{0} y_{0}", "{0}_images {0}_labels"])
def test_npz_with_a_pair_per_split(tmp_path: Path, save: Any, names: str) -> None:
    random = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for split, n in (("train", 30), ("test", 7)):
        images, labels = names.format(split).split()
        arrays[images] = random.integers(0, 256, (n, 3, 5, 6), dtype=np.uint8)
        arrays[labels] = (np.arange(n) % 4).reshape(n, 1)
    save(tmp_path / "a.npz", **arrays)
    pack = packed(tmp_path / "a.npz", tmp_path / "pack")
    assert pack.image_shape == (5, 6, 3)
    assert pack.meta.splits == {"train": 30, "test": 7}
    first = arrays[names.format("train").split()[0]]
    got = pack.images(pack.indices("train"))
    assert (got == first.transpose(0, 2, 3, 1)).all()


@pytest.mark.parametrize(
    ("stored", "shape"),
    [
        ((4, 5, 6), (5, 6, 4)),
        ((2, 5, 6), (5, 6, 2)),
        ((5, 8, 8), (8, 8, 5)),
        ((5, 6, 4), (5, 6, 4)),
        ((8, 8, 5), (8, 8, 5)),
    ],
)
def test_the_axis_of_the_channels_is_found(
    tmp_path: Path, stored: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, *stored), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=[0, 1])
    pack = packed(tmp_path / "a.npz", tmp_path / "pack")
    assert pack.image_shape == shape
    wanted = images if stored == shape else images.transpose(0, 2, 3, 1)
    assert (pack.images(np.arange(2)) == wanted).all()


def test_npz_with_images_without_labels(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    images = np.zeros((3, 2, 2), np.uint8)
    np.savez(tmp_path / "a.npz", x_train=images, y_train=[0, 1, 1], x_test=images)
    assert packed(tmp_path / "a.npz", tmp_path / "pack").meta.splits == {"train": 3}
    assert "x_test in" in caplog.text


@pytest.mark.parametrize("kind", ["S9", "U9"])
def test_npz_with_ids_and_splits(tmp_path: Path, kind: str) -> None:
    images = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    ids, splits = np.array(["a", "b", "c"], kind), np.array(["test", "val", "x"], kind)
    np.savez(tmp_path / "a.npz", images=images, labels=[0, 1, 1], ids=ids, splits=splits)
    pack = packed(tmp_path / "a.npz", tmp_path / "pack")
    assert pack.ids.to_pylist() == ["a", "b", "c"]
    assert pack.splits.to_pylist() == ["test", "validation", "x"]


@pytest.mark.parametrize("kind", ["npz", "h5"])
def test_ids_and_splits_in_a_column(tmp_path: Path, kind: str) -> None:
    """They were called "[b'a']": test images were in no split that anything is tested on."""
    arrays: dict[str, Any] = {"images": np.zeros((2, 6, 6), np.uint8), "labels": [[0], [1]]}
    arrays |= {"ids": np.array([[b"a"], [b"b"]]), "splits": np.array([[b"train"], [b"test"]])}
    pack = packed(written(tmp_path / f"a.{kind}", arrays), tmp_path / "pack")
    assert pack.ids.to_pylist() == ["a", "b"]
    assert pack.splits.to_pylist() == ["train", "test"]


@pytest.mark.parametrize("name", ["images", "labels", "ids"])
@pytest.mark.parametrize("inside", ["", "/x"])
def test_hdf5_with_a_number_or_a_group_instead_of_an_array(
    tmp_path: Path, name: str, inside: str
) -> None:
    arrays: dict[str, Any] = {"images": np.zeros((2, 6, 6), np.uint8), "labels": [0, 1]}
    arrays.pop(name, None)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.update({**arrays, name + inside: 3})
    with pytest.raises(ThresherError, match=rf"{name} in .*a\.h5/ must be an array with a value"):
        packed(tmp_path / "a.h5", tmp_path / "pack")


def test_hdf5_with_a_damaged_description(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"], file["labels"] = np.zeros((2, 6, 6), np.uint8), [0, 1]
        file.attrs["thresher"] = "{"
    with pytest.raises(ThresherError, match=r"the description in .*a\.h5 is damaged"):
        open_source(str(tmp_path / "a.h5"))


@pytest.mark.parametrize("kind", ["npz", "h5"])
def test_ids_that_are_not_utf_8(tmp_path: Path, kind: str) -> None:
    """They ended in a traceback; as in other formats, what cannot be read becomes "\ufffd"."""
    arrays: dict[str, Any] = {"images": np.zeros((2, 6, 6), np.uint8), "labels": [0, 1]}
    arrays["ids"] = np.array([b"a", b"b\xe9"])
    pack = packed(written(tmp_path / f"a.{kind}", arrays), tmp_path / "pack")
    assert pack.ids.to_pylist() == ["a", "b\ufffd"]


@pytest.mark.parametrize("splits", ["Splits", "split"])
@pytest.mark.parametrize("kind", ["npz", "h5"])
def test_other_names_of_splits_mean_the_same(tmp_path: Path, kind: str, splits: str) -> None:
    """If they were ignored, test images would be trained on."""
    arrays = {
        "Images": np.zeros((4, 6, 6), np.uint8),
        "Labels": np.arange(4) % 2,
        splits: np.array([b"train", b"train", b"train", b"test"]),
        "IDs": np.array([b"a", b"b", b"c", b"d"]),
    }
    if kind == "npz":
        np.savez(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]
    else:
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file.update(arrays)
    pack = packed(tmp_path / f"a.{kind}", tmp_path / "pack")
    assert pack.meta.splits == {"train": 3, "test": 1}
    assert pack.ids.to_pylist() == list("abcd")


@pytest.mark.parametrize("splits", [[0, 0, 1], [False, False, True], ["fit", "fit", "test"]])
def test_splits_of_which_none_is_for_training_are_mentioned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, splits: list[Any]
) -> None:
    """Nobody knows whether 0 is for training or for testing."""
    images = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    np.savez(tmp_path / "a.npz", images=images, labels=[0, 1, 1], splits=splits)
    pack = packed(tmp_path / "a.npz", tmp_path / "pack")
    assert "train" not in pack.meta.splits
    assert "no training images: the splits are called" in caplog.text
    assert f'"{splits[0]}"' in caplog.text


def test_a_pack_of_test_images_is_not_mentioned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    images = np.zeros((3, 2, 2), np.uint8)
    np.savez(tmp_path / "a.npz", x_test=images, y_test=[0, 1, 1])
    assert packed(tmp_path / "a.npz", tmp_path / "pack").meta.splits == {"test": 3}
    assert "no training images" not in caplog.text


def test_arrays_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    images = np.zeros((3, 2, 2), np.uint8)
    arrays: dict[str, Any] = {"val_x": images, "val_y": [0, 1, 1]}
    np.savez(tmp_path / "a.npz", valid_x=images, valid_y=[0, 1, 1], **arrays)
    with pytest.raises(ThresherError, match=r"valid_x and val_x in .* are both for the validation"):
        open_source(tmp_path / "a.npz")
    for name in ("ids", "splits"):
        arrays = {name: list("abcd")}
        np.savez(tmp_path / "b.npz", images=images, labels=[0, 1, 1], **arrays)
        with pytest.raises(ThresherError, match=f"has 3 images and 4 {name}"):
            packed(tmp_path / "b.npz", tmp_path / "pack")
        with h5py.File(tmp_path / "c.h5", "w") as file:
            file["images"], file["labels"], file[name] = images, [0, 1, 1], [b"a"] * 4
        with pytest.raises(ThresherError, match=f"has 3 images and 4 {name}"):
            open_source(tmp_path / "c.h5")


def test_npz_that_is_wrong(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((3, 4, 4), np.uint8))
    with pytest.raises(ThresherError, match=r"no pair of images and labels \(it has images\)"):
        open_source(str(tmp_path / "a.npz"))
    np.savez(tmp_path / "b.npz", images=np.array([{}], object), labels=np.zeros(1, int))
    with pytest.raises(ThresherError, match=r"b\.npz"):
        open_source(str(tmp_path / "b.npz"))
    (tmp_path / "c.npz").write_bytes(b"PK nothing")
    with pytest.raises(ThresherError, match=r"c.npz is truncated, damaged"):
        open_source(str(tmp_path / "c.npz"))
    np.savez(tmp_path / "d.npz", images=np.zeros((3, 4, 4), np.uint8), labels=np.zeros(2, int))
    with pytest.raises(ThresherError, match="has 3 images and 2 labels"):
        packed(tmp_path / "d.npz", tmp_path / "pack")
