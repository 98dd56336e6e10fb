"""WebDataset, TFRecord and LMDB, written by their own libraries."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from source_packs import packed

from made_images import picture
from thresher.data.sources.protobuf import write_field
from thresher.data.sources.registry import detect, open_source
from thresher.errors import ThresherError
from thresher.select.filters.random import RandomFilter
from thresher.select.run import run_filter

h5py = pytest.importorskip("h5py")
lmdb = pytest.importorskip("lmdb")
webdataset = pytest.importorskip("webdataset")
TFRecordWriter = pytest.importorskip("tfrecord.writer").TFRecordWriter


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


def test_webdataset_of_splits_in_folders(tmp_path: Path) -> None:
    """Their tars are often numbered alike: ids begin with the folder then."""
    for split in ("train", "val"):
        (tmp_path / "tars" / split).mkdir(parents=True)
        with webdataset.TarWriter(str(tmp_path / "tars" / split / "00000.tar")) as writer:
            for n in range(3):
                writer.write({"__key__": f"k{n}", "jpg": picture(n, 30, 20), "cls": n % 2})
    pack = packed(tmp_path / "tars", tmp_path / "pack")
    assert pack.meta.splits == {"train": 3, "validation": 3}
    assert pack.ids[0].as_py() == "train/00000/k0"
    selection = run_filter(RandomFilter(drop=0.34), pack)
    tars = webdataset.WebDataset(str(tmp_path / "tars/train/00000.tar"), shardshuffle=False)
    kept = [selection.keeps(sample) for sample in tars]
    assert kept == selection.keep.tolist()
    held_out = {"__url__": str(tmp_path / "tars/val/00000.tar"), "__key__": "k0"}
    with pytest.raises(ThresherError, match="is not in the selection"):
        selection.keeps(held_out)


def test_tars_behind_links_count_and_hidden_ones_do_not(tmp_path: Path) -> None:
    """A split that was a link was left out without a word, and hidden folders were read."""
    data, elsewhere = tmp_path / "tars", tmp_path / "elsewhere"
    for folder in (data / "train", data / ".old" / "train", elsewhere):
        folder.mkdir(parents=True)
        with webdataset.TarWriter(str(folder / "00000.tar")) as writer:
            for n in range(3):
                writer.write({"__key__": f"k{n}", "jpg": picture(n, 30, 20), "cls": n % 2})
    (data / "test").symlink_to(elsewhere)
    assert detect(str(data)) == "webdataset"
    pack = packed(data, tmp_path / "pack")
    assert pack.meta.splits == {"train": 3, "test": 3}


def test_webdataset_of_compressed_tars(tmp_path: Path) -> None:
    """Those that end in .tgz were left out of a folder without a word; an index is no tar."""
    for name, mode in (("a.tar", "w"), ("b.tgz", "w:gz"), ("c.tar.gz", "w:gz"), ("D.TAR", "w")):
        with tarfile.open(tmp_path / name, mode) as file:  # type: ignore[call-overload]
            for member, content in (("1.jpg", picture(1, 9, 9)), ("1.cls", b"0")):
                info = tarfile.TarInfo(member)
                info.size = len(content)
                file.addfile(info, io.BytesIO(content))
    (tmp_path / "a.tar.idx").write_text("v1.2 1")
    assert packed(tmp_path, tmp_path / "pack").ids.to_pylist() == ["D/1", "a/1", "b/1", "c/1"]


def test_webdataset_with_another_dot_in_names(tmp_path: Path) -> None:
    """Keys end at the first dot, so that such images have no key; they were not mentioned."""
    with tarfile.open(tmp_path / "a.tar", "w") as file:
        for name in ("1", "2", "v1.5"):
            for kind, content in (("jpg", picture(1, 9, 9)), ("cls", b"0")):
                info = tarfile.TarInfo(f"{name}.{kind}")
                info.size = len(content)
                file.addfile(info, io.BytesIO(content))
    pack = packed(tmp_path / "a.tar", tmp_path / "pack")
    assert pack.ids.to_pylist() == ["a/1", "a/2"]
    assert pack.meta.broken == ["a/v1"]


def test_webdataset_without_labels_or_cut(tmp_path: Path) -> None:
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as writer:
        writer.write({"__key__": "one", "jpg": picture(0, 8, 8), "txt": "a caption"})
    with pytest.raises(ThresherError, match=r'sample "one" of .*a.tar has no label'):
        packed(tmp_path / "a.tar", tmp_path / "pack", classes=named(tmp_path, "x"))
    with pytest.raises(ThresherError, match=r"a.tar has no labels; each sample needs"):
        open_source(tmp_path / "a.tar")
    with webdataset.TarWriter(str(tmp_path / "b.tar")) as writer:
        for n in range(40):
            writer.write({"__key__": str(n), "png": picture(n, 40, 40, "PNG"), "cls": 0})
    whole = (tmp_path / "b.tar").read_bytes()
    (tmp_path / "b.tar").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ThresherError, match=r"b\.tar is truncated or damaged"):
        packed(tmp_path / "b.tar", tmp_path / "pack")


@pytest.mark.parametrize("classes", [True, False])
def test_webdataset_with_several_labels_of_a_sample(tmp_path: Path, classes: bool) -> None:
    """Lists of different lengths ended in a traceback."""
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as writer:
        for n, labels in enumerate(([0], [0, 1])):
            image = picture(n, 8, 8)
            writer.write({"__key__": str(n), "jpg": image, "json": {"label": labels}})
    given = named(tmp_path, "x", "y") if classes else None
    with pytest.raises(ThresherError, match=r"labels of .* must be integers, got \[0\]; number"):
        packed(tmp_path / "a.tar", tmp_path / "pack", classes=given)


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


def test_lmdb_splits_do_not_depend_on_how_the_path_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test set that was packed as `.` was for training; so were hidden databases."""
    for split, n in (("train", 3), ("test", 2), (".old", 1)):
        place = str(tmp_path / "data" / split)
        Path(place).mkdir(parents=True)
        with lmdb.open(place, map_size=1 << 20) as env, env.begin(write=True) as t:
            for k in range(n):
                datum = write_field(4, picture(k, 30, 30)) + write_field(5, k) + write_field(7, 1)
                t.put(f"{split}{k}".encode(), datum)
    assert packed(tmp_path / "data", tmp_path / "all").meta.splits == {"train": 3, "test": 2}
    monkeypatch.chdir(tmp_path / "data" / "test")
    for number, where in enumerate((".", "data.mdb", "../test")):
        assert packed(where, tmp_path / f"pack{number}").meta.splits == {"test": 2}
