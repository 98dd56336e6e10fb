"""Resident and streamed data give the same batches, in bounded memory."""

import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from made_images import Made
from thresher.data import loader as loader_module
from thresher.data.hashing import sample_keys
from thresher.data.loader import Loader
from thresher.data.pack import Pack
from thresher.data.sources.base import Block, Source
from thresher.data.sources.digits import Digits
from thresher.data.write import WriteOptions, write_pack
from thresher.errors import ThresherError


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return write_pack(Digits(), tmp_path_factory.mktemp("packs") / "digits")


def order(pack: Pack) -> list[np.ndarray]:
    shuffled = np.random.default_rng(0).permutation(pack.indices("train"))
    return np.array_split(shuffled, 13)


@pytest.mark.parametrize("resident", [True, False])
def test_batches_are_the_packs_samples_in_order(digits: Pack, resident: bool) -> None:
    loader = Loader(digits, digits.indices("train"), resident=resident)
    ids = np.array(digits.ids.to_pylist())
    for positions, batch in zip(order(digits), loader.batches(order(digits)), strict=True):
        assert np.array_equal(batch.images.numpy(), digits.images(positions))
        assert np.array_equal(batch.labels.numpy(), digits.labels[positions])
        assert np.array_equal(batch.keys.numpy(), sample_keys(ids[positions]))
        again = loader.batch(positions)
        assert torch.equal(again.images, batch.images)
        assert torch.equal(loader.keys[loader.rows(positions)], batch.keys)


def test_streamed_batches_outlive_the_buffers(digits: Pack) -> None:
    """A batch kept by its user is not overwritten by the ones read after it."""
    loader = Loader(digits, resident=False, threads=2)
    kept = list(loader.batches(order(digits)))
    for positions, batch in zip(order(digits), kept, strict=True):
        assert np.array_equal(batch.images.numpy(), digits.images(positions))


def test_small_data_is_resident_and_large_is_not(
    digits: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Loader(digits).resident
    monkeypatch.setattr(loader_module, "_RESIDENT_ON_CPU", 1000)
    large = Loader(digits)
    assert not large.resident
    assert large.images is None


def test_streaming_reads_only_so_far_ahead(digits: Pack) -> None:
    asked = 0

    def endless() -> Iterator[np.ndarray]:
        nonlocal asked
        while True:
            asked += 1
            yield np.arange(50)

    stream = Loader(digits, resident=False, threads=3).batches(endless())
    for _ in range(5):
        next(stream)
    assert 5 <= asked <= 5 + 2 * 3
    stream.close()  # type: ignore[attr-defined]
    assert not [t for t in threading.enumerate() if t.name.startswith("thresher-read")]


def test_one_large_batch_still_streams(digits: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_module, "READ_AHEAD", 10)
    loader = Loader(digits, resident=False)
    sizes = [len(batch.images) for batch in loader.batches(order(digits))]
    assert sizes == [len(positions) for positions in order(digits)]


def anonymous_bytes() -> int:
    """Memory of this process's own, the maps of files not counted."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("RssAnon"))) << 10


@pytest.mark.slow  # reads 300 MB
def test_memory_does_not_grow_with_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """150 MB in random order, through buffers of 16 MB."""
    monkeypatch.setattr(loader_module, "READ_AHEAD", 16 << 20)
    source = Made(rows=500, chunks=2, shape=(224, 224, 3), blocks=20)
    pack = write_pack(source, tmp_path / "pack", WriteOptions(processes=1))
    loader = Loader(pack, resident=False)
    shuffled = np.random.default_rng(0).permutation(len(pack))
    gc.collect()
    before = anonymous_bytes()
    peak = 0
    for batch in loader.batches(np.array_split(shuffled, 100)):
        assert len(batch.images) == 10
        peak = max(peak, anonymous_bytes() - before)
    assert peak < 80e6


class _Photos(Source):
    """A dozen encoded images of different sizes."""

    def __init__(self, folder: Path) -> None:
        self.name, self.classes, self.image_shape = "photos", ["a", "b"], None
        self.folder = folder

    def key(self) -> str:
        return "photos"

    def chunks(self) -> list[str]:
        return ["all"]

    def read(self, chunk: str) -> Iterator[Block]:
        random = np.random.default_rng(1)
        names = [f"{n:02d}" for n in range(12)]
        payload = []
        for n in range(12):
            file = self.folder / f"{n}.png"
            Image.fromarray(random.integers(0, 256, (20 + n, 30, 3), np.uint8)).save(file)
            payload.append(file.read_bytes())
        yield Block(names, [n % 2 for n in range(12)], ["train"] * 12, payload)


def test_encoded_images_are_decoded_to_one_size(tmp_path: Path) -> None:
    pack = write_pack(_Photos(tmp_path), tmp_path / "pack")
    with pytest.raises(ThresherError, match="the images of photos differ in size"):
        Loader(pack)
    both = [Loader(pack, resident=resident, size=16) for resident in (True, False)]
    positions = [np.array([5, 1, 11]), np.array([0])]
    for one, two in zip(*(loader.batches(positions) for loader in both), strict=True):
        assert one.images.shape[1:] == (16, 16, 3)
        assert torch.equal(one.images, two.images)


@pytest.mark.gpu
@pytest.mark.parametrize("resident", [True, False])
def test_on_a_gpu(digits: Pack, resident: bool) -> None:
    loader = Loader(digits, digits.indices("train"), "cuda", resident)
    for _ in range(3):
        for positions, batch in zip(order(digits), loader.batches(order(digits)), strict=True):
            assert batch.images.is_cuda
            assert np.array_equal(batch.images.cpu().numpy(), digits.images(positions))
            assert np.array_equal(batch.labels.cpu().numpy(), digits.labels[positions])
