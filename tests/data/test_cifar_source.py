"""CIFAR from each of its forms: one fingerprint, and what is wrong or cut is refused."""

import io
import json
import pickle
import struct
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from thresher.data.get import get
from thresher.data.pack import Pack
from thresher.data.sources import cifar
from thresher.data.sources.cifar import Cifar, load_arrays
from thresher.data.sources.known import FINGERPRINTS
from thresher.data.write import WriteOptions
from thresher.errors import ThresherError

Split = tuple[np.ndarray, np.ndarray]


def python2_pickle(entries: dict[str, list[int] | np.ndarray]) -> bytes:
    """A dictionary as Python 2 pickled it for the published archive: byte strings, protocol 2."""

    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<I", len(value)) + value

    def array(value: np.ndarray) -> bytes:
        make = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR"
        dtype = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR"
        dtype += b"(K\x03U\x01|NNN" + 2 * b"J\xff\xff\xff\xff" + b"K\x00tb"
        rows, columns = (b"J" + struct.pack("<i", side) for side in value.shape)
        return (
            make
            + b"(K\x01"
            + rows
            + columns
            + b"\x86"
            + dtype
            + b"\x89"
            + text(value.tobytes())
            + b"tb"
        )

    out = b"\x80\x02}("
    for key, value in entries.items():
        out += text(key.encode())
        if isinstance(value, np.ndarray):
            out += array(value)
        else:
            out += b"](" + b"".join(b"K" + bytes([label]) for label in value) + b"e"
    return out + b"u."


def planes(images: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)).reshape(len(images), 3072)


