"""`data pack --test`: images set aside for testing."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from made_images import picture
from thresher.data import shard_splits, shard_writer, write
from thresher.data.pack import Pack
from thresher.data.shard_writer import WriteOptions
from thresher.data.sources import encoded
from thresher.data.sources.registry import SourceOptions, open_source
from thresher.data.write import write_pack
from thresher.errors import ThresherError
from thresher.training.split import DataConfig, split_samples


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes; every patient has four pictures, spread over both."""
    root = tmp_path_factory.mktemp("pictures")
    for label, count in (("ill", 40), ("well", 120)):
        (root / label).mkdir()
        for n in range(count):
            name = f"patient-{n // 2}-{n % 2}.png"
            (root / label / name).write_bytes(picture(n, 8, 8, "PNG"))
    return root


def _pack(pictures: Path, out: Path, **options: object) -> Pack:
    source = open_source(str(pictures), SourceOptions())
    return write_pack(source, out, WriteOptions(processes=1, **options))  # type: ignore[arg-type]


def _test_ids(pack: Pack) -> set[str]:
    return {str(pack.ids[int(i)]) for i in pack.indices("test")}


def test_the_share_is_that_of_each_class(pictures: Path, tmp_path: Path) -> None:
    pack = _pack(pictures, tmp_path / "a", test=0.25)
    counts = Counter(pack.labels[pack.indices("test")].tolist())
    assert abs(counts[0] - 10) <= 1
    assert abs(counts[1] - 30) <= 1
    assert pack.meta.splits["train"] + pack.meta.splits["test"] == 160


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(8,), (8, 9)])
def test_the_share_is_that_of_each_class_of_large_photographs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...]
) -> None:
    """Of photographs of several megabytes a block holds one: each was drawn by itself."""
    monkeypatch.setattr(encoded, "BLOCK_BYTES", 1)
    monkeypatch.setattr(encoded, "ranges", lambda sizes: [f"{n}:{n + 1}" for n in range(43)])
    for label, count in (("a", 10), ("b", 10), ("c", 20), ("d", 2), ("e", 1)):
        (tmp_path / "in" / label).mkdir(parents=True)
        for n in range(count):
            side = sizes[n % len(sizes)]
            (tmp_path / "in" / label / f"{n}.png").write_bytes(picture(n, side, side, "PNG"))
    for seed in range(3):
        pack = _pack(tmp_path / "in", tmp_path / f"{seed}", test=0.2, seed=seed)
        counts = np.bincount(pack.labels[pack.indices("test")], minlength=5).tolist()
        assert counts[:3] == [2, 2, 4]
        assert counts[3] <= 1
        assert counts[4] == 0, "a class needs a training image"
        assert (pack.image_shape is None) == (len(sizes) > 1)
        assert pack.verify() == [], "the mean is that of the training images"


def test_an_interrupted_choice_is_resumed(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoded, "ranges", lambda sizes: ["0:60", "60:120", "120:160"])
    whole = _pack(pictures, tmp_path / "whole", test=0.25)

    def killed(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shard_splits, "write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            _pack(pictures, tmp_path / "a", test=0.25)
    resumed = _pack(pictures, tmp_path / "a", test=0.25)
    assert resumed.checksum == whole.checksum
    assert resumed.verify() == []


@pytest.mark.parametrize("sizes", [(8,), (8, 9)])
def test_images_are_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...]
) -> None:
    """Every shard that holds a test image was written again: all images of most data sets."""
    monkeypatch.setattr(shard_writer, "BATCH_BYTES", 2000)
    for label in ("a", "b"):
        (tmp_path / "in" / label).mkdir(parents=True)
        for n in range(40):
            side = sizes[n % len(sizes)]
            (tmp_path / "in" / label / f"{n}.png").write_bytes(picture(n, side, side, "PNG"))
    written: dict[str, int] = {}
    set_test = write.set_test

    def split_and_look(job: shard_writer.Job, part: tuple[int, np.ndarray]) -> None:
        path = job.staging / f"{part[0]:05d}.arrow"
        before = path.stat().st_ino
        set_test(job, part)
        written[path.name] = before - path.stat().st_ino

    monkeypatch.setattr(write, "set_test", split_and_look)
    pack = _pack(tmp_path / "in", tmp_path / "pack", test=0.25)
    assert written == {"00000.arrow": 0}, "the same file"
    assert pack.meta.splits == {"train": 60, "test": 20}
    assert pack.verify() == []
    plain = _pack(tmp_path / "in", tmp_path / "plain")
    assert pack.ids.equals(plain.ids)
    assert pack.labels.tolist() == plain.labels.tolist()
    table = pa.ipc.open_file(pack.root / pack.meta.shards[0].file).read_all()
    table.validate(full=True)
    assert Counter(table["split"].to_pylist()) == {"train": 60, "test": 20}


