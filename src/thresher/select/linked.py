"""Link points of a plane that are connected by steps of at most eps: DBSCAN for a single eps.

The spanning tree answers for every eps but takes seconds to build; this takes time about linear in
the number of points. Points in one cell of side eps/√2 are linked; for two nearby cells the
distances between their points decide.
"""

import numpy as np

from thresher.select.graphs import connected_parts

REACH = 2
A_FEW = 4
MAX_CELLS = 1 << 20
PAIRS_AT_ONCE = 1 << 21


def can_link(x: np.ndarray, eps: np.ndarray) -> bool:
    """Return whether a grid of this eps (n,) can number the cells of the points x (n, d)."""
    if x.shape[1] != 2 or len(x) == 0 or eps.min() <= 0:
        return False
    span = float((x.max(axis=0) - x.min(axis=0)).max())
    return span / float(eps.min()) < MAX_CELLS / 2


def linked_parts(x: np.ndarray, group: np.ndarray, eps: np.ndarray) -> np.ndarray:
    """Label points x (n, 2), (n,) int: equal within a group if linked by steps of at most eps.

    `eps` (n,) must be equal within each group.
    """
    # Slightly below 1/√2, so that rounding cannot put points farther than eps in one cell.
    side = eps * 0.7071
    at = np.floor((x - x.min(axis=0)) / side[:, None]).astype(np.int64) + REACH
    height = int(at[:, 1].max()) + REACH + 1
    width = int(at[:, 0].max()) + REACH + 1
    key = (group.astype(np.int64) * width + at[:, 0]) * height + at[:, 1]
    order = np.argsort(key, kind="stable")
    cells, start, count = np.unique(key[order], return_index=True, return_counts=True)
    x, eps2 = x[order], (eps * eps)[order]
    u, v = np.empty(0, np.int64), np.empty(0, np.int64)
    part = np.arange(len(cells))
    # Half of the offsets within two cells, nearest first; the other half is symmetric.
    around = range(-REACH, REACH + 1)
    offsets = [(dx, dy) for dx in range(REACH + 1) for dy in around if dx > 0 or dy > 0]
    offsets.sort(key=lambda o: (o[0] ** 2 + o[1] ** 2, o))
    # First compare a few points of each cell, which joins the crowded ones; then all points of
    # the pairs of cells that are still separate.
    for most in (A_FEW, None):
        some = count if most is None else np.minimum(count, most)
        for dx, dy in offsets:
            beside = cells + dx * height + dy
            b = np.minimum(np.searchsorted(cells, beside), len(cells) - 1)
            a = np.flatnonzero((cells[b] == beside) & (part != part[b]))
            b = b[a]
            touch = _touch(x, eps2, start, some, a, b)
            u, v = np.concatenate([u, a[touch]]), np.concatenate([v, b[touch]])
            part = connected_parts(u, v, len(cells))
    out = np.empty(len(key), np.int64)
    out[order] = np.repeat(part, count)
    return out


def _touch(
    x: np.ndarray,
    eps2: np.ndarray,
    start: np.ndarray,
    count: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
) -> np.ndarray:
    """Return (m,) bool: whether a point of cell a[i] is within eps of one of cell b[i]."""
    touch = np.zeros(len(a), bool)
    pairs = count[a] * count[b]
    ends = np.cumsum(pairs)
    begin = 0
    while begin < len(a):
        done = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, done + PAIRS_AT_ONCE, side="right")))
        here = pairs[begin:end]
        which = np.repeat(np.arange(begin, end), here)
        rank = np.arange(len(which)) - np.repeat(np.cumsum(here) - here, here)
        wide = count[b[which]]
        p = start[a[which]] + rank // wide
        q = start[b[which]] + rank % wide
        d2 = (x[p, 0] - x[q, 0]) ** 2 + (x[p, 1] - x[q, 1]) ** 2
        touch[which[d2 <= eps2[p]]] = True
        begin = end
    return touch
