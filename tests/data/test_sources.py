"""Each kind of source gives its images, labels, splits and ids, written by its own library."""

import gzip
import io
import os
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from made_images import class_folder, picture
from thresher.data.images import decode
from thresher.data.pack import Pack
from thresher.data.sources import fashion_mnist
from thresher.data.sources.encoded import ranges, split_of
from thresher.data.sources.known import FINGERPRINTS
from thresher.data.sources.protobuf import write_field
from thresher.data.sources.registry import SourceOptions, detect, open_source
from thresher.data.write import WriteOptions, write_pack
from thresher.errors import ThresherError

h5py = pytest.importorskip("h5py")
lmdb = pytest.importorskip("lmdb")
webdataset = pytest.importorskip("webdataset")
TFRecordWriter = pytest.importorskip("tfrecord.writer").TFRecordWriter

ONE = WriteOptions(processes=1)


def packed(where: Path | str, out: Path, **options: Any) -> Pack:
    return write_pack(open_source(where, SourceOptions(**options)), out, ONE)


def test_folder_with_splits(tmp_path: Path) -> None:
    folder = class_folder(tmp_path / "animals")
    (folder / "README.txt").write_text("no image")
    (folder / "train/cat/.hidden.jpg").write_bytes(b"")
    assert detect(str(folder)) == "folder"
    pack = packed(folder, tmp_path / "pack")
    assert pack.name == "animals"
    assert pack.classes == ["cat", "dog", "eel"]
    assert pack.meta.splits == {"train": 18, "validation": 18}
    at = int(pack.positions(["val/eel/4.jpg"])[0])
    assert pack.labels[at] == 2
    assert pack.splits[at].as_py() == "validation"
    assert pack.meta.broken == []


def test_folder_of_classes_in_many_formats(tmp_path: Path) -> None:
    for n, kind in enumerate(("PNG", "BMP", "WEBP", "TIFF", "GIF", "PPM")):
        place = tmp_path / "kinds" / f"class {n % 2}" / "below"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{n}.{kind.lower()}").write_bytes(picture(n, 9, 7, kind))
    pack = packed(tmp_path / "kinds", tmp_path / "pack", name="mine")
    assert (pack.name, len(pack), pack.image_shape) == ("mine", 6, (7, 9, 3))
    assert pack.classes == ["class 0", "class 1"]
    assert pack.meta.splits == {"train": 6}
    assert "class 1/below/3.tiff" in pack.ids.to_pylist()


def test_files_that_pillow_cannot_read_are_mentioned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    images = class_folder(tmp_path / "images", each=1)
    for name in ("1.HEIC", "2.heic", "notes", ".DS_Store"):
        (images / "train" / "cat" / name).write_bytes(b"")
    open_source(images)
    assert "3 files in" in caplog.text
    assert caplog.text.rstrip().endswith("that Pillow reads: .heic (2), none (1)")


def test_grey_images_stay_grey_and_16_bits_keep_the_high_byte(tmp_path: Path) -> None:
    from PIL import Image

    for n in range(3):
        (tmp_path / "grey" / "a").mkdir(parents=True, exist_ok=True)
        (tmp_path / "grey" / "a" / f"{n}.png").write_bytes(picture(n, 6, 6, "PNG", "L"))
    deep = np.arange(36, dtype=np.uint16).reshape(6, 6) * 1800
    Image.fromarray(deep).save(tmp_path / "grey" / "a" / "deep.png")
    pack = packed(tmp_path / "grey", tmp_path / "pack")
    assert pack.image_shape == (6, 6, 1)
    at = int(pack.positions(["a/deep.png"])[0])
    assert (pack.view(at)[:, :, 0] == deep >> 8).all()


