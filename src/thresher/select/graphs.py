"""Graphs given by their edges. scipy is loaded only when it is needed: that takes a while."""

import numpy as np


def connected_parts(u: np.ndarray, v: np.ndarray, count: int) -> np.ndarray:
    """Number the connected parts of a graph with `count` nodes, (count,) int32."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(u), np.int8), (u, v)), shape=(count, count))
    parts: np.ndarray = connected_components(graph, directed=False)[1]
    return parts


def spanning_tree(
    u: np.ndarray, v: np.ndarray, weight: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the edges of the lightest tree (or trees) and their weights, which are above 0."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import minimum_spanning_tree

    tree = minimum_spanning_tree(coo_array((weight, (u, v)), shape=(count, count)).tocsr()).tocoo()
    return tree.row, tree.col, tree.data
