"""Packs of encoded files: fingerprint of the files, mean and deviation of some of the images."""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from made_images import Made, class_folder
from thresher.data import normalisation, write
from thresher.data.digest import file_digest, fingerprint, sample_digest
from thresher.data.export import WRITERS, export
from thresher.data.hashing import sample_keys
from thresher.data.images import decode
from thresher.data.pack import Pack
from thresher.data.sources.base import Block
from thresher.data.sources.folder import Folder
from thresher.data.sources.registry import open_source
from thresher.data.write import WriteOptions, write_pack

ONE, TWO = WriteOptions(processes=1), WriteOptions(processes=2)


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    place = tmp_path_factory.mktemp("encoded")
    return write_pack(Folder(class_folder(place / "images")), place / "pack", ONE)


def stored(pack: Pack) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((pack.root / "pack.json").read_text())
    return content


def joined(digests: list[bytes]) -> str:
    return fingerprint(np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 16))


def rows(pack: Pack) -> Iterator[tuple[str, int, bytes]]:
    for n, id in enumerate(pack.ids.to_pylist()):
        yield id, int(pack.labels[n]), pack.encoded(n)


def pixel_moments(pack: Pack, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of every pixel, or of every eighth each way above 64×64 pixels."""
    pixels = []
    for n in positions.tolist():
        image = decode(pack.encoded(n))
        step = 8 if image.shape[0] * image.shape[1] > 64 * 64 else 1
        pixels.append(image[::step, ::step].reshape(-1, 3))
    values = np.concatenate(pixels).astype(np.float64) / 255
    return values.mean(axis=0), values.std(axis=0)


def test_pack_json_says_what_the_fingerprint_is_of(pack: Pack, tmp_path: Path) -> None:
    assert pack.meta.digests == stored(pack)["digests"] == "files"
    assert pack.fingerprint == joined([file_digest(*row) for row in rows(pack)])
    raw = write_pack(Made(), tmp_path / "raw", ONE)
    assert raw.meta.digests == "pixels"
    assert "digests" not in stored(raw), "pack.json of raw packs stays the same"


def test_the_digest_tells_id_label_and_file() -> None:
    digests = {
        file_digest(id, label, data)
        for id in ("a", "b")
        for label in (0, 1)
        for data in (b"", b"file", b"other")
    }
    assert len(digests) == 12


def test_other_files_of_the_same_pixels_have_another_fingerprint(tmp_path: Path) -> None:
    packs = []
    for level in (1, 9):
        place = tmp_path / f"level {level}" / "images" / "a"
        place.mkdir(parents=True)
        for n in range(3):
            pixels = np.random.default_rng(n).integers(0, 9, (30 + n, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / f"{n}.png", compress_level=level)
        packs.append(write_pack(Folder(place.parent), place.parent.parent / "pack", ONE))
    one, other = packs
    assert one.fingerprint != other.fingerprint
    assert one.meta.mean == other.meta.mean


@pytest.mark.parametrize("format", sorted(WRITERS))
def test_an_exported_pack_keeps_its_files(pack: Pack, tmp_path: Path, format: str) -> None:
    export(pack, tmp_path / "out", format)
    back = write_pack(open_source(str(tmp_path / "out")), tmp_path / "back", ONE)
    assert {id: data for id, _, data in rows(back)} == {id: data for id, _, data in rows(pack)}
    assert back.fingerprint == pack.fingerprint
    assert (back.meta.mean, back.meta.std) == (pack.meta.mean, pack.meta.std)


def test_a_pack_of_an_older_version_is_verified_by_its_pixels(pack: Pack, tmp_path: Path) -> None:
    digests = [sample_digest(id, label, decode(data)) for id, label, data in rows(pack)]
    mean, std = pixel_moments(pack, pack.indices("train"))
    content = stored(pack)
    del content["digests"]
    content.update(fingerprint=joined(digests), mean=mean.tolist(), std=std.tolist())
    for shard in pack.meta.shards:
        (tmp_path / shard.file).write_bytes((pack.root / shard.file).read_bytes())
    (tmp_path / "pack.json").write_text(json.dumps(content))
    assert Pack.open(tmp_path).verify() == []
    content["digests"] = "files"
    (tmp_path / "pack.json").write_text(json.dumps(content))
    assert Pack.open(tmp_path).verify() == ["fingerprint"]


def test_a_small_pack_counts_every_training_image(pack: Pack) -> None:
    mean, std = pixel_moments(pack, pack.indices("train"))
    assert pack.mean == pytest.approx(mean)
    assert pack.std == pytest.approx(std)


@pytest.mark.slow
def test_a_large_pack_counts_the_images_of_the_smallest_hashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(normalisation, "LEAST", 5)
    folder = class_folder(tmp_path / "images", each=40)
    pack = write_pack(Folder(folder), tmp_path / "one", ONE)
    train = pack.indices("train")
    keys = sample_keys(pack.ids.take(train).to_pylist())
    mean, std = pixel_moments(pack, train[np.argsort(keys)[: len(train) // 16]])
    assert len(train) // 16 == 7
    assert pack.mean == pytest.approx(mean)
    assert pack.std == pytest.approx(std)
    assert pack.verify() == []

    monkeypatch.setattr("thresher.data.sources.encoded.ranges", _chunks_of_17)
    other = write_pack(Folder(folder), tmp_path / "two", TWO)
    assert len(other.meta.shards) > 10
    assert (other.meta.mean, other.meta.std) == (pack.meta.mean, pack.meta.std)
    assert other.fingerprint == pack.fingerprint


def _chunks_of_17(sizes: list[int]) -> list[str]:
    bounds = [*range(0, len(sizes), 17), len(sizes)]
    return [f"{begin}:{end}" for begin, end in pairwise(bounds)]


class Stopped(Made):
    """Is stopped in its second chunk, if told."""

    stop = True

    def read(self, chunk: str) -> Iterator[Block]:
        if chunk == "1" and self.stop:
            raise KeyboardInterrupt
        yield from super().read(chunk)


def test_half_a_pack_of_an_older_version_is_not_continued(tmp_path: Path) -> None:
    source = Stopped(rows=4, chunks=2)
    with pytest.raises(KeyboardInterrupt):
        write_pack(source, tmp_path / "pack", ONE)
    staging = tmp_path / ".pack.partial"
    plan = json.loads((staging / "plan.json").read_text())
    assert plan["format"] == write.STAGING_FORMAT > 2
    (staging / "plan.json").write_text(json.dumps({**plan, "format": 2}))
    (staging / "00000.arrow").write_bytes(b"of an older version")
    source.stop = False
    assert write_pack(source, tmp_path / "pack", ONE).verify() == []