@pytest.mark.parametrize("resize", [None, 4])
def test_one_colour_image_among_grey_ones_keeps_its_colours(
    tmp_path: Path, resize: int | None
) -> None:
    (tmp_path / "x" / "a").mkdir(parents=True)
    for n in range(130):  # every third is looked at beforehand
        mode = "RGB" if n == 100 else "L"
        (tmp_path / "x" / "a" / f"{n:03}.png").write_bytes(picture(n, 6, 6, "PNG", mode))
    options = WriteOptions(processes=1, resize=resize)
    pack = write_pack(open_source(tmp_path / "x"), tmp_path / "pack", options)
    side = resize or 6
    assert (len(pack), pack.image_shape) == (130, (side, side, 3))
    assert (pack.view(100) == decode(picture(100, 6, 6, "PNG"), resize)).all()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "has no image file; expected class/name.ext"),
        (["a.png"], "a.png is not in a class folder"),
        (["train/a.png"], "train/a.png is not in a class folder"),
        (
            ["train/a/1.png", "val/a/1.png", "extra/a/1.png"],
            r"has folders of splits \(train, val\) beside others, such as extra",
        ),
    ],
)
def test_folders_that_are_none(tmp_path: Path, files: list[str], message: str) -> None:
    (tmp_path / "x").mkdir()
    for name in files:
        (tmp_path / "x" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "x" / name).write_bytes(picture(0, 4, 4, "PNG"))
    with pytest.raises(ThresherError, match=message):
        open_source(str(tmp_path / "x"))


def test_a_folder_of_broken_files_only(tmp_path: Path) -> None:
    (tmp_path / "x" / "a").mkdir(parents=True)
    (tmp_path / "x" / "a" / "b.png").write_bytes(b"nothing")
    with pytest.raises(
        ThresherError, match=r"no readable image \(1 could not be read, such as a/b.png"
    ):
        packed(tmp_path / "x", tmp_path / "pack")
    assert not (tmp_path / ".pack.partial").exists()


def test_webdataset_as_its_own_library_writes_it(tmp_path: Path) -> None:
    (tmp_path / "tars").mkdir()
    for split in ("train", "val"):
        for shard in range(2):
            file = str(tmp_path / "tars" / f"{split}-{shard:04d}.tar")
            with webdataset.TarWriter(file) as writer:
                for n in range(5):
                    image = picture(10 * shard + n, 30 + n, 20)
                    writer.write({"__key__": f"k{n}", "jpg": image, "cls": (n + shard) % 7})
    pack = packed(tmp_path / "tars", tmp_path / "pack")
    assert pack.meta.splits == {"train": 10, "validation": 10}
    assert pack.classes == [str(n) for n in range(6)]
    at = int(pack.positions(["train-0001/k3"])[0])
    assert pack.encoded(at) == picture(13, 33, 20)
    assert pack.labels[at] == 4


def test_webdataset_of_other_tools(tmp_path: Path) -> None:
    def tar(name: str, *members: tuple[str, bytes]) -> Path:
        with tarfile.open(tmp_path / name, "w") as file:
            for member, content in members:
                info = tarfile.TarInfo(member)
                info.size = len(content)
                file.addfile(info, io.BytesIO(content))
        return tmp_path / name

    image = picture(1, 9, 9)
    empty = b'{"label": 1, "id": null, "split": null}'
    pack = packed(tar("val.tar", ("1.jpg", image), ("1.json", empty)), tmp_path / "pack")
    assert pack.ids.to_pylist() == ["val/1"]
    assert pack.splits.to_pylist() == ["validation"]
    twice = [("1.jpg", image), ("1.cls", b"0"), ("1.jpg", image), ("1.cls", b"1")]
    with pytest.raises(ThresherError, match='2 samples have the id "b/1"'):
        packed(tar("b.tar", *twice), tmp_path / "other")


def test_webdataset_without_labels_or_cut(tmp_path: Path) -> None:
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as writer:
        writer.write({"__key__": "one", "jpg": picture(0, 8, 8), "txt": "a caption"})
    with pytest.raises(ThresherError, match=r'sample "one" of .*a.tar has no label'):
        packed(tmp_path / "a.tar", tmp_path / "pack", classes=named(tmp_path, "x"))
    with webdataset.TarWriter(str(tmp_path / "b.tar")) as writer:
        for n in range(40):
            writer.write({"__key__": str(n), "png": picture(n, 40, 40, "PNG"), "cls": 0})
    whole = (tmp_path / "b.tar").read_bytes()
    (tmp_path / "b.tar").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ThresherError, match=r"b\.tar is truncated or damaged"):
        packed(tmp_path / "b.tar", tmp_path / "pack")


