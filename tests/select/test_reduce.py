"""Reduction: PCA equals scikit-learn's, maps keep neighbourhoods, the same seed the same bytes."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from thresher.errors import ThresherError
from thresher.select import feature_blocks, pca, reduction, tsne_loading
from thresher.select.pca import fit_pca
from thresher.select.reduction import (
    MapOptions,
    Reduction,
    TsneSettings,
    _initial,
    _own_tsne,
    reduce,
    tsne_settings,
)


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return x[:500].astype(np.float32), y[:500]


@pytest.fixture(scope="module")
def digits_map(digits: tuple[np.ndarray, np.ndarray]) -> Reduction:
    return reduce(digits[0], MapOptions(device="cpu"))


@pytest.mark.parametrize("exact", [True, False])
def test_pca_equals_scikit_learn(
    digits: tuple[np.ndarray, np.ndarray], exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sklearn.decomposition import PCA

    monkeypatch.setattr(feature_blocks, "BLOCK_BYTES", 64 * 8 * 100)  # many small blocks
    monkeypatch.setattr(pca, "EXACT_WIDTH", 4096 if exact else 0)
    x, _ = digits
    fitted = fit_pca(x, 10)
    expected = PCA(10, svd_solver="full").fit(x.astype(np.float64))
    ours = fitted.project(x).numpy()
    theirs = expected.transform(x)
    theirs *= np.sign((ours * theirs).sum(axis=0))
    np.testing.assert_allclose(ours, theirs, atol=2e-3 if exact else 0.05)
    np.testing.assert_allclose(fitted.explained, expected.explained_variance_ratio_, rtol=1e-3)


def test_pca_reads_a_half_precision_memory_map(
    digits: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    x, _ = digits
    np.save(tmp_path / "f.npy", x.astype(np.float16))
    mapped = np.load(tmp_path / "f.npy", mmap_mode="r")
    np.testing.assert_array_equal(
        reduce(mapped, MapOptions(components=5), "pca").points,
        reduce(x, MapOptions(components=5), "pca").points,
    )


def test_features_move_to_a_device_without_a_copy_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(0).normal(size=(4000, 256)).astype(np.float16)
    np.save(tmp_path / "f.npy", x)
    mapped = np.load(tmp_path / "f.npy", mmap_mode="r")
    monkeypatch.setattr(feature_blocks, "BLOCK_BYTES", x.nbytes // 10)
    tracemalloc.start()
    moved = feature_blocks.on_device(mapped, torch.device("cpu"))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_array_equal(moved.numpy(), x)
    assert most < x.nbytes / 3  # what numpy held, which the tensor is not part of


def test_pca_refuses_numbers_that_are_not_finite() -> None:
    x = np.ones((10, 4), np.float32)
    x[3, 2] = np.inf
    with pytest.raises(ThresherError, match="finite"):
        reduce(x, MapOptions(), "pca")


@pytest.mark.slow  # a map of digits
@pytest.mark.xdist_group("digits_map")
def test_map_keeps_the_classes_of_neighbours(
    digits: tuple[np.ndarray, np.ndarray], digits_map: Reduction
) -> None:
    from sklearn.model_selection import cross_val_score
    from sklearn.neighbors import KNeighborsClassifier

    (x, y), made = digits, digits_map
    knn = KNeighborsClassifier(5)
    before = cross_val_score(knn, x, y, cv=5).mean()
    after = cross_val_score(knn, made.points, y, cv=5).mean()
    assert after > before - 0.03
    assert made.kl is not None
    assert 0.3 < made.kl < 0.9
    assert made.points.dtype == np.float32


@pytest.mark.slow
def test_a_seed_gives_the_same_bytes_and_another_seed_others(
    digits: tuple[np.ndarray, np.ndarray],
) -> None:
    x, _ = digits
    few = (MapOptions(seed=s, iterations=100, device="cpu") for s in (0, 0, 1))
    a, b, c = (reduce(x[:400], options) for options in few)
    assert a.points.tobytes() == b.points.tobytes()
    assert a.kl == b.kl
    assert not np.array_equal(a.points, c.points)


@pytest.mark.slow  # two maps of many points
def test_the_fft_optimiser_of_larger_maps_gives_the_same_bytes() -> None:
    x = np.random.default_rng(0).normal(size=(10_500, 8)).astype(np.float32)
    a, b = (reduce(x, MapOptions(iterations=4, device="cpu")) for _ in range(2))
    assert a.points.tobytes() == b.points.tobytes()


@pytest.mark.slow  # two maps
@pytest.mark.xdist_group("digits_map")
def test_divergence_is_no_worse_than_that_of_open_tsne(
    digits: tuple[np.ndarray, np.ndarray], digits_map: Reduction
) -> None:
    from openTSNE import TSNE

    (x, _), ours = digits, digits_map
    z = reduce(x, MapOptions(), "pca").points
    theirs = TSNE(random_state=0, neighbors="exact").fit(z).kl_divergence
    assert ours.kl is not None
    assert ours.kl <= 1.02 * theirs


def test_unknown_method_and_missing_device_are_named() -> None:
    x = np.random.default_rng(0).normal(size=(20, 4))
    with pytest.raises(ThresherError, match='did you mean "tsne"'):
        reduce(x, MapOptions(), "tsnee")  # type: ignore[arg-type]
    if not torch.cuda.is_available():
        with pytest.raises(ThresherError, match='device "cuda" is not available'):
            reduce(x, MapOptions(device="cuda"))


def test_a_map_that_fails_waits_for_the_kernels_that_it_loads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GPU that is not there, to which the features cannot move."""
    monkeypatch.setattr(reduction, "choose_device", lambda name: torch.device("cuda:77"))
    with pytest.raises((AssertionError, RuntimeError)):
        reduce(np.random.default_rng(0).normal(size=(1000, 4)), MapOptions())
    assert tsne_loading._loading == []


