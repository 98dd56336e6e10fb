"""ImageNet's own archives, made small: the same samples as the usual folders."""

import io
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from made_images import picture
from thresher.data.pack import Pack
from thresher.data.sources.imagenet import DEVKIT, GROUND_TRUTH, TRAIN, VALIDATION
from thresher.data.sources.registry import detect, open_source
from thresher.data.write import WriteOptions, write_pack
from thresher.errors import ThresherError

NAMES = ["n01440764", "n01443537", "n02084071"]
NUMBERS = {"n01440764": 2, "n01443537": 3, "n02084071": 1}
"""The development kit numbers the classes in an order of its own."""


def _tar(target: Path | io.BytesIO, files: Mapping[str, bytes], mode: str = "w:") -> None:
    where = {"name": target} if isinstance(target, Path) else {"fileobj": target}
    with tarfile.open(mode=mode, **where) as tar:  # type: ignore[call-overload]
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def _write(root: Path, folders: Path) -> None:
    """Write the archives to `root`, and the same images as folders to `folders`."""
    root.mkdir(parents=True)
    classes, validation, truth = {}, {}, []
    for n, name in enumerate(NAMES):
        images = {f"{name}_{i}.JPEG": picture(10 * n + i, 40 + i, 30 + n) for i in range(5)}
        inner = io.BytesIO()
        _tar(inner, images)
        classes[f"{name}.tar"] = inner.getvalue()
        for file, content in images.items():
            target = folders / "train" / name / file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    order = [NAMES[n] for n in (2, 0, 0, 1, 2, 1, 0)]
    for n, name in enumerate(order):
        file, content = f"ILSVRC2012_val_{n + 1:08}.JPEG", picture(100 + n, 33, 44)
        validation[file] = content
        truth.append(str(NUMBERS[name]))
        target = folders / "val" / name / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    _tar(root / TRAIN, dict(reversed(classes.items())))
    _tar(root / VALIDATION, dict(reversed(validation.items())))  # not in order of their names
    kinds = [("ILSVRC2012_ID", object), ("WNID", object), ("words", object)]
    rows = [(number, name, "a fish") for name, number in NUMBERS.items()]
    synsets = np.array([*rows, (1001, "n00001740", "not a class")], dtype=kinds)
    meta = io.BytesIO()
    savemat(meta, {"synsets": synsets.reshape(-1, 1)})
    kit = {
        "ILSVRC2012_devkit_t12/data/meta.mat": meta.getvalue(),
        f"ILSVRC2012_devkit_t12/data/{GROUND_TRUTH}": "\n".join([*truth, ""]).encode(),
    }
    _tar(root / DEVKIT, kit, "w:gz")


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    base = tmp_path_factory.mktemp("imagenet")
    _write(base / "archives", base / "folders")
    return base / "archives", base / "folders"


@pytest.mark.slow
def test_the_archives_give_the_samples_of_the_folders(
    archives: tuple[Path, Path], tmp_path: Path
) -> None:
    root, folders = archives
    assert detect(str(root)) == "imagenet"
    packs: list[Pack] = []
    for n, where in enumerate((root, folders)):
        packs.append(write_pack(open_source(where), tmp_path / str(n), WriteOptions(processes=2)))
    own, usual = packs
    assert own.name == "imagenet"
    assert own.classes == usual.classes == NAMES
    assert own.meta.splits == usual.meta.splits == {"train": 15, "validation": 7}
    assert own.image_shape is None
    assert sorted(own.ids.to_pylist()) == sorted(usual.ids.to_pylist())
    there = usual.positions(own.ids)
    for position in range(len(own)):
        other = int(there[position])
        assert own.labels[position] == usual.labels[other]
        assert own.splits[position] == usual.splits[other]
        assert own.encoded(position) == usual.encoded(other)


def test_other_images_of_the_same_size_are_another_source(
    archives: tuple[Path, Path], tmp_path: Path
) -> None:
    """An interrupted packing, and an audit, went on with those of the former archive."""
    shutil.copytree(archives[0], tmp_path / "archives")
    key = open_source(tmp_path / "archives").key()
    content = bytearray((tmp_path / "archives" / TRAIN).read_bytes())
    content[3000] ^= 1
    (tmp_path / "archives" / TRAIN).write_bytes(content)
    assert open_source(tmp_path / "archives").key() != key


def test_training_images_alone_can_be_packed(archives: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    shutil.copy(archives[0] / TRAIN, tmp_path / "train" / TRAIN)
    pack = write_pack(open_source(tmp_path / "train"), tmp_path / "pack", WriteOptions(processes=1))
    assert pack.meta.splits == {"train": 15}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda root: (root / DEVKIT).unlink(), "the labels of .* are in .*devkit.*, which is not"),
        (lambda root: _cut(root / TRAIN, 3000), "is truncated"),
        (lambda root: _cut(root / VALIDATION, 3000), "is truncated"),
        (lambda root: _cut(root / DEVKIT, 40), "is truncated or damaged"),
        (lambda root: _tar(root / TRAIN, {"a.txt": b"x"}), "holds no tar of a class"),
        (lambda root: _tar(root / DEVKIT, {"a.txt": b"x"}, "w:gz"), "has no ILSVRC2012_val"),
        (lambda root: _tar(root / VALIDATION, {"a.JPEG": b"x"}), "has 7 labels, .* 1 images"),
        (
            lambda root: _tar(root / DEVKIT, {GROUND_TRUTH: b"7", "meta.mat": b"no"}, "w:gz"),
            "is truncated or damaged",
        ),
    ],
)
def test_what_is_missing_or_damaged_is_named(
    archives: tuple[Path, Path], tmp_path: Path, change: object, sentence: str
) -> None:
    root = tmp_path / "archives"
    shutil.copytree(archives[0], root)
    assert callable(change)
    change(root)
    with pytest.raises(ThresherError, match=sentence):
        write_pack(open_source(root), tmp_path / "pack", WriteOptions(processes=1))
    assert not (tmp_path / "pack").exists()


def _cut(file: Path, size: int) -> None:
    file.write_bytes(file.read_bytes()[:size])