def named(folder: Path, *names: str) -> Path:
    (folder / "names.txt").write_text("\n".join(names) + "\n")
    return folder / "names.txt"


@pytest.mark.parametrize("first_label", [0, 1])
def test_tfrecord_in_imagenets_layout(tmp_path: Path, first_label: int) -> None:
    (tmp_path / "records").mkdir()
    for split, count in (("train", 7), ("validation", 4)):
        file = tmp_path / "records" / f"{split}-00000-of-00001"
        writer = TFRecordWriter(str(file))
        for n in range(count):
            writer.write(
                {
                    "image/encoded": (picture(n, 25, 20 + n), "byte"),
                    "image/class/label": (n % 3 + first_label, "int"),
                    "image/class/text": (f"name{n % 3}".encode(), "byte"),
                    "image/filename": (f"{split}_{n}.JPEG".encode(), "byte"),
                    "image/height": (20 + n, "int"),
                    "image/object/bbox/xmin": ([0.25, 0.5], "float"),
                }
            )
        writer.close()
    assert detect(str(tmp_path / "records")) == "tfrecord"
    pack = packed(tmp_path / "records", tmp_path / "pack")
    assert pack.classes == ["name0", "name1", "name2"]
    assert pack.meta.splits == {"train": 7, "validation": 4}
    at = int(pack.positions(["train_5.JPEG"])[0])
    assert pack.labels[at] == 2
    assert pack.encoded(at) == picture(5, 25, 25)
    (tmp_path / "names.txt").write_text("x\ny\nz\n")
    named = packed(tmp_path / "records", tmp_path / "named", classes=tmp_path / "names.txt")
    assert named.classes == ["x", "y", "z"]
    assert (named.labels == pack.labels).all()


def test_tfrecord_cut_or_of_another_layout(tmp_path: Path) -> None:
    file = tmp_path / "a.tfrecord"
    writer = TFRecordWriter(str(file))
    writer.write({"x": (1, "int")})
    writer.close()
    with pytest.raises(ThresherError, match=r"record 0 of .*a.tfrecord is not an image in"):
        open_source(str(file))
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(ThresherError, match=r"a.tfrecord is truncated or not a TFRecord"):
        open_source(str(file))
    file.write_bytes(b"some text that is no record at all")
    with pytest.raises(ThresherError, match=r"a.tfrecord is truncated or not a TFRecord"):
        open_source(str(file))


@pytest.mark.parametrize("encoded", [False, True])
def test_lmdb_with_caffes_datum(tmp_path: Path, encoded: bool) -> None:
    images = np.random.default_rng(0).integers(0, 256, (9, 5, 4, 3), dtype=np.uint8)
    with lmdb.open(str(tmp_path / "val_lmdb"), map_size=1 << 20) as env, env.begin(write=True) as t:
        for n, image in enumerate(images):
            if encoded:
                value = write_field(4, picture(n, 30, 30 + n)) + write_field(7, 1)
            else:
                value = b"".join(write_field(k + 1, v) for k, v in enumerate((3, 5, 4)))
                value += write_field(4, image[:, :, ::-1].transpose(2, 0, 1).tobytes())
            t.put(f"{n:08d}".encode(), value + write_field(5, n % 4))
    assert detect(str(tmp_path / "val_lmdb")) == "lmdb"
    pack = packed(tmp_path / "val_lmdb", tmp_path / "pack", classes=named(tmp_path, *"abcd"))
    assert pack.classes == ["a", "b", "c", "d"]
    assert pack.meta.splits == {"validation": 9}
    assert pack.labels.tolist() == [n % 4 for n in range(9)]
    if encoded:
        assert pack.encoded(3) == picture(3, 30, 33)
    else:
        assert (pack.images(np.arange(9)) == images).all()