def write_tar(path: Path, members: Iterable[tuple[str, bytes]], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def batches(train: Split) -> list[slice]:
    """The rows of the five files of training images."""
    each = len(train[1]) // 5
    return [slice(each * n, each * (n + 1)) for n in range(5)]


def python_form(train: Split, test: Split) -> Iterable[tuple[str, bytes]]:
    for n, rows in enumerate(batches(train)):
        yield (
            f"cifar-10-batches-py/data_batch_{n + 1}",
            python2_pickle({"labels": train[1][rows].tolist(), "data": planes(train[0][rows])}),
        )
    yield "cifar-10-batches-py/batches.meta", b"not read"
    yield (
        "cifar-10-batches-py/test_batch",
        python2_pickle({"labels": test[1].tolist(), "data": planes(test[0])}),
    )


def binary_form(train: Split, test: Split) -> Iterable[tuple[str, bytes]]:
    def records(images: np.ndarray, labels: np.ndarray) -> bytes:
        return np.hstack([labels[:, None].astype(np.uint8), planes(images)]).tobytes()

    # Order within the archive is of no matter.
    yield "cifar-10-batches-bin/test_batch.bin", records(*test)
    for n, rows in enumerate(batches(train)):
        name = f"cifar-10-batches-bin/data_batch_{n + 1}.bin"
        yield name, records(train[0][rows], train[1][rows])


def splits_of(pack: Pack, each: int = 10_000) -> tuple[Split, Split]:
    """Return as many images as fill five files and one of `each` images."""
    train, test = pack.indices("train")[: 5 * each], pack.indices("test")[:each]
    return (pack.images(train), pack.labels[train]), (pack.images(test), pack.labels[test])


@pytest.mark.slow  # packs 60,000 images
@pytest.mark.parametrize("form", [python_form, binary_form])
def test_cifar10_is_the_same_from_each_form(
    cifar10: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: Callable[[Split, Split], Iterable[tuple[str, bytes]]],
) -> None:
    published = Pack.open(cifar10)
    assert published.fingerprint == FINGERPRINTS["cifar10"]
    archive = write_tar(tmp_path / "archive.tar", form(*splits_of(published)))
    monkeypatch.setenv("THRESHER_HOME", str(tmp_path / "home"))
    pack = get("cifar10", archive, WriteOptions(processes=1))
    assert pack.fingerprint == published.fingerprint
    assert pack.meta.splits == {"train": 50_000, "test": 10_000}
    assert pack.ids[0].as_py() == "cifar10/train/00000"
    assert pack.ids[59_999].as_py() == "cifar10/test/09999"
    assert pack.mean == pytest.approx([0.49139968, 0.48215841, 0.44653091], abs=1e-8)
    monkeypatch.undo()


def few_images(monkeypatch: pytest.MonkeyPatch, name: str, share: float) -> None:
    """Let each file of a data set hold a share of its images."""
    parts = [(part, split, int(share * count)) for part, split, count in cifar.PARTS[name]]
    monkeypatch.setitem(cifar.PARTS, name, parts)


def test_a_changed_pixel_is_not_cifar10(
    cifar10: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the first images of CIFAR-10 in place of all."""
    few_images(monkeypatch, "cifar10", 0.01)
    train, test = splits_of(Pack.open(cifar10), 100)
    archive = write_tar(tmp_path / "cifar.tar", binary_form(train, test))
    monkeypatch.setenv("THRESHER_HOME", str(tmp_path / "unchecked"))
    monkeypatch.delitem(FINGERPRINTS, "cifar10")
    fingerprint = get("cifar10", archive, WriteOptions(processes=1)).fingerprint
    monkeypatch.setitem(FINGERPRINTS, "cifar10", fingerprint)
    monkeypatch.setenv("THRESHER_HOME", str(tmp_path / "unchanged"))
    assert get("cifar10", archive, WriteOptions(processes=1)).fingerprint == fingerprint
    train[0][412, 5, 6, 1] ^= 1
    write_tar(archive, binary_form(train, test))
    monkeypatch.setenv("THRESHER_HOME", str(tmp_path / "home"))
    with pytest.raises(ThresherError, match=r"cifar\.tar: these are not the published images"):
        get("cifar10", archive, WriteOptions(processes=1))
    assert not [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    monkeypatch.undo()


def made_cifar100() -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    random = np.random.default_rng(0)
    return {
        split: (
            random.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8),
            random.integers(0, 20, n).astype(np.uint8),
            random.integers(0, 100, n).astype(np.uint8),
        )
        for split, n in (("train", 5_000), ("test", 1_000))
    }


def test_cifar100_is_the_same_from_both_forms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_images(monkeypatch, "cifar100", 0.1)  # the training images are two blocks
    data = made_cifar100()
    python = write_tar(
        tmp_path / "python.tar",
        (
            (
                f"cifar-100-python/{split}",
                python2_pickle(
                    {"fine_labels": f.tolist(), "coarse_labels": c.tolist(), "data": planes(x)}
                ),
            )
            for split, (x, c, f) in data.items()
        ),
    )
    binary = write_tar(
        tmp_path / "binary.tar",
        (
            (
                f"cifar-100-binary/{split}.bin",
                np.hstack([c[:, None], f[:, None], planes(x)]).tobytes(),
            )
            for split, (x, c, f) in data.items()
        ),
    )
    for archive in (python, binary):
        source = Cifar("cifar100", archive)
        assert len(source.classes) == 100
        for split, (images, _, fine) in data.items():
            at = 0
            for block in source.read(split):
                rows = slice(at, at + len(block.ids))
                assert (np.asarray(block.images) == images[rows]).all()
                assert (np.asarray(block.labels) == fine[rows]).all()
                assert block.ids[0] == f"cifar100/{split}/{at:05d}"
                at += len(block.ids)
            assert at == len(images)


@pytest.mark.parametrize("form", ["archive", "folder"])
def test_the_users_own_files_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Only an archive that was downloaded is removed after it is packed."""
    counts = {"train": 20, "test": 10}
    parts = [(split, split, count) for split, count in counts.items()]
    monkeypatch.setitem(cifar.PARTS, "cifar100", parts)
    monkeypatch.setenv("THRESHER_HOME", str(tmp_path / "home"))
    files = {f"{split}.bin": bytes(3074 * count) for split, count in counts.items()}
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    given = folder if form == "folder" else write_tar(tmp_path / "mine.tar", files.items())
    assert len(get("cifar100", given, WriteOptions(processes=1))) == 30
    assert given.exists()
    monkeypatch.undo()


def sheets(rows: int = 10_000) -> list[tuple[str, bytes]]:
    """The npm package's files, with black images."""
    file = io.BytesIO()
    Image.new("RGB", (1024, rows)).save(file, "PNG")
    names = [f"package/data_batch_{n}.png" for n in range(1, 6)] + ["package/test_batch.png"]
    return [
        *((name, file.getvalue()) for name in names),
        ("package/train_lables.json", json.dumps([0] * 50_000).encode()),
        ("package/test_lables.json", json.dumps([1] * 10_000).encode()),
    ]


@pytest.mark.slow
def test_the_npm_form_is_told_and_checked(tmp_path: Path) -> None:
    source = Cifar("cifar10", write_tar(tmp_path / "a.tgz", sheets(), "w:gz"))
    assert source.form == "npm"
    blocks = list(source.read("data_batch_3"))
    assert blocks[0].ids[0] == "cifar10/train/20000"
    assert sum(len(block.ids) for block in blocks) == 10_000
    with pytest.raises(ThresherError, match=r"is not CIFAR-10: it has no data_batch_2.png"):
        Cifar("cifar10", write_tar(tmp_path / "b.tgz", [s for s in sheets() if "_2" not in s[0]]))
    short = Cifar("cifar10", write_tar(tmp_path / "c.tgz", sheets(9_999)))
    with pytest.raises(ThresherError, match="test_batch has 9,999 images, not 10,000"):
        list(short.read("test_batch"))
    few = [(name, b"[1, 2]" if "train_" in name else data) for name, data in sheets()]
    with pytest.raises(ThresherError, match=r"train_lables.json has 2 labels, not 50,000"):
        Cifar("cifar10", write_tar(tmp_path / "d.tgz", few))


def test_cut_and_foreign_files_are_named(tmp_path: Path) -> None:
    whole = write_tar(tmp_path / "whole.tgz", sheets(), "w:gz").read_bytes()
    cut = tmp_path / "cut.tgz"
    cut.write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(ThresherError, match=r"cut\.tgz is truncated, damaged or not a tar"):
        Cifar("cifar10", cut)
    text = tmp_path / "text.tar"
    text.write_text("hello")
    with pytest.raises(ThresherError, match=r"text\.tar is truncated, damaged or not a tar"):
        Cifar("cifar10", text)
    other = write_tar(tmp_path / "other.tar", [("a/b.txt", b"x")])
    with pytest.raises(
        ThresherError, match=r"other.tar is not CIFAR-100: it is not a published form"
    ):
        Cifar("cifar100", other)
    with pytest.raises(ThresherError, match=r"gone does not exist; check the path"):
        get("cifar100", tmp_path / "gone")


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (print, ("code of the archive ran",))


def test_an_archive_cannot_run_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        ValueError, match=r"it names builtins.print, which is not part of a CIFAR archive"
    ):
        load_arrays(pickle.dumps({"data": Evil()}, protocol=4))
    members = [(f"x/{name}", pickle.dumps(Evil(), 2)) for name in ("train", "test", "meta")]
    source = Cifar("cifar100", write_tar(tmp_path / "evil.tar", members))
    with pytest.raises(ThresherError, match="test is not a batch of images"):
        list(source.read("test"))
    assert capsys.readouterr().out == ""


def test_arrays_of_this_python_load_too() -> None:
    data = np.arange(24, dtype=np.uint8).reshape(2, 12)
    for protocol in (2, 4):
        found = load_arrays(pickle.dumps({"data": data, "labels": [1, 2]}, protocol))
        assert (found["data"] == data).all()
        assert found["labels"] == [1, 2]
