"""Out to another format and back: the same samples, and the same fingerprint."""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from made_images import Made, class_folder, picture
from planted import ArraySource
from thresher.data.export import WRITERS, export
from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.data.sources.folder import Folder, ImageFile
from thresher.data.sources.registry import SourceOptions, detect, open_source
from thresher.data.write import WriteOptions, write_pack
from thresher.errors import ThresherError

ONE = WriteOptions(processes=1)


def again(path: Path, out: Path) -> Pack:
    return write_pack(open_source(str(path)), out, ONE)


@pytest.fixture(scope="module", params=["raw", "grey", "encoded"])
def pack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pack:
    place = tmp_path_factory.mktemp("export")
    if request.param == "encoded":
        return write_pack(Folder(class_folder(place / "images")), place / "pack", ONE)
    shape = (6, 5, 3) if request.param == "raw" else (5, 6, 1)
    return write_pack(Made(shape=shape), place / "pack", ONE)


@pytest.mark.slow
@pytest.mark.parametrize("format", sorted(WRITERS))
def test_there_and_back(pack: Pack, tmp_path: Path, format: str) -> None:
    assert export(pack, tmp_path / "out", format) == len(pack)
    assert detect(str(tmp_path / "out")) == format
    back = again(tmp_path / "out", tmp_path / "back")
    assert back.fingerprint == pack.fingerprint
    assert (back.name, back.classes, back.image_shape) == (
        pack.name,
        pack.classes,
        pack.image_shape,
    )
    assert back.meta.splits == pack.meta.splits
    assert back.mean == pytest.approx(pack.mean)


@pytest.mark.slow
def test_lmdb_holds_a_split_of_much_larger_images(tmp_path: Path) -> None:
    """Room was reserved by the mean size of all images, so that the database was full."""
    for split, count, side in (("train", 300, 8), ("test", 6, 2300)):
        (tmp_path / "images" / split / "a").mkdir(parents=True)
        file = io.BytesIO()
        Image.new("RGB", (side, side)).save(file, "BMP")
        for n in range(count):
            (tmp_path / "images" / split / "a" / f"{n}.bmp").write_bytes(file.getvalue())
    pack = write_pack(Folder(tmp_path / "images"), tmp_path / "pack", ONE)
    assert export(pack, tmp_path / "out", "lmdb") == 306
    assert again(tmp_path / "out", tmp_path / "back").fingerprint == pack.fingerprint


def test_a_webdataset_holds_images_of_all_kinds(tmp_path: Path) -> None:
    folder = tmp_path / "images" / "a"
    folder.mkdir(parents=True)
    for n, (kind, suffix) in enumerate({"PCX": "pcx", "TGA": "tga", "JPEG2000": "jp2"}.items()):
        (folder / f"{n}.{suffix}").write_bytes(picture(n, 30, 20 + n, kind))
    frame = Image.new("RGB", (30, 24))
    frame.save(folder / "phone.jpg", "MPO", save_all=True, append_images=[frame])
    pack = write_pack(Folder(tmp_path / "images"), tmp_path / "pack", ONE)
    assert len(pack) == 4
    export(pack, tmp_path / "out", "webdataset")
    back = again(tmp_path / "out", tmp_path / "back")
    assert back.meta.broken == []
    assert back.fingerprint == pack.fingerprint


@pytest.mark.parametrize("format", ["lmdb", "webdataset"])
def test_a_split_of_another_name_stays_one(tmp_path: Path, format: str) -> None:
    images = np.zeros((4, 2, 2, 1), np.uint8)
    splits, ids = ["train", "test", "extra", "extra"], ["a", "b", "c", "d"]
    source = ArraySource(images, np.zeros(4, int), splits, ids, ["x"])
    export(write_pack(source, tmp_path / "pack", ONE), tmp_path / "out", format)
    back = again(tmp_path / "out", tmp_path / "back")
    at = back.positions(ids)
    assert [back.splits[int(row)].as_py() for row in at] == splits