def test_lmdb_of_another_layout(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / "x"), map_size=1 << 20) as env, env.begin(write=True) as t:
        t.put(b"key", b"\xff\xff\xff")
    with pytest.raises(ThresherError, match=r'"key" in .* is not a Caffe Datum'):
        open_source(str(tmp_path / "x"))
    (tmp_path / "y").mkdir()
    (tmp_path / "y" / "data.mdb").write_bytes(b"nothing of the kind")
    with pytest.raises(ThresherError, match="cannot be opened as LMDB"):
        open_source(str(tmp_path / "y"))


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


def test_hugging_face_from_disk(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"img": datasets.Image(), "label": datasets.ClassLabel(names=["no", "yes"])}
    )
    parts = {
        split: datasets.Dataset.from_dict(
            {
                "img": [{"bytes": picture(n, 30 + n, 20), "path": None} for n in range(rows)],
                "label": [n % 2 for n in range(rows)],
            },
            features=features,
        )
        for split, rows in (("train", 6), ("test", 3), ("validation", 2), ("dev", 1))
    }
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "saved"))
    assert detect(str(tmp_path / "saved")) == "huggingface"
    pack = packed(tmp_path / "saved", tmp_path / "pack")
    assert pack.classes == ["no", "yes"]
    assert pack.meta.splits == {"train": 6, "validation": 3, "test": 3}  # none is lost
    at = int(pack.positions(["test/00001"])[0])
    assert pack.encoded(at) == picture(1, 31, 20)
    with pytest.raises(ThresherError, match="datasets cannot load"):
        open_source(tmp_path, SourceOptions(format="huggingface"))


def test_hugging_face_splits_that_were_made_one_by_one(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")

    def split(names: list[str], column: str = "image", *rows: bytes | None) -> Any:
        images = [data and {"bytes": data, "path": None} for data in rows or (picture(1, 9, 9),)]
        kinds = {column: datasets.Image(), "label": datasets.ClassLabel(names=names)}
        content = {column: images, "label": [0] * len(images)}
        return datasets.Dataset.from_dict(content, features=datasets.Features(kinds))

    parts = {
        "test": split(["cow"]),
        "val": split(["bee", "ant"]),
        "validation": split(["cow", "bee"]),
        "train": split(["ant", "bee"], "image", picture(2, 9, 9), None),
    }
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "saved"))
    pack = packed(tmp_path / "saved", tmp_path / "pack")
    labels = zip(pack.ids.to_pylist(), pack.labels.tolist(), strict=True)
    assert {id: pack.classes[label] for id, label in labels} == {
        "test/00000": "cow",
        "val/00000": "bee",
        "validation/00000": "cow",
        "train/00000": "ant",
    }
    assert pack.meta.splits == {"train": 1, "validation": 2, "test": 1}
    assert pack.meta.broken == ["train/00001"]
    other = {**parts, "test": split(["cow"], "photo")}
    datasets.DatasetDict(other).save_to_disk(str(tmp_path / "other"))
    with pytest.raises(ThresherError, match="different columns of images or labels"):
        open_source(tmp_path / "other")


@pytest.mark.slow
def test_fashion_mnist_of_the_system(tmp_path: Path) -> None:
    folder = fashion_mnist.installed()
    if folder is None:
        pytest.skip("Debian's dataset-fashion-mnist is not installed")
    pack = write_pack(fashion_mnist.FashionMnist(folder), tmp_path / "pack", ONE)
    assert pack.fingerprint == FINGERPRINTS["fashion-mnist"]
    assert pack.meta.splits == {"train": 60_000, "test": 10_000}
    assert pack.labels[:5].tolist() == [9, 0, 0, 3, 0]


def idx(array: np.ndarray) -> bytes:
    return (
        bytes([0, 0, 8, array.ndim])
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )


