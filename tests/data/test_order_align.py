"""Parts that begin at multiples of N, so that ghost batch norm's groups stay whole."""

import numpy as np
import pytest

from thresher.data.order import bounds, part


@pytest.mark.parametrize("seed", range(30))
def test_aligned_parts_cut_only_between_groups(seed: int) -> None:
    random = np.random.default_rng(seed)
    n, world, align = (int(random.integers(*span)) for span in ((0, 300), (1, 9), (1, 33)))
    batch = np.arange(n)
    parts = [part(batch, rank, world, align) for rank in range(world)]
    assert (np.concatenate(parts) == batch).all()
    groups = [-(-len(p) // align) for p in parts]
    assert max(groups) - min(groups) <= 1
    for rank, own in enumerate(parts):
        begin, end = bounds(n, rank, world, align)
        assert (begin, end) == ((own[0], own[-1] + 1) if len(own) else (begin, begin))
        assert begin % align == 0 or begin == n


def test_without_alignment_it_is_the_plain_cut() -> None:
    assert [bounds(10, rank, 4) for rank in range(4)] == [(0, 3), (3, 6), (6, 8), (8, 10)]
    assert [bounds(10, rank, 4, 4) for rank in range(4)] == [(0, 4), (4, 8), (8, 10), (10, 10)]
