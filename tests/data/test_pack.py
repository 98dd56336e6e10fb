"""Reading packs: every way of reading gives the same pixels, and damage is named."""

import copy
import dataclasses
import json
import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from made_images import Made, class_folder
from thresher.data import gather, shard, shard_writer
from thresher.data.images import decode
from thresher.data.pack import Pack
from thresher.data.sources.folder import Folder
from thresher.data.write import WriteOptions, write_pack
from thresher.errors import InvalidValueError, ThresherError

ONE = WriteOptions(processes=1)


@pytest.fixture(params=["one shard", "many shards"])
def pack(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pack:
    if request.param == "many shards":
        monkeypatch.setattr(shard, "MERGE_BYTES", 0)
        monkeypatch.setattr(shard_writer, "BATCH_BYTES", 1000)
    made = write_pack(Made(), tmp_path / "pack", ONE)
    assert (len(made.meta.shards) == 1) == (request.param == "one shard")
    return made


def expected(pack: Pack) -> np.ndarray:
    return np.stack([pack.view(n) for n in range(len(pack))])


def test_views_are_the_pixels_that_went_in(pack: Pack) -> None:
    blocks = [block for chunk in Made().chunks() for block in Made().read(chunk)]
    images = np.concatenate([np.asarray(block.images) for block in blocks])
    assert (expected(pack) == images).all()
    assert pack.ids.to_pylist() == [id for block in blocks for id in block.ids]
    assert not pack.view(3).flags.writeable


@pytest.mark.parametrize("threads", [1, 3])
def test_gathers_in_any_order_into_any_array(
    pack: Pack, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "THREADS", threads)
    monkeypatch.setattr(gather, "THREADED_FROM", 64)
    whole = expected(pack)
    random = np.random.default_rng(0)
    for positions in (
        random.permutation(len(pack)),
        np.arange(len(pack)),
        np.arange(7, 60),
        np.array([5, 5, 5, 199, 0]),
        np.empty(0, np.int64),
    ):
        assert (pack.images(positions) == whole[positions]).all()
        wide = np.zeros((len(positions), 6, 5, 6), np.uint8)
        pack.images(positions, out=wide[..., ::2])
        assert (wide[..., ::2] == whole[positions]).all()
        assert (wide[..., 1::2] == 0).all()


@pytest.mark.parametrize("position", [-1, 200])
def test_positions_outside_are_refused(pack: Pack, position: int) -> None:
    with pytest.raises(IndexError):
        pack.images(np.array([0, position]))
    with pytest.raises(IndexError):
        pack.view(position)


@pytest.mark.parametrize("kind", [bool, float])
def test_a_mask_is_not_taken_for_positions(pack: Pack, kind: type) -> None:
    with pytest.raises(InvalidValueError, match="positions must be integers"):
        pack.images(np.ones(len(pack), kind))
    assert len(pack.images(np.array([]))) == 0


def test_splits_labels_and_positions_agree(pack: Pack) -> None:
    both = np.concatenate([pack.indices("train"), pack.indices("test")])
    assert sorted(both) == list(range(200))
    assert pack.meta.splits == {"train": 160, "test": 40}
    assert (pack.positions(pack.ids.take([8, 3, 150])) == [8, 3, 150]).all()
    assert (pack.positions(["1/2", "no such"]) == [52, -1]).all()
    assert pack.labels[52] == 2
    with pytest.raises(ThresherError, match='no split "tests"; did you mean "test"'):
        pack.indices("tests")


def test_mean_and_std_are_those_of_the_training_pixels(pack: Pack) -> None:
    train = pack.images(pack.indices("train")) / 255
    assert pack.mean == pytest.approx(train.mean(axis=(0, 1, 2)), abs=1e-12)
    assert pack.std == pytest.approx(train.std(axis=(0, 1, 2)), abs=1e-9)


def test_reads_in_a_forked_worker(pack: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a DataLoader's worker does; threads do not survive a fork."""
    monkeypatch.setattr(gather, "THREADED_FROM", 64)
    monkeypatch.setattr(gather, "THREADS", 2)
    positions = np.array([7, 3, 150, 99])
    before = pack.images(positions)
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    worker = context.Process(target=lambda: answers.put(pack.images(positions)))
    worker.start()
    assert (answers.get() == before).all()
    worker.join()


def test_a_pickled_pack_is_opened_anew(pack: Pack) -> None:
    before = pack.images(np.arange(len(pack)))
    data = pickle.dumps(pack)
    assert len(data) < 5_000
    again = copy.copy(pack)
    assert (again.images(np.arange(len(pack))) == before).all()


def test_opening_keeps_no_file_descriptor(pack: Pack) -> None:
    before = len(os.listdir("/proc/self/fd"))
    opened = [Pack.open(pack.root) for _ in range(5)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(opened) == 5


@pytest.mark.slow
def test_other_readers_open_a_shard(pack: Pack) -> None:
    import duckdb
    import pandas as pd
    import polars as pl

    file = str(pack.root / pack.meta.shards[0].file)
    rows = pack.meta.shards[0].samples
    frame = pl.read_ipc(file)
    assert frame["id"].to_list() == pack.ids.to_pylist()[:rows]
    assert frame["image"][3] == pack.view(3).tobytes()
    table = pa.ipc.open_file(file).read_all()
    counted = duckdb.from_arrow(table).aggregate("label, count(*)", "label")
    assert sum(n for _, n in counted.fetchall()) == rows
    assert (pd.read_feather(file)["label"].to_numpy() == pack.labels[:rows]).all()


def test_encoded_images_are_kept_and_decoded_on_reading(tmp_path: Path) -> None:
    folder = class_folder(tmp_path / "images")
    pack = write_pack(Folder(folder), tmp_path / "pack", ONE)
    assert pack.image_shape is None
    position = int(pack.positions(["val/dog/3.jpg"])[0])
    assert pack.encoded(position) == (folder / "val/dog/3.jpg").read_bytes()
    files = pack.encoded_buffers()
    begin, end = files.begin[position], files.end[position]
    assert bytes(files.data[files.shard[position]][begin:end]) == pack.encoded(position)
    batch = pack.images(np.arange(len(pack)), size=8)
    assert batch.shape == (36, 8, 8, 3)
    assert (batch[position] == decode(pack.encoded(position), 8)).all()
    with pytest.raises(ThresherError, match="differ in size; give one `size`"):
        pack.images(np.array([0]))
    with pytest.raises(ThresherError, match="are encoded"):
        pack.view(0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", None),
        ("classes", "cat"),
        ("classes", []),
        ("splits", [1]),
        ("image_shape", [0, 3, 3]),
        ("image_shape", [6, 5]),
        ("mean", [0.5]),
        ("std", ["a"]),
        ("std", [float("nan"), 1.0, 1.0]),
        ("mean", [10**400, 0.5, 0.5]),
        ("splits", {"train": -1}),
        ("fingerprint", 3),
        ("shards", []),
        ("shards", [{"file": "x"}]),
        ("shards", [{"file": "../x", "samples": 1, "bytes": 1, "sha256": "0"}]),
    ],
)
def test_a_damaged_pack_json_is_named(tmp_path: Path, field: str, value: Any) -> None:
    pack = write_pack(Made(), tmp_path / "pack", ONE)
    meta = json.loads((pack.root / "pack.json").read_text())
    for change in ({**meta, field: value}, {k: v for k, v in meta.items() if k != field}):
        if field not in change and field == "image_shape":
            continue  # absent means variable, which the shards then deny
        (pack.root / "pack.json").write_text(json.dumps(change))
        with pytest.raises(InvalidValueError, match=rf"pack.json is damaged: {field}\b"):
            Pack.open(pack.root)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', "\x00\x01", "{", "[" * 9999])
def test_what_is_no_pack_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "pack.json").write_text(text)
    with pytest.raises(ThresherError, match="is not a pack"):
        Pack.open(tmp_path)


def test_damaged_shards_are_named(pack: Pack) -> None:
    record = pack.meta.shards[-1]
    file = pack.root / record.file
    whole = file.read_bytes()
    for broken in (whole[: len(whole) // 2], whole + b"x", b"", b"\0" * len(whole)):
        file.unlink()
        file.write_bytes(broken)
        with pytest.raises(ThresherError, match=f"{record.file} is missing or damaged"):
            Pack.open(pack.root)
    file.unlink()
    with pytest.raises(ThresherError, match=f"{record.file} is missing or damaged"):
        Pack.open(pack.root)


def test_a_shard_of_another_pack_is_refused(pack: Pack, tmp_path: Path) -> None:
    other = write_pack(Made(shape=(5, 5, 3)), tmp_path / "other", ONE)
    dataclasses.replace(pack.meta, shards=other.meta.shards).write(other.root)
    with pytest.raises(ThresherError, match="its columns are not those of a pack"):
        Pack.open(other.root)


def test_any_flipped_byte_is_found(pack: Pack) -> None:
    assert pack.verify() == []
    record = pack.meta.shards[0]
    file = pack.root / record.file
    for at in np.random.default_rng(1).integers(0, record.bytes, 5).tolist():
        data = bytearray(file.read_bytes())
        data[at] ^= 1
        file.write_bytes(data)
        assert pack.verify() == [record.file]
        data[at] ^= 1
        file.write_bytes(data)
    assert pack.verify() == []