def test_idx_files_plain_or_packed(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for stem, n in (("train", 20), ("t10k", 10)):
        images = random.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        labels = (np.arange(n) % 10).astype(np.uint8)
        (tmp_path / f"{stem}-images-idx3-ubyte").write_bytes(idx(images))
        (tmp_path / f"{stem}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    source = fashion_mnist.FashionMnist(tmp_path)
    assert sum(len(b.ids) for chunk in source.chunks() for b in source.read(chunk)) == 30
    file = tmp_path / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ThresherError, match="is truncated: 15,679 bytes, expected 15,680"):
        list(source.read("train"))
    file.write_bytes(b"text")
    with pytest.raises(ThresherError, match="is not an idx file"):
        list(source.read("train"))
    packed_labels = tmp_path / "t10k-labels-idx1-ubyte.gz"
    packed_labels.write_bytes(packed_labels.read_bytes()[:-9])
    with pytest.raises(ThresherError, match=r"labels-idx1-ubyte.gz is truncated"):
        list(source.read("test"))
    file.unlink()
    with pytest.raises(ThresherError, match=r"has no train-images-idx3-ubyte.gz"):
        fashion_mnist.FashionMnist(tmp_path)


@pytest.mark.parametrize(
    ("where", "format", "message"),
    [
        ("gone", None, "does not exist"),
        ("a.txt", None, "the format of .* is unknown; set `format`"),
        ("a.txt", "foldr", 'unknown format "foldr"; did you mean "folder"'),
        ("pack", None, "is a pack already"),
    ],
)
def test_what_no_source_is(tmp_path: Path, where: str, format: str | None, message: str) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "pack.json").write_text("{}")
    with pytest.raises(ThresherError, match=message):
        open_source(tmp_path / where, SourceOptions(format=format))


def test_chunks_cover_everything_once() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        sizes = random.integers(0, 1 << 24, int(random.integers(0, 300))).tolist()
        bounds = [tuple(map(int, chunk.split(":"))) for chunk in ranges(sizes)]
        assert [n for begin, end in bounds for n in range(begin, end)] == list(range(len(sizes)))
        assert all(sum(sizes[b:e]) <= 256 << 20 for b, e in bounds)


def test_split_names() -> None:
    said = {"val-0001.tar": "validation", "imagenet_test_lmdb": "test", "training": "train"}
    assert {name: split_of(name) for name in said} == said
    assert split_of("contest-001.tar") == "train"
    assert split_of("val/0001.tar") == "validation"
    assert split_of("val/train-0001.tar") == "train"


def test_splits_that_the_data_names_have_the_usual_names(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"] = np.zeros((4, 2, 2), np.uint8)
        file["labels"] = np.zeros(4, int)
        file["splits"] = ["Train", "val", "TEST", "extra"]
    pack = packed(tmp_path / "a.h5", tmp_path / "pack")
    assert pack.splits.to_pylist() == ["train", "validation", "test", "extra"]


def test_webdataset_with_a_folder_per_split(tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / "tars" / split).mkdir(parents=True)
        with webdataset.TarWriter(str(tmp_path / "tars" / split / f"{split[0]}00.tar")) as writer:
            writer.write({"__key__": "k", "png": picture(0, 9, 9, "PNG"), "cls": 0})
    pack = packed(tmp_path / "tars", tmp_path / "pack", format="webdataset")
    assert pack.meta.splits == {"train": 1, "validation": 1}


def test_decode_cuts_the_middle_square() -> None:
    image = decode(picture(3, 40, 20, "PNG"))
    assert (decode(picture(3, 40, 20, "PNG"), 20) == image[:, 10:30]).all()


def test_other_labels_of_the_same_size_are_another_source(tmp_path: Path) -> None:
    """Or an interrupted packing, and an audit, would go on with the labels of before."""
    keys = []
    for label in (0, 1):
        np.savez(tmp_path / "a.npz", images=np.zeros((2, 2, 2), np.uint8), labels=[label, 1])
        with webdataset.TarWriter(str(tmp_path / "a.tar")) as writer:
            writer.write({"__key__": "k", "png": picture(0, 9, 9, "PNG"), "cls": label})
        files = [tmp_path / "a.npz", tmp_path / "a.tar"]
        for file in files:
            os.utime(file, ns=(label, label))
        keys.append([open_source(file).key() for file in files])
    assert keys[0][0] != keys[1][0]
    assert keys[0][1] != keys[1][1]
