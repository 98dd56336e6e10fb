"""Both ways to the spanning tree give trees of the same weights, ties and copies included."""

import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from test_cluster import blobs

from thresher.select.cluster import ClassGraph
from thresher.select.spanning_tree import boruvka, prim

RANDOM = np.random.default_rng(0)
CASES = {
    "plane": blobs(2500, 2, 2, 1)[0],
    "space": blobs(800, 3, 2, 2)[0],
    "six dimensions": blobs(600, 6, 2, 3)[0],
    "lattice": RANDOM.integers(0, 25, (900, 2)).astype(float),
    "copies": np.repeat(RANDOM.normal(size=(40, 2)), 20, axis=0),
    "one point": np.ones((300, 2)),
    "a line": np.stack([np.arange(700.0) ** 1.5, np.zeros(700)], axis=1),
    "two far islands": np.concatenate(
        [RANDOM.normal(size=(600, 2)), RANDOM.normal(size=(500, 2)) + 1e4]
    ),
    "two points": np.array([[0.0, 0.0], [3.0, 4.0]]),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("min_samples", [2, 5])
def test_boruvka_equals_prim(name: str, min_samples: int) -> None:
    x = CASES[name]
    graph = ClassGraph(x, np.zeros(len(x), int), min(min_samples, len(x)))
    core2 = graph.core**2
    expected = np.sort(prim(x, core2)[2])
    u, v, weight = boruvka(x, core2)
    np.testing.assert_array_equal(np.sort(weight), expected)
    tree = coo_array((np.ones(len(u), np.int8), (u, v)), shape=(len(x), len(x)))
    assert connected_components(tree, directed=False)[0] == 1
    d2 = ((x[u] - x[v]) ** 2).sum(axis=1)
    np.testing.assert_allclose(weight, np.maximum(d2, np.maximum(core2[u], core2[v])))


def test_a_plain_spanning_tree_equals_that_of_scipy() -> None:
    from scipy.sparse.csgraph import minimum_spanning_tree
    from scipy.spatial.distance import cdist

    x = RANDOM.normal(size=(400, 2))
    d = cdist(x, x)
    expected = np.sort(minimum_spanning_tree(d).data)
    np.testing.assert_allclose(np.sqrt(np.sort(boruvka(x, np.zeros(400))[2])), expected)