@pytest.mark.parametrize("format", sorted(WRITERS))
def test_a_selection_leaves_out_what_it_drops(tmp_path: Path, format: str) -> None:
    pack = write_pack(Made(), tmp_path / "pack", ONE)
    train = pack.indices("train")
    keep = np.arange(len(train)) % 3 != 0
    selection = Selection(
        ids=pack.ids.take(train).to_pylist(),
        labels=pack.labels[train],
        keep=keep,
        score=np.zeros(len(train), np.float32),
        reason=[""] * len(train),
        fingerprint=pack.fingerprint,
    )
    count = export(pack, tmp_path / "out", format, selection)
    assert count == keep.sum() + len(pack.indices("test"))
    back = again(tmp_path / "out", tmp_path / "back")
    assert back.meta.splits == {"train": int(keep.sum()), "test": 40}
    there = set(back.ids.to_pylist())
    assert all((id in there) == kept for id, kept in zip(selection.ids, keep, strict=True))
    selection.fingerprint = "0" * 32
    with pytest.raises(ThresherError, match="was made on a pack with the fingerprint"):
        export(pack, tmp_path / "other", format, selection)
    assert not (tmp_path / "other").exists()


def test_samples_that_a_selection_does_not_name_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in training: a study holds them out, and its selection has no rows for them."""
    pack = write_pack(Made(), tmp_path / "pack", ONE)
    named = pack.indices("train")[::2]
    selection = Selection(
        ids=pack.ids.take(named).to_pylist(),
        labels=pack.labels[named],
        keep=np.arange(len(named)) > 2,
        score=np.zeros(len(named), np.float32),
        reason=[""] * len(named),
        fingerprint=pack.fingerprint,
    )
    export(pack, tmp_path / "out", "folder", selection)
    left = len(pack.indices("train")) - len(named)
    assert f"{left} training samples are left out" in caplog.text
    back = again(tmp_path / "out", tmp_path / "back")
    assert back.meta.splits == {"train": len(named) - 3, "test": 40}


@pytest.mark.parametrize("format", sorted(WRITERS))
def test_nothing_is_not_exported(tmp_path: Path, format: str) -> None:
    source = ArraySource(
        np.zeros((1, 4, 4, 1), np.uint8), np.zeros(1, int), ["train"], ["a"], ["x"]
    )
    pack = write_pack(source, tmp_path / "pack", ONE)
    nothing = Selection(["a"], pack.labels, np.zeros(1, bool), np.zeros(1), [""], pack.fingerprint)
    with pytest.raises(ThresherError, match="there is no image to export"):
        export(pack, tmp_path / "out", format, nothing)
    assert not (tmp_path / "out").exists()


def test_a_folder_keeps_the_names_of_classes_and_files(tmp_path: Path) -> None:
    """Classes with a space got a hash, and files their position in the pack as a name."""
    names = ("ankle boot/IMG 1.JPG", "ankle boot/old/IMG 1.jpg", "ankle boot/2.png", "Hose/2.jpg")
    for n, name in enumerate(names):
        file = tmp_path / "images" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (200 + n, 200), (60 * n, 0, 0)).save(file)
    (tmp_path / "images" / "Hose" / "2.jpg").rename(tmp_path / "images" / "Hose" / "jpeg.png")
    pack = write_pack(Folder(tmp_path / "images"), tmp_path / "pack", ONE)
    export(pack, tmp_path / "out", "folder")
    files = {str(f.relative_to(tmp_path / "out" / "train")) for f in tmp_path.glob("out/train/*/*")}
    second = pack.positions(["ankle boot/old/IMG 1.jpg"])[0]
    assert files == {
        *("ankle boot/IMG 1.JPG", f"ankle boot/IMG 1-{second}.jpg", "ankle boot/2.png"),
        "Hose/jpeg.jpg",
    }
    assert again(tmp_path / "out", tmp_path / "back").fingerprint == pack.fingerprint


def test_names_that_a_file_system_refuses_are_changed(tmp_path: Path) -> None:
    ids = ["a/b:c?.png", "z/b:c?.png", "x" * 300, "ü" * 150, ".hidden"]
    images = np.arange(5 * 12, dtype=np.uint8).reshape(5, 2, 2, 3)
    classes = ["what? / this", "…" * 90]
    source = ArraySource(images, np.array([0, 1, 0, 0, 0]), ["train"] * 5, ids, classes)
    pack = write_pack(source, tmp_path / "pack", ONE)
    export(pack, tmp_path / "out", "folder")
    files = [f.relative_to(tmp_path / "out" / "train") for f in tmp_path.glob("out/train/*/*")]
    assert len(files) == 5
    assert not any(set(str(f)) & set(':?*"<>|\\') for f in files)
    assert again(tmp_path / "out", tmp_path / "back").fingerprint == pack.fingerprint


def test_refusals(tmp_path: Path) -> None:
    pack = write_pack(Made(), tmp_path / "pack", ONE)
    with pytest.raises(ThresherError, match='unknown export format "tar"'):
        export(pack, tmp_path / "out", "tar")
    (tmp_path / "out").mkdir()
    with pytest.raises(ThresherError, match="exists already"):
        export(pack, tmp_path / "out", "folder")


def test_an_exported_folder_that_was_sorted_by_hand_is_not_read_as_before(tmp_path: Path) -> None:
    pack = write_pack(Made(rows=6, chunks=1), tmp_path / "pack", ONE)
    export(pack, tmp_path / "out", "folder")
    (moved,) = (tmp_path / "out" / "train" / "b").glob("1.*")
    moved.rename(tmp_path / "out" / "train" / "c" / moved.name)
    with pytest.raises(ThresherError, match=r"train/c/1.png is not listed in samples.csv"):
        open_source(tmp_path / "out")
    for name in ("samples.csv", "thresher.json"):
        (tmp_path / "out" / name).unlink()
    back = again(tmp_path / "out", tmp_path / "back")
    assert back.labels[back.positions(["train/c/1.png"])].tolist() == [2]


def test_the_list_of_an_exported_folder_may_be_saved_by_a_spreadsheet(tmp_path: Path) -> None:
    """Excel writes a byte order mark; such a list was called damaged."""
    pack = write_pack(Made(rows=6, chunks=1), tmp_path / "pack", ONE)
    export(pack, tmp_path / "out", "folder")
    table = tmp_path / "out" / "samples.csv"
    table.write_text(table.read_text(encoding="utf-8"), encoding="utf-8-sig")
    assert again(tmp_path / "out", tmp_path / "back").fingerprint == pack.fingerprint


def test_files_of_an_exported_folder_that_were_swapped_are_refused(tmp_path: Path) -> None:
    """Each had the id and the label of the other."""
    pack = write_pack(Folder(class_folder(tmp_path / "images")), tmp_path / "pack", ONE)
    export(pack, tmp_path / "out", "folder")
    first, second = (tmp_path / "out" / "train" / name / "1.jpg" for name in ("cat", "dog"))
    first.rename(tmp_path / "aside")
    second.rename(first)
    (tmp_path / "aside").rename(second)
    with pytest.raises(ThresherError, match=r"cat/1.jpg holds .* exported as train/dog/1.jpg"):
        again(tmp_path / "out", tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_the_listing_of_an_exported_folder_is_searched_once(tmp_path: Path) -> None:
    """Each of 100,000 images that were scaled in place was compared with all others."""

    class Counted(list[ImageFile]):
        read = 0

        def __iter__(self) -> Iterator[ImageFile]:
            self.read += 1
            return super().__iter__()

        def __reversed__(self) -> Iterator[ImageFile]:
            self.read += 1
            return super().__reversed__()

    pack = write_pack(Folder(class_folder(tmp_path / "images")), tmp_path / "pack", ONE)
    export(pack, tmp_path / "out", "folder")
    edited = sorted((tmp_path / "out").glob("*/*/*.jpg"))
    assert len(edited) > 3
    for n, file in enumerate(edited):
        file.write_bytes(picture(100 + n, 50, 40))
    source = Folder(tmp_path / "out")
    source.files = files = Counted(source.files)
    assert sum(len(block.ids) for chunk in source.chunks() for block in source.read(chunk))
    assert files.read < 3


def test_an_edited_image_of_an_exported_folder_keeps_its_id(tmp_path: Path) -> None:
    pack = write_pack(Folder(class_folder(tmp_path / "images")), tmp_path / "pack", ONE)
    export(pack, tmp_path / "out", "folder")
    key = open_source(tmp_path / "out").key()
    (tmp_path / "out" / "train" / "cat" / "1.jpg").write_bytes(picture(7, 50, 40))
    assert open_source(tmp_path / "out").key() != key  # an audit of the folder is not up to date
    back = again(tmp_path / "out", tmp_path / "back")
    (row,) = back.positions(["train/cat/1.jpg"]).tolist()
    assert back.encoded(row) == picture(7, 50, 40)


@pytest.mark.parametrize("format", sorted(WRITERS))
def test_splits_of_any_name_come_back(tmp_path: Path, format: str) -> None:
    names = ["train", "Extra set", "Test-A", "ext/ra"]
    images = np.zeros((4, 4, 4, 1), np.uint8)
    source = ArraySource(images, np.zeros(4, int), names, list("abcd"), ["x"])
    export(write_pack(source, tmp_path / "pack", ONE), tmp_path / "out", format)
    back = again(tmp_path / "out", tmp_path / "back")
    ids = zip(back.ids.to_pylist(), back.splits.to_pylist(), strict=True)
    assert dict(ids) == dict(zip("abcd", names, strict=True))


@pytest.mark.parametrize("format", sorted(WRITERS))
def test_ids_of_any_text_come_back(tmp_path: Path, format: str) -> None:
    ids = ["a\rb", "a\nb", ' "a", b ', "ä/\\🙂"]
    images = np.zeros((4, 4, 4, 1), np.uint8)
    source = ArraySource(images, np.arange(4) % 2, ["train"] * 4, ids, ["x\ry", " z"])
    export(write_pack(source, tmp_path / "pack", ONE), tmp_path / "out", format)
    back = again(tmp_path / "out", tmp_path / "back")
    assert dict(zip(back.ids.to_pylist(), back.labels, strict=True)) == dict(
        zip(ids, [0, 1, 0, 1], strict=True)
    )
    assert back.classes == ["x\ry", " z"]


@pytest.mark.parametrize("channels", [2, 4])
def test_alpha_comes_back(tmp_path: Path, channels: int) -> None:
    made = Made(rows=6, chunks=1, shape=(4, 4, channels))
    pack = write_pack(made, tmp_path / "pack", ONE)
    export(pack, tmp_path / "out", "folder")
    assert again(tmp_path / "out", tmp_path / "back").fingerprint == pack.fingerprint


def test_files_cannot_hold_more_than_four_channels(tmp_path: Path) -> None:
    made = Made(rows=6, chunks=1, shape=(4, 4, 5))
    pack = write_pack(made, tmp_path / "pack", ONE)
    with pytest.raises(ThresherError, match="images of 5 channels cannot be written as files"):
        export(pack, tmp_path / "out", "folder")
    assert not (tmp_path / "out").exists()


def test_an_export_keeps_its_class_names(tmp_path: Path) -> None:
    export(write_pack(Made(), tmp_path / "pack", ONE), tmp_path / "out", "webdataset")
    (tmp_path / "names").write_text("a\nb\nx\n")
    with pytest.raises(ThresherError, match=r"classes cannot be set: .* names its own; remove"):
        open_source(tmp_path / "out", SourceOptions(classes=tmp_path / "names"))


def test_a_damaged_export_is_refused(tmp_path: Path) -> None:
    pack = write_pack(Made(), tmp_path / "pack", ONE)
    export(pack, tmp_path / "out", "folder")
    (tmp_path / "out" / "thresher.json").write_text('{"name": "x"}')
    with pytest.raises(ThresherError, match=r"the description in .* is damaged"):
        open_source(str(tmp_path / "out"))
