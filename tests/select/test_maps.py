"""Kept maps: the right one is found, a damaged one is made again, and a GPU makes its own."""

from pathlib import Path

import numpy as np
import pytest
from test_filters import planted

from thresher.select.filters.network import NetworkFilter
from thresher.select.maps import kept_reduction
from thresher.select.reduce import Reduction


def test_a_map_is_kept_by_features_and_settings(tmp_path: Path) -> None:
    made: list[str] = []

    def make(name: str) -> Reduction:
        made.append(name)
        return Reduction(np.full((20, 2), len(made), np.float32), kl=0.5, explained=0.9)

    x = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float16)
    first = kept_reduction(tmp_path, x, {"seed": 0}, lambda: make("a"))
    again = kept_reduction(tmp_path, x, {"seed": 0}, lambda: make("b"))
    np.testing.assert_array_equal(first.points, again.points)
    assert (again.kl, again.explained) == (0.5, 0.9)
    kept_reduction(tmp_path, x, {"seed": 1}, lambda: make("other seed"))
    x[3, 2] += 1
    kept_reduction(tmp_path, x, {"seed": 0}, lambda: make("other features"))
    assert made == ["a", "other seed", "other features"]
    for kept in tmp_path.glob("*.npz"):
        kept.write_bytes(kept.read_bytes()[:100])
    kept_reduction(tmp_path, x, {"seed": 0}, lambda: make("damaged"))
    assert made[-1] == "damaged"
    kept_reduction(None, x, {"seed": 0}, lambda: make("nowhere"))
    assert made[-1] == "nowhere"


def test_another_eps_needs_no_other_map(tmp_path: Path) -> None:
    samples, _, _ = planted()
    some = samples.take(np.arange(200))
    a = NetworkFilter(drop=0.1, device="cpu", maps=tmp_path).fit(some)
    b = NetworkFilter(drop=0.2, device="cpu", maps=tmp_path).fit(some)
    assert len(list(tmp_path.iterdir())) == 1
    assert "tsne" in a.seconds_
    assert "tsne" not in b.seconds_
    assert (~a.keep_ <= ~b.keep_).all(), "a larger share drops the same and more"
    assert "maps" not in a.settings()


@pytest.mark.gpu
def test_on_a_gpu_the_same_bytes_and_what_was_planted() -> None:
    samples, flipped, _ = planted()
    a, b = (NetworkFilter(drop=0.05, device="cuda").fit(samples) for _ in range(2))
    assert a.reduction_.points.tobytes() == b.reduction_.points.tobytes()
    assert a.reduction_.kl == b.reduction_.kl
    assert flipped[~a.keep_].mean() > 0.6