def _spread(points: np.ndarray) -> float:
    return float(np.sqrt(((points - points.mean(0)) ** 2).sum(1).mean()))


@pytest.mark.slow  # makes three maps
def test_the_rate_of_both_engines_is_four_times_that_of_scikit_learn(
    digits: tuple[np.ndarray, np.ndarray],
) -> None:
    """After few iterations at a low rate the scale of a map depends on the rate alone."""
    import inspect

    import torch
    from sklearn.manifold import TSNE

    x = digits[0][:300]
    z = reduce(x, MapOptions(device="cpu"), "pca").points
    length = "max_iter" if "max_iter" in inspect.signature(TSNE).parameters else "n_iter"
    theirs = TSNE(learning_rate=10.0, init="random", random_state=0, **{length: 300})
    expected = _spread(theirs.fit_transform(z))
    options = MapOptions(device="cpu", tsne="sklearn-2020", learning_rate=40.0, iterations=300)
    assert _spread(reduce(x, options).points) == pytest.approx(expected, rel=0.12)
    settings, components = tsne_settings(options), torch.from_numpy(z)
    own, _ = _own_tsne(components, _initial(components, 0, "random"), options, settings)
    assert _spread(own) == pytest.approx(expected, rel=0.12)
    slow = MapOptions(device="cpu", tsne="sklearn-2020", learning_rate=10.0, iterations=300)
    assert _spread(reduce(x, slow).points) < 0.85 * expected


def test_defaults_of_2020_are_those_of_scikit_learn_then() -> None:
    assert tsne_settings(MapOptions(tsne="sklearn-2020")) == TsneSettings(800, 12, 1000, "random")
    assert tsne_settings(MapOptions()) == TsneSettings(None, 12, 750, "pca")
    own = MapOptions(tsne="sklearn-2020", learning_rate=5, exaggeration=4, iterations=20)
    assert tsne_settings(own) == TsneSettings(5, 4, 20, "random")
    assert tsne_settings(own, "pca") == TsneSettings(5, 4, 20, "pca"), "a start that is given wins"
    assert tsne_settings(MapOptions(), "random") == TsneSettings(None, 12, 750, "random")
    with pytest.raises(ThresherError, match='tsne cannot be "sklearn"'):
        tsne_settings(MapOptions(tsne="sklearn"))  # type: ignore[arg-type]
