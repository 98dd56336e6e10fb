"""Cached maps: found by features and settings, remade if damaged, one per device."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted_classes import planted

from thresher.environment import versions
from thresher.options import to_mapping
from thresher.select.filters.grid import GridFilter
from thresher.select.filters.network import NetworkFilter
from thresher.select.inputs import FilterInputs
from thresher.select.reduction import (
    PACKAGES,
    MapOptions,
    Reduction,
    _engine,
    cached_reduction,
)


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


def test_maps_of_version_0_1_are_found_and_other_settings_have_other_maps(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
    old = {"method": "tsne", "components": 50, "perplexity": 2, "seed": 0, "device": "cpu"}
    old["start"] = "pca"
    digest = hashlib.sha256(f"{x.shape} {x.dtype}".encode() + x.tobytes())
    digest.update(json.dumps([old, versions(PACKAGES)], sort_keys=True).encode())
    map_of_old = tmp_path / f"{digest.hexdigest()[:24]}.npz"
    points = np.ones((12, 2), np.float32)
    np.savez(map_of_old, points=points, told=np.array('{"kl": 1.0, "explained": 0.5}'))

    def reduced(**options: Any) -> np.ndarray:
        return cached_reduction(
            tmp_path, x, MapOptions(perplexity=2, device="cpu", **options)
        ).points

    np.testing.assert_array_equal(reduced(), points)
    changes: list[dict[str, Any]] = [
        {"tsne": "sklearn-2020"},
        {"learning_rate": 3.0},
        {"exaggeration": 4.0},
    ]
    for number, change in enumerate([*changes, {"iterations": 30}]):
        assert not np.array_equal(reduced(**{"iterations": 20, **change}), points)
        assert len(list(tmp_path.iterdir())) == 2 + number
    scikit = MapOptions(perplexity=2, device="cpu", tsne="sklearn-2020", iterations=20)
    random, pca = (cached_reduction(tmp_path, x, scikit, start=s).points for s in (None, "pca"))
    assert not np.array_equal(random, pca), "a start that is given is that of the map"


def test_a_stored_map_is_used_without_torch(tmp_path: Path) -> None:
    """With device auto, too: torch takes seconds to import."""
    x = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    first = cached_reduction(tmp_path, x, MapOptions(), "pca")
    code = (
        "import sys, numpy as np, pathlib\n"
        "from thresher.select.reduction import MapOptions, cached_reduction\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "x = np.load(folder / 'x.npy')\n"
        "points = cached_reduction(folder, x, MapOptions(), 'pca').points\n"
        "assert 'torch' not in sys.modules\n"
        "np.save(folder / 'points.npy', points)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "points.npy"), first.points)


def some(folder: Path) -> FilterInputs:
    samples, _, _ = planted()
    few = samples.take(np.arange(200))
    return FilterInputs(labels=few.labels, ids=few.ids, features=few.features, maps=folder)


@pytest.mark.slow
def test_another_eps_needs_no_other_map(tmp_path: Path) -> None:
    a = NetworkFilter(drop=0.1, iterations=100, device="cpu").fit_inputs(some(tmp_path))
    b = NetworkFilter(drop=0.2, iterations=100, device="cpu").fit_inputs(some(tmp_path))
    grid = GridFilter(drop=0.2, iterations=100, device="cpu").fit_inputs(some(tmp_path))
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


def test_maps_of_an_older_engine_on_a_gpu_are_not_used_again() -> None:
    """Those of openTSNE on a CPU are, and principal components."""
    assert _engine("tsne", "cuda:0") == {"device": "cuda:0", "engine": 4}
    assert _engine("tsne", "cpu") == {"device": "cpu"}
    assert _engine("pca", "cuda") == {"device": "cuda"}
