"""The validation split and the order of samples: what must hold for any data."""

import numpy as np
import pytest

from thresher.data.order import epoch_order, part
from thresher.data.split import hold_out
from thresher.errors import ThresherError


@pytest.mark.parametrize("seed", range(30))
def test_hold_out_takes_its_share_of_every_class(seed: int) -> None:
    random = np.random.default_rng(seed)
    n = int(random.integers(2, 500))
    labels = random.choice(int(random.integers(1, 12)), n)
    size = int(random.integers(0, n))
    held = hold_out(labels, size, seed)
    assert held.sum() == size
    for label in np.unique(labels):
        fair = (labels == label).sum() * size / n
        assert abs(held[labels == label].sum() - fair) < 1
    assert (held == hold_out(labels, size, seed)).all()
    if 10 < size < n - 10:
        assert (held != hold_out(labels, size, seed + 1)).any()


def test_cifar_gives_500_of_each_class() -> None:
    labels = np.arange(50_000) % 10
    held = hold_out(labels, 5_000, 0)
    assert (np.bincount(labels[held]) == 500).all()


@pytest.mark.parametrize("size", [-1, 10, 11])
def test_hold_out_refuses_what_cannot_be(size: int) -> None:
    with pytest.raises(ThresherError, match="must have fewer than 10 samples"):
        hold_out(np.zeros(10, int), size, 0)


@pytest.mark.parametrize("seed", range(10))
def test_ranks_share_an_epoch_without_loss_or_repetition(seed: int) -> None:
    random = np.random.default_rng(seed)
    n, world = int(random.integers(1, 300)), int(random.integers(1, 17))
    batch = int(random.integers(1, n + 1))
    order = epoch_order(n, seed, 3)
    assert sorted(order) == list(range(n))
    assert (order == epoch_order(n, seed, 3)).all()
    seen = []
    for begin in range(0, n, batch):
        whole = order[begin : begin + batch]
        parts = [part(whole, rank, world) for rank in range(world)]
        sizes = [len(p) for p in parts]
        assert max(sizes) - min(sizes) <= 1
        assert (np.concatenate(parts) == whole).all()
        seen.append(whole)
    assert (np.concatenate(seen) == order).all()


def test_epochs_and_seeds_differ() -> None:
    orders = {tuple(epoch_order(50, seed, epoch)) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16


@pytest.mark.parametrize("seed", range(10))
def test_filtering_leaves_the_order_of_the_rest(seed: int) -> None:
    random = np.random.default_rng(seed)
    n = int(random.integers(2, 200))
    kept = random.random(n) < 0.7
    full = epoch_order(n, seed, 1)
    filtered = epoch_order(n, seed, 1, kept)
    assert filtered.tolist() == [position for position in full if kept[position]]
