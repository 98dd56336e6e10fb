"""Approximate neighbours against exact ones."""

import pytest
import torch
from torch import Tensor

from thresher.errors import InvalidValueError
from thresher.select import neighbours as module
from thresher.select.affinities import affinities
from thresher.select.neighbours import approximate_neighbours, neighbours

K = 30


def _points(kind: str, n: int = 4000, d: int = 8) -> Tensor:
    random = torch.Generator().manual_seed(3)
    if kind == "uniform":
        return torch.rand(n, d, generator=random)
    centres = 5 * torch.randn(20, d, generator=random)
    if kind == "uneven":  # most points in one cluster, some far away
        centres[1:] *= 20
        chosen = (torch.rand(n, generator=random) ** 8 * 20).long()
    else:
        chosen = torch.randint(20, (n,), generator=random)
    return centres[chosen] + torch.randn(n, d, generator=random)


def _recall(found: Tensor, exact: Tensor) -> float:
    both = torch.cat([found, exact], 1).sort(1).values
    return float((both[:, 1:] == both[:, :-1]).sum()) / exact.numel()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["uniform", "clustered", "uneven"])
def test_most_neighbours_are_found(kind: str) -> None:
    x = _points(kind)
    distances, indices = approximate_neighbours(x, K)
    _, exact = neighbours(x, K)
    assert _recall(indices, exact) >= 0.97
    assert (distances.diff(dim=1) >= 0).all()
    apart = (x[indices] - x[:, None]).square().sum(-1)
    rounding = 1e-6 * float(x.square().sum(1).max())
    torch.testing.assert_close(distances, apart, rtol=1e-3, atol=rounding)
    assert not (indices == torch.arange(len(x))[:, None]).any(), "a point is its own neighbour"
    again = approximate_neighbours(x, K)
    assert torch.equal(again[1], indices)
    assert torch.equal(again[0], distances)


def test_the_recall_asked_for_decides_and_1_is_exact() -> None:
    x = _points("uniform", 3000, 12)
    _, exact = neighbours(x, K)
    recalls = [_recall(approximate_neighbours(x, K, recall)[1], exact) for recall in (0.5, 0.9, 1)]
    assert recalls[0] < recalls[1] < recalls[2]
    assert recalls[1] == pytest.approx(0.9, abs=0.04)
    assert recalls[2] > 0.9999


def test_outliers_find_their_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cells near the centre of an outlier's cell are not those near to it."""
    x = _points("clustered")
    x[::100] *= 4
    _, exact = neighbours(x, K)

    def recall_of_outliers() -> float:
        return _recall(approximate_neighbours(x, K, 0.9)[1][::100], exact[::100])

    assert recall_of_outliers() > 0.999
    monkeypatch.setattr(module, "FAR", 0)
    assert recall_of_outliers() < 0.9


def test_copies_are_each_others_neighbours() -> None:
    """Many equal points: a whole cell of copies, all distances tied."""
    x = torch.cat([torch.zeros(1500, 4), _points("clustered", 1500, 4)])
    distances, indices = approximate_neighbours(x, K)
    copies = indices[:1500]
    assert (copies < 1500).all()
    assert (distances[:1500] == 0).all()
    assert not (indices == torch.arange(3000)[:, None]).any()
    assert all(len(row.unique()) == K for row in indices[::100])
    same = torch.zeros(600, 3)
    assert (approximate_neighbours(same, K)[0] == 0).all()


@pytest.mark.parametrize("n", [31, 257, 700])
def test_few_points_and_small_cells(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells with fewer points than neighbours are searched together with others."""
    monkeypatch.setattr(module, "CELL", 10)
    x = _points("uniform", n)
    _, indices = approximate_neighbours(x, K)
    assert _recall(indices, neighbours(x, K)[1]) >= 0.97
    with pytest.raises(InvalidValueError, match=f"k must be below the number of points, {n}"):
        approximate_neighbours(x, n)


def test_small_blocks_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x = _points("clustered", 2000)
    _, indices = approximate_neighbours(x, K)
    monkeypatch.setattr(module, "BLOCK_BYTES", 1 << 16)
    assert _recall(approximate_neighbours(x, K)[1], indices) > 0.999


def test_the_memory_of_the_input_is_used_only_if_allowed() -> None:
    x = _points("clustered")
    given = x.clone()
    kept = approximate_neighbours(x, K)
    assert torch.equal(x, given)
    taken = approximate_neighbours(x, K, overwrite=True)
    assert not torch.equal(x, given)
    assert torch.equal(kept[0], taken[0])
    assert torch.equal(kept[1], taken[1])


def test_large_data_is_searched_approximately(monkeypatch: pytest.MonkeyPatch) -> None:
    """The affinities of a map hardly differ."""
    x = _points("clustered", 3000)
    exact = affinities(x, 10)
    monkeypatch.setattr(module, "EXACT_LIMIT", 2000)
    close = affinities(x, 10)
    dense = [torch.zeros(3000, 3000).index_put_((p.rows(), p.column.long()), p.value)
             for p in (exact, close)]  # fmt: skip
    assert not torch.equal(*dense)
    assert float((dense[0] - dense[1]).abs().sum()) < 0.03


@pytest.mark.gpu
def test_on_a_gpu_the_same_neighbours_twice() -> None:
    x = _points("clustered", 50_000, 50).cuda()
    (_, first), (_, second) = (approximate_neighbours(x, 90) for _ in range(2))
    assert torch.equal(first, second)
    assert _recall(first.cpu(), neighbours(x, 90)[1].cpu()) >= 0.97


@pytest.mark.gpu
@pytest.mark.parametrize("overwrite", [False, True])
def test_many_columns_take_little_memory(overwrite: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with ImageNet's features, of which four copies would not fit."""
    monkeypatch.setattr(module, "BLOCK_BYTES", 1 << 24)
    random = torch.Generator("cuda").manual_seed(0)
    centres = 5 * torch.randn(40, 1024, generator=random, device="cuda")
    x = centres.repeat(1000, 1)
    x += torch.randn(40_000, 1024, generator=random, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    approximate_neighbours(x, 10, overwrite=overwrite)
    more = (torch.cuda.max_memory_allocated() - before) / (x.numel() * 4)
    assert more < (1.5 if overwrite else 2.5)