def test_a_folder_that_is_linked_twice_is_read_twice(pictures: Path, tmp_path: Path) -> None:
    """The second link was left out without a word, here all training images."""
    for split in ("train", "test"):
        (tmp_path / "split" / split).mkdir(parents=True)
        (tmp_path / "split" / split / "ill").symlink_to(pictures / "ill")
    pack = _pack(tmp_path / "split", tmp_path / "pack")
    assert pack.meta.splits == {"train": 40, "test": 40}


def test_the_locale_does_not_matter(tmp_path: Path, thresher: Any) -> None:
    """Without UTF-8 in the locale, every file whose name is not ASCII was listed as broken."""
    (tmp_path / "in" / "Bär").mkdir(parents=True)
    for n in range(8):
        (tmp_path / "in" / "Bär" / f"é {n}.png").write_bytes(picture(n, 8, 8, "PNG"))
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for name, env in (("a", {}), ("b", plain)):
        pack = ("data", "pack", tmp_path / "in", tmp_path / name, "--test", "0.25")
        done = thresher(*pack, env={**os.environ, **env})
        assert done.returncode == 0, done.stderr
    export = ("data", "export", tmp_path / "a", tmp_path / "out", "--format", "folder")
    assert thresher(*export).returncode == 0
    done = thresher("data", "pack", tmp_path / "out", tmp_path / "c", env={**os.environ, **plain})
    assert done.returncode == 0, done.stderr
    first, second, third = (Pack.open(tmp_path / name) for name in "abc")
    assert first.checksum == second.checksum
    assert first.classes == second.classes == third.classes == ["Bär"]
    assert first.fingerprint == third.fingerprint


