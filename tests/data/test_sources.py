"""Each kind of source gives its images, labels, splits and ids, written by its own library."""

import gzip
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from source_packs import ONE, packed

from made_images import class_folder, picture
from thresher.data.images import decode
from thresher.data.matching import label_column
from thresher.data.sources import fashion_mnist
from thresher.data.sources.encoded import ranges, split_of
from thresher.data.sources.known import FINGERPRINTS
from thresher.data.sources.registry import SourceOptions, detect, open_source
from thresher.data.write import WriteOptions, write_pack
from thresher.errors import ThresherError

h5py = pytest.importorskip("h5py")
lmdb = pytest.importorskip("lmdb")
webdataset = pytest.importorskip("webdataset")
TFRecordWriter = pytest.importorskip("tfrecord.writer").TFRecordWriter


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


@pytest.mark.parametrize("split", ["", "train", "val"])
def test_class_folders_without_images_are_mentioned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, split: str
) -> None:
    """They are no classes, so that the numbers of the classes after them shift."""
    images = class_folder(tmp_path / "images", each=1)
    images = images if split else images / "train"
    (images / split / "bird").mkdir()
    (images / split / ".hidden").mkdir()
    (images / split / "cat" / "below").mkdir()
    source = open_source(images)
    assert source.classes == ["cat", "dog", "eel"]
    message = f'class folders without images in {images}: 1, such as "bird". They are left out'
    assert message in caplog.text


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        (["cat/train", "cat/test", "dog/train", "dog/test"], '"test" and "train" in "cat"'),
        (["fold1/cat", "fold1/dog", "fold2/cat", "fold2/dog"], '"cat" and "dog" in "fold1"'),
        (["images/cat", "images/dog"], '"cat" and "dog" in "images"'),
        (["train/cat/images", "train/dog/images", "val/cat/images", "val/dog/images"], None),
        (["cat/Monday", "cat/Friday", "dog/Sunday", "dog"], None),
    ],
)
def test_folders_inside_classes_that_look_like_classes_or_splits_are_mentioned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, folders: list[str], message: str | None
) -> None:
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "1.png").write_bytes(b"")
    open_source(tmp_path)
    assert ("neither classes nor splits" in caplog.text) == (message is not None)
    assert message is None or message in caplog.text


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


@pytest.mark.parametrize("table", ["metadata.csv", None])
def test_hugging_face_folder_of_images_without_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str | None
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "a.png").write_bytes(picture(0, 8, 8, "PNG"))
    message = '(it has image); list them in metadata.csv, with the columns "file_name" and "label"'
    if table is not None:
        (folder / table).write_text("file_name,kind\na.png,cat\n")
        message = '(it has image, kind); give the labels a column "label" in metadata.csv'
        with pytest.raises(ThresherError, match=f"`thresher data pack hf:{folder} OUT` uses the"):
            open_source(str(folder))
    with pytest.raises(ThresherError, match="has no column of labels") as error:
        open_source(f"hf:{folder}")
    assert str(error.value).endswith(message)


@pytest.mark.parametrize(
    ("columns", "taken"),
    [(("fine_label", "label"), 0), (("target", "labels"), 1), (("image_id", "target"), 1)],
)
def test_packs_and_selections_take_the_same_column_of_labels(
    columns: tuple[str, str], taken: int, tmp_path: Path
) -> None:
    """A pack took the first one and new labels another, and a pack refused "target"."""
    datasets = pytest.importorskip("datasets")
    images = [{"bytes": picture(n, 9, 9), "path": None} for n in range(4)]
    values = {"image": images, columns[0]: [0, 0, 1, 1], columns[1]: [0, 1, 0, 1]}
    kinds = dict.fromkeys(columns, datasets.Value("int64"))
    features = datasets.Features({"image": datasets.Image(), **kinds})
    data = datasets.Dataset.from_dict(values, features=features)
    data.save_to_disk(str(tmp_path / "saved"))
    pack = packed(tmp_path / "saved", tmp_path / "pack")
    assert pack.labels.tolist() == values[columns[taken]]
    assert label_column(data) == columns[taken]


@pytest.mark.parametrize("named", [True, False])
def test_hugging_face_with_a_row_without_a_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    datasets = pytest.importorskip("datasets")
    kind = datasets.ClassLabel(names=["no", "yes"]) if named else datasets.Value("int64")
    images = [{"bytes": picture(n, 9, 9), "path": None} for n in range(8)]
    whole = datasets.Dataset.from_dict(
        {"image": images, "label": [0, 1, 0, 1, 0, None, 0, None]},
        features=datasets.Features({"image": datasets.Image(), "label": kind}),
    )
    datasets.DatasetDict({"val": whole}).save_to_disk(tmp_path / "saved", num_shards={"val": 2})
    message = "row 1 of {}, counted from 0, has no label; label it, or remove the row"
    with pytest.raises(ThresherError) as caught:
        open_source(tmp_path / "saved")
    assert str(caught.value) == message.format(tmp_path / "saved/val/data-00001-of-00002.arrow")

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for n in range(2):
        part = whole.select(range(4 * n, 4 * n + 4))
        part.to_parquet(tmp_path / "tables" / f"train-{n}.parquet")
    with pytest.raises(ThresherError) as caught:
        open_source(f"hf:{tmp_path / 'tables'}")
    assert str(caught.value) == message.format(tmp_path / "tables/train-1.parquet")

    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "metadata.jsonl").write_text(
        '{"file_name": "a.png", "label": 1}\n{"file_name": "b.png", "label": null}\n'
    )
    for name in "ab":
        (tmp_path / "lines" / f"{name}.png").write_bytes(picture(1, 9, 9))
    with pytest.raises(ThresherError, match=r'row 1 of the split "train" of hf:.*lines, counted'):
        open_source(f"hf:{tmp_path / 'lines'}")


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
