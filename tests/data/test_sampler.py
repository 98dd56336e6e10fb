"""The data set of a pack, the sampler of a selection, and positions for other loaders."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from test_matching import ImageFolder, select_on, without_cat_big, write_images
from torch.utils.data import DataLoader, DistributedSampler

from thresher.data.order import epoch_order
from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.data.sources.folder import Folder
from thresher.data.write import write_pack
from thresher.errors import InvalidValueError


@pytest.fixture
def pack(digits: Path) -> Pack:
    return Pack.open(digits)


@pytest.fixture
def selection(pack: Pack) -> Selection:
    n = len(pack.indices("train"))
    return select_on(pack, np.random.default_rng(0).random(n) < 0.7)


def test_the_data_set_of_a_pack(pack: Pack) -> None:
    dataset = pack.dataset()
    train = pack.indices("train")
    assert (len(dataset), dataset.targets) == (1437, pack.labels[train].tolist())
    image, label = dataset[5]
    assert label == pack.labels[train[5]]
    assert dataset.ids[5] == pack.ids[int(train[5])].as_py()
    assert image.shape == (1, 8, 8)
    expected = pack.images(train[5:6])[0, :, :, 0] / np.float32(255)
    np.testing.assert_allclose(image[0].numpy(), expected, rtol=1e-6)
    assert pack.dataset(lambda image: image.size, "test")[0][0] == (8, 8)
    with pytest.raises(InvalidValueError, match='no split "tset"'):
        pack.dataset(split="tset")


def test_a_split_in_place_of_a_transform_is_refused(pack: Pack) -> None:
    with pytest.raises(InvalidValueError, match="name a split with `split='test'`"):
        pack.dataset("test")  # type: ignore[arg-type]


def test_a_data_set_of_encoded_images(tmp_path: Path) -> None:
    write_images(tmp_path / "images")
    larger = np.random.default_rng(1).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    Image.fromarray(larger).save(tmp_path / "images" / "dog" / "9.png")
    dataset = write_pack(Folder(tmp_path / "images"), tmp_path / "pack").dataset()
    assert dataset.pack.image_shape is None
    image = dataset[dataset.ids.index("dog/9.png")][0]
    assert np.array_equal((image * 255).round().permute(1, 2, 0).numpy(), larger)


def test_workers_of_a_loader_read_the_same_items(pack: Pack) -> None:
    dataset = pack.dataset()
    assert pickle.loads(pickle.dumps(dataset)).ids == dataset.ids
    alone: Any = next(iter(DataLoader(dataset, 32)))
    shared: Any = next(iter(DataLoader(dataset, 32, num_workers=1)))
    assert torch.equal(alone[0], shared[0])
    assert torch.equal(alone[1], shared[1])


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_steps_are_the_same_on_any_number_of_workers(
    pack: Pack, selection: Selection, world: int
) -> None:
    dataset = pack.dataset()
    order = epoch_order(len(selection.ids), 5, 2, selection.keep)
    expected = [selection.ids[row] for row in order]
    ranks = []
    for rank in range(world):
        sampler = selection.sampler(dataset, seed=5, rank=rank, world=world)
        sampler.set_epoch(2)
        ranks.append([dataset.ids[row] for row in sampler])
        assert len(sampler) == len(ranks[-1])
    assert len({len(part) for part in ranks}) == 1
    merged = [id for step in zip(*ranks, strict=True) for id in step]
    assert merged[: len(expected)] == expected
    assert merged[len(expected) :] == expected[: len(merged) - len(expected)]
    assert len(merged) - len(expected) < world


def test_trainers_see_which_sampler_divides_the_samples(pack: Pack, selection: Selection) -> None:
    """Lightning divides those of any sampler that is no DistributedSampler."""
    dataset = pack.dataset()
    for sampler in (selection.sampler(dataset), selection.sampler(dataset, rank=1, world=2)):
        assert isinstance(sampler, DistributedSampler)
        assert sampler.num_replicas == sampler.world
    whole = selection.sampler(dataset, rank=0, world=1)
    assert not isinstance(whole, DistributedSampler)
    assert list(whole) == list(selection.sampler(dataset))


def test_the_order_does_not_depend_on_that_of_the_data_set(tmp_path: Path) -> None:
    write_images(tmp_path / "images")
    pack = write_pack(Folder(tmp_path / "images"), tmp_path / "pack")
    selection, folder, own = without_cat_big(pack), ImageFolder(tmp_path / "images"), pack.dataset()
    by_folder = [folder.samples[row][0] for row in selection.sampler(folder)]
    by_pack = [str(tmp_path / "images" / own.ids[row]) for row in selection.sampler(own)]
    assert by_folder == by_pack
    assert by_folder != sorted(by_folder)


def test_wrong_ranks_are_refused(pack: Pack, selection: Selection) -> None:
    with pytest.raises(InvalidValueError, match=r"rank must be in \[0, 3\), got 3"):
        selection.sampler(pack.dataset(), rank=3, world=3)
    with pytest.raises(InvalidValueError, match="rank and world must be given together"):
        selection.sampler(pack.dataset(), rank=0)
    selection.keep[:] = False
    with pytest.raises(InvalidValueError, match="keeps no sample"):
        selection.sampler(pack.dataset())


def test_exported_positions_count_the_training_samples(tmp_path: Path) -> None:
    """Folder test/ sorts before train/: positions in the pack are shifted by its samples."""
    for split in ("train", "test"):
        write_images(tmp_path / "images" / split)
    pack = write_pack(Folder(tmp_path / "images"), tmp_path / "pack")
    selection = select_on(pack, np.arange(9) % 2 == 0)
    selection.export(tmp_path / "s.npy", pack)
    assert np.load(tmp_path / "s.npy").tolist() == [0, 2, 4, 6, 8]
    assert selection.indices(pack, within="train").tolist() == [0, 2, 4, 6, 8]
    selection.export(tmp_path / "p.npy", pack, within="pack")
    assert np.load(tmp_path / "p.npy").tolist() == selection.indices(pack).tolist()
    assert selection.indices(pack).tolist() == [9, 11, 13, 15, 17]
    with pytest.raises(InvalidValueError, match="within must be"):
        selection.indices(pack, within="test")  # type: ignore[arg-type]


def test_keys_of_a_webdataset() -> None:
    selection = Selection(
        ids=["a-00/x/1", "a-00/x/2", "mine"],
        labels=np.zeros(3, np.int64),
        keep=np.array([True, False, True]),
        score=np.zeros(3, np.float32),
        reason=[""] * 3,
        fingerprint="f" * 32,
    )
    assert selection.keeps("a-00/x/1")
    assert selection.keeps({"__key__": "x/1", "__url__": "data/a-00.tar"})
    assert selection.keeps({"__key__": "./x/1", "__url__": "data/a-00.tar"})  # of `tar cf x.tar .`
    assert not selection.keeps({"__key__": "x/2", "__url__": "data/a-00.tar.gz"})
    assert selection.keeps({"__key__": "0", "__url__": "b.tar", "json": b'{"id": "mine"}'})
    with pytest.raises(InvalidValueError, match='sample "b/0" is not in the selection'):
        selection.keeps({"__key__": "0", "__url__": "b.tar"})
    with pytest.raises(InvalidValueError, match="the sample has no __url__"):
        selection.keeps({"__key__": "0"})


def test_a_sample_of_a_tar_in_deep_folders_is_not_that_of_a_tar_of_the_same_name() -> None:
    """From the fourth folder on, the decision on the sample of the tar at the top was taken."""
    ids = ["s/0", "a/b/c/d/s/0"]
    keep, rows = np.array([True, False]), np.zeros(2)
    selection = Selection(ids, np.arange(2), keep, rows, ["", ""], fingerprint="")
    assert selection.keeps({"__key__": "0", "__url__": "/data/s.tar"})
    assert not selection.keeps({"__key__": "0", "__url__": "/data/a/b/c/d/s.tar"})
    assert not selection.keeps({"__key__": "0", "__url__": "a/b/c/d/s.tar"})