def test_the_seed_decides(pictures: Path, tmp_path: Path) -> None:
    first, again, other = (
        _pack(pictures, tmp_path / name, test=0.25, seed=seed)
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert _test_ids(first) == _test_ids(again)
    assert len(_test_ids(first) & _test_ids(other)) < 25
    assert first.fingerprint == other.fingerprint, "the same images, split differently"


def test_groups_stay_together(pictures: Path, tmp_path: Path) -> None:
    pack = _pack(pictures, tmp_path / "a", test=0.3, group=r"(patient-\d+)-")
    splits: dict[str, set[str]] = {}
    for id, split in zip(pack.ids.to_pylist(), pack.splits.to_pylist(), strict=True):
        splits.setdefault(id.split("patient-")[1].split("-")[0], set()).add(split)
    assert len(splits) == 60
    assert all(len(names) == 1 for names in splits.values())
    share = np.mean([names == {"test"} for names in splits.values()])
    assert 0.1 < share < 0.5


def test_a_share_that_groups_miss_is_mentioned(
    pictures: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, thresher: Any
) -> None:
    """Few groups, drawn as a whole, may hold much less or more than was asked for."""
    for seed in range(6):
        caplog.clear()
        pack = _pack(pictures, tmp_path / f"{seed}", test=0.3, group=r"patient-(\d)", seed=seed)
        share = pack.meta.splits["test"] / 160
        text = f"{100 * share:.0f} % of the images are test images, not 30 %"
        assert (text in caplog.text) == (abs(share - 0.3) > 0.06)
    done = thresher("data", "pack", pictures, tmp_path / "y", "--test", "0.25")
    assert "160 images of 2 classes (120 train, 40 test)" in done.stdout


def test_images_of_no_group_are_mentioned(
    pictures: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _pack(pictures, tmp_path / "a", test=0.3, group=r"(patient-\d+)-")
    assert "does not match" not in caplog.text
    _pack(pictures, tmp_path / "b", test=0.3, group=r"(patient-\d\d)-")
    assert 'group does not match 40 of 160 images, such as "ill/patient-0-0.png"' in caplog.text


def test_what_cannot_be_is_refused(pictures: Path, tmp_path: Path, thresher: Any) -> None:
    with pytest.raises(ThresherError, match="group is used with `test` only"):
        _pack(pictures, tmp_path / "x", group="a")
    with pytest.raises(ThresherError, match="not a regular expression"):
        _pack(pictures, tmp_path / "x", test=0.1, group="(")
    with pytest.raises(ThresherError, match=r'group "patent-\(\\d\+\)" matches no image'):
        _pack(pictures, tmp_path / "x", test=0.1, group=r"patent-(\d+)")
    with pytest.raises(ThresherError, match='no image is in the split "test" because groups'):
        _pack(pictures, tmp_path / "x", test=0.1, group="patient")
    with pytest.raises(ThresherError, match='no image is in the split "train" because groups'):
        _pack(pictures, tmp_path / "x", test=0.99, group="patient")
    (tmp_path / "split" / "train").mkdir(parents=True)
    (tmp_path / "split" / "test").mkdir()
    for split in ("train", "test"):
        (tmp_path / "split" / split / "ill").symlink_to(pictures / "ill")
    with pytest.raises(ThresherError, match='has a split "test" already'):
        _pack(tmp_path / "split", tmp_path / "x", test=0.1)
    assert not (tmp_path / "x").exists()
    done = thresher("data", "pack", pictures, tmp_path / "y", "--test", "1.5")
    assert done.returncode == 2
    assert "--test must be" in done.stderr


@pytest.mark.slow
def test_a_run_without_test_images_holds_some_out(
    pictures: Path, tmp_path: Path, thresher: Any
) -> None:
    _pack(pictures, tmp_path / "pack", resize=8)
    words = ["--data", tmp_path / "pack", "--model", "tiny", "--epochs", "1", "--batch-size", "32"]
    done = thresher("train", *words, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "has no test images: 16 training images are held out" in done.stderr
    quality, spent, where = done.stdout.strip().splitlines()
    assert quality.startswith("validation accuracy ")
    assert spent.startswith("finished after 5 steps in ")
    assert str(tmp_path / "run") in where
    done = thresher("train", *words, "--validation", "0", "--out", tmp_path / "all")
    assert done.returncode == 0, done.stderr
    assert "no accuracy was measured" in done.stdout


def test_a_run_is_validated_on_the_packs_own_split(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for name, n in (("train", 20), ("val", 6), ("test", 4)):
        arrays[f"x_{name}"] = random.integers(0, 256, (n, 8, 8), dtype=np.uint8)
        arrays[f"y_{name}"] = np.arange(n) % 2
    np.savez(tmp_path / "images.npz", **arrays)
    source = open_source(str(tmp_path / "images.npz"))
    pack = write_pack(source, tmp_path / "pack", WriteOptions(processes=1))
    held = {}
    for validation in (None, 0, 5):
        split = split_samples(DataConfig(data="-", validation=validation), pack)
        assert np.array_equal(split.test, pack.indices("test"))
        held[validation] = (len(split.train), len(split.validation))
        if validation is None:
            assert np.array_equal(split.watched, pack.indices("validation"))
    assert held == {None: (20, 6), 0: (20, 0), 5: (15, 5)}


@pytest.mark.slow
def test_a_run_of_version_0_1_resumes(digits: Path, tmp_path: Path) -> None:
    """It says validation 0 where there is nothing to hold out by default."""
    from thresher import TrainConfig, train
    from thresher.paths import read_json, write_json

    config = TrainConfig(data=str(digits), epochs=1, out=str(tmp_path / "run"), resume=True)
    first = train(config, quiet=True)
    saved = read_json(tmp_path / "run" / "run.json")
    saved["config"]["validation"] = 0.0
    write_json(tmp_path / "run" / "run.json", saved)
    assert train(config, quiet=True).accuracy == first.accuracy
