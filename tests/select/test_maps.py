"""Cached maps: found by features and settings, remade if damaged, one per device."""

from pathlib import Path

import numpy as np
import pytest
from test_filters import planted

from thresher.options import to_mapping
from thresher.select.filters.grid import GridFilter
from thresher.select.filters.network import NetworkFilter
from thresher.select.inputs import FilterInputs
from thresher.select.reduction import MapOptions, Reduction, cached_reduction


def test_a_map_is_cached_by_features_and_settings(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float16)

    def reduced(folder: Path | None = tmp_path, seed: int = 0) -> Reduction:
        return cached_reduction(folder, x, MapOptions(seed=seed, device="cpu"), "pca")

    first, again = reduced(), reduced()
    np.testing.assert_array_equal(first.points, again.points)
    assert first.explained == again.explained
    assert first.seconds
    assert not again.seconds, "read, not computed"
    assert reduced(seed=1).seconds
    assert len(list(tmp_path.glob("*.npz"))) == 2
    x[3, 2] += 1
    assert reduced().seconds
    for cached in tmp_path.glob("*.npz"):
        cached.write_bytes(cached.read_bytes()[:100])
    assert reduced().seconds, "a damaged file is made again"
    assert not reduced().seconds
    assert reduced(folder=None).seconds


def some(folder: Path) -> FilterInputs:
    samples, _, _ = planted()
    few = samples.take(np.arange(200))
    return FilterInputs(labels=few.labels, ids=few.ids, features=few.features, maps=folder)


def test_another_eps_needs_no_other_map(tmp_path: Path) -> None:
    a = NetworkFilter(drop=0.1, device="cpu").fit_inputs(some(tmp_path))
    b = NetworkFilter(drop=0.2, device="cpu").fit_inputs(some(tmp_path))
    grid = GridFilter(drop=0.2, device="cpu").fit_inputs(some(tmp_path))
    assert len(list(tmp_path.iterdir())) == 1
    assert "tsne" in a.seconds_
    assert "tsne" not in b.seconds_
    assert "tsne" not in grid.seconds_
    assert (~a.keep_ <= ~b.keep_).all(), "a larger share drops the same and more"
    assert "maps" not in to_mapping(a)


@pytest.mark.gpu
def test_on_a_gpu_the_same_bytes_and_what_was_planted() -> None:
    samples, flipped, _ = planted()
    a, b = (NetworkFilter(drop=0.05, device="cuda").fit_inputs(samples) for _ in range(2))
    assert a.reduction_.points.tobytes() == b.reduction_.points.tobytes()
    assert a.reduction_.kl == b.reduction_.kl
    assert flipped[~a.keep_].mean() > 0.6
