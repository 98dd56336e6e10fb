import itertools
from pathlib import Path

import numpy as np
import pytest

from thresher.distributed.compression import TopK
from thresher.distributed.names import POWERSGD_RANK
from thresher.errors import ThresherError
from thresher.scaling.catalog import load_cluster
from thresher.scaling.costs import (
    ALGORITHMS,
    Fabric,
    Link,
    compression,
    double_tree,
    fit_ring,
    ring,
    torus,
)

LINK = Link(1e-5, 1e-9)


def ring_by_hand(values: np.ndarray) -> tuple[np.ndarray, int, int]:
    """A ring all-reduce on p rows of p chunks; returns the rows, steps, and chunks each sent."""
    p = len(values)
    rows, steps = values.copy(), 0
    for phase, offset in itertools.product((0, 1), range(p - 1)):
        sent = [(r - offset + phase) % p for r in range(p)]
        parts = [rows[r, sent[r]] for r in range(p)]
        for r in range(p):
            target = (r + 1) % p
            if phase == 0:
                rows[target, sent[r]] += parts[r]
            else:
                rows[target, sent[r]] = parts[r]
        steps += 1
    return rows, steps, steps


@pytest.mark.parametrize("p", [2, 3, 4, 8])
def test_the_ring_formula_counts_the_steps_of_a_ring(p: int) -> None:
    values = np.arange(p * p, dtype=float).reshape(p, p)
    rows, steps, chunks = ring_by_hand(values)
    np.testing.assert_allclose(rows, np.tile(values.sum(0), (p, 1)))
    size = 1e6
    assert ring(size, p, LINK) == pytest.approx(steps * 1e-5 + chunks * size / p * 1e-9)


def test_one_worker_pays_nothing() -> None:
    for function in (ring, double_tree):
        assert function(1e6, 1, LINK) == 0
    assert Fabric.of(load_cluster("summit")).seconds("best", 1e6, 1) == 0


def test_hierarchical_and_torus_fall_back_to_a_ring_in_one_dimension() -> None:
    assert torus(1e6, 1, 8, LINK, LINK) == ring(1e6, 8, LINK)
    assert torus(1e6, 8, 1, LINK, LINK) == ring(1e6, 8, LINK)
    # Fewer, shorter rings: latency 2(X−1)+2(Y−1) instead of 2(XY−1), the same bytes.
    assert torus(0, 8, 8, LINK, LINK) == pytest.approx(28e-5)
    assert torus(1e9, 8, 8, Link(0, 1e-9), Link(0, 1e-9)) == pytest.approx(
        ring(1e9, 64, Link(0, 1e-9))
    )


def test_best_is_the_cheapest_and_rings_lose_at_scale_on_small_messages() -> None:
    fabric = Fabric.of(load_cluster("summit"))
    costs = {name: fabric.seconds(name, 1e6, 1536) for name in ALGORITHMS}
    assert fabric.seconds("best", 1e6, 1536) == min(costs.values())
    assert max(costs, key=lambda name: costs[name]) == "ring"
    assert fabric.cheapest(1e6, 1536) == min(costs, key=lambda name: costs[name])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_cost_grows_with_bytes_and_falls_with_bandwidth(algorithm: str) -> None:
    slow, fast = Fabric.of(load_cluster("10gbe")), Fabric.of(load_cluster("8xh100"))
    assert slow.seconds(algorithm, 2e8, 64) > slow.seconds(algorithm, 1e8, 64)
    assert slow.seconds(algorithm, 1e8, 64) > fast.seconds(algorithm, 1e8, 64)


def test_compression_saves_bytes_and_gathering_grows_with_workers() -> None:
    fabric = Fabric.of(load_cluster("10gbe"))
    plain, half = compression("none"), compression("fp16")
    top = compression("topk:0.01")
    size, memory = 1e8, 1e12

    def cost(kind, workers):  # type: ignore[no-untyped-def]
        return kind.seconds(fabric, "ring", size, workers, memory)

    assert cost(half, 8) == pytest.approx(cost(plain, 8) / 2, rel=0.05)
    assert cost(top, 8) < cost(half, 8)
    assert cost(top, 512) > 20 * cost(top, 8)


@pytest.mark.parametrize("name", ["topk", "powersgd"])
def test_a_bare_compression_is_that_of_training(name: str) -> None:
    trained = {"topk": TopK.share, "powersgd": POWERSGD_RANK}[name]
    assert compression(name) == compression(f"{name}:{trained}")
    document = (Path(__file__).parents[2] / "docs" / "communication.md").read_text("utf-8")
    assert f"two rank-{POWERSGD_RANK} factors" in document
    assert f"the largest {100 * TopK.share:g} % of each bucket" in document


@pytest.mark.parametrize("text", ["zip", "topk:2", "topk:x", "powersgd:0"])
def test_impossible_compressions_are_refused(text: str) -> None:
    with pytest.raises(ThresherError, match="compression"):
        compression(text)


def test_a_fit_finds_the_latency_and_bandwidth_it_was_made_of() -> None:
    random = np.random.default_rng(0)
    truth = Link(2e-4, 8e-9)
    sizes = [4**k for k in range(5, 13)]
    points = [(n, ring(n, 4, truth) * random.uniform(0.97, 1.03)) for n in sizes]
    fit, error = fit_ring(points, 4)
    assert fit.latency_s == pytest.approx(2e-4, rel=0.05)
    assert fit.seconds_per_byte == pytest.approx(8e-9, rel=0.05)
    assert error < 0.03


def test_a_fit_of_one_worker_is_refused() -> None:
    with pytest.raises(ThresherError, match="two workers"):
        fit_ring([(1, 1), (2, 2)], 1)
