"""Nearest neighbours in torch, on the device of the data: exact, or approximate for large data."""

import torch
from torch import Tensor

from thresher.errors import InvalidValueError

EXACT_LIMIT = 200_000
"""Points up to which `nearest` is exact: the cost of an exact search is quadratic."""
RECALL = 0.99
"""Share of the true neighbours that `nearest` aims at above that; a sample tells what it costs."""
BLOCK_BYTES = 2 << 30
CELL = 256
"""Points of a cell, on average."""
MOST_CELLS = 8192
LLOYD_STEPS = 5
PER_CELL = 32
"""Points of each cell that the centres are computed from."""
SAMPLED = 1024
"""Points whose exact neighbours decide how many cells are searched."""
FAR = 0.02
"""Share of the points, those farthest from their centres, that are compared with all others: the
cells near their centre are not those near them."""


def nearest(x: Tensor, k: int, overwrite: bool = False) -> tuple[Tensor, Tensor]:
    """Return `neighbours`, or `approximate_neighbours` of more than `EXACT_LIMIT` points."""
    if len(x) <= EXACT_LIMIT:
        return neighbours(x, k)
    return approximate_neighbours(x, k, overwrite=overwrite)


def neighbours(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return squared distances, ascending, and indices (n, k) of the exact k nearest neighbours.

    Costs n²·d multiply-adds for `x` (n, d), and at most 2 GiB of memory beside the result.
    """
    _check(x, k)
    x, squared = _centred(x)
    with _full_precision():
        return _exact(x, squared, torch.arange(len(x), device=x.device), k)


def approximate_neighbours(
    x: Tensor, k: int, recall: float = RECALL, overwrite: bool = False
) -> tuple[Tensor, Tensor]:
    """Return squared distances, ascending, and indices (n, k) of almost all nearest neighbours.

    An inverted file: points are divided into cells around k-means centres, and the points of a
    cell are compared with those of the cells nearest to it; outliers are compared with all points.
    The exact neighbours of a sample of points tell how many cells that must be for a share of
    `recall` to be found; with all cells the search is exact. Distances are exact, no point is its
    own neighbour, and the same input gives the same result on the same machine.

    Costs about n·d·√n multiply-adds per percent of the cells. Memory beside the result: a copy of
    `x`, the points of the cells searched together, and about 4 GiB. `overwrite` takes the memory
    of a float32 `x` instead of the copy.
    """
    _check(x, k)
    x, squared = _centred(x, overwrite)
    with _full_precision():
        return _Cells(x, squared).search(k, recall)


class _Cells:
    """Points (n, d) in the order of their cells, in the memory of `x`."""

    def __init__(self, x: Tensor, squared: Tensor) -> None:
        self.random = torch.Generator().manual_seed(0)
        centres = self.centres = self._centres(x)
        cell = _nearest_centre(x, centres)
        self.cell, self.order = torch.sort(cell, stable=True)
        """Cell of each point, and its index in the input."""
        self.x, self.squared = _reordered(x, self.order), squared[self.order]
        rows = _rows(self.x)
        parts = zip(self.x.split(rows), self.cell.split(rows), strict=True)
        from_centre = torch.cat([(part - centres[own]).square().sum(1) for part, own in parts])
        ranked = from_centre.argsort(stable=True)
        self.inner, self.far = ranked.tensor_split([len(x) - int(FAR * len(x))])
        """Rows of the points near to their centres, and of the outliers."""
        self.sizes = torch.bincount(cell, minlength=len(centres))
        self.starts = self.sizes.cumsum(0) - self.sizes
        apart = torch.cdist(centres, centres)
        apart.fill_diagonal_(-1)  # a cell is its own nearest, also if another has the same centre
        self.near = apart.argsort(dim=1, stable=True)
        """(cells, cells): for each cell all cells, nearest first."""

    def _centres(self, x: Tensor) -> Tensor:
        count = max(1, min(len(x) // CELL, MOST_CELLS))
        sample = x[self._draw(len(x), PER_CELL * count).to(x.device)]
        centres = sample[:count].clone()
        numbers = torch.arange(count, device=x.device)
        rows = max(1, BLOCK_BYTES // (8 * count))
        for _ in range(LLOYD_STEPS):
            cell = _nearest_centre(sample, centres)
            total, members = torch.zeros_like(centres), torch.zeros_like(centres[:, :1])
            for part, own in zip(sample.split(rows), cell.split(rows), strict=True):
                # A product with zeros and ones, because adding by index is not deterministic.
                chosen = (numbers[:, None] == own).to(x.dtype)
                total += chosen @ part
                members += chosen.sum(1, keepdim=True)
            centres = torch.where(members > 0, total / members.clamp_min(1), centres)
        return centres

    def _draw(self, n: int, count: int) -> Tensor:
        return torch.randperm(n, generator=self.random)[:count]

    def search(self, k: int, recall: float) -> tuple[Tensor, Tensor]:
        """Return squared distances and indices (n, k) in the order of the input."""
        n, device = len(self.x), self.x.device
        counts = self._probes(k, recall)
        candidates = self.sizes[self.near].cumsum(1).gather(1, counts[:, None] - 1)[:, 0]
        distances = torch.empty(n, k, device=device)
        indices = torch.empty(n, k, dtype=torch.int64, device=device)
        plan = torch.stack([self.starts, self.sizes, counts, candidates], 1).tolist()
        for cell, (start, size, probes, total) in enumerate(plan):
            if not size:
                continue
            rows = self._members(self.near[cell, :probes], total)
            # Around the centre of the cell, differences lose fewer digits.
            x = self.x[rows].sub_(self.centres[cell])
            squared = _squared(x)
            step = max(1, BLOCK_BYTES // (4 * total))
            for begin in range(0, size, step):  # the cell's own points come first
                own = torch.arange(begin, min(begin + step, size), device=device)
                near, index = _closest(x, squared, own, k)
                at = self.order[start + own]
                distances[at], indices[at] = near, self.order[rows[index]]
        near, index = _exact(self.x, self.squared, self.far, k)
        at = self.order[self.far]
        distances[at], indices[at] = near, self.order[index]
        return distances.clamp_min_(0), indices

    def _members(self, cells: Tensor, total: int) -> Tensor:
        """Return the rows of the points of some cells, cell by cell, (total,) int64."""
        sizes = self.sizes[cells]
        offsets = self.starts[cells] - (sizes.cumsum(0) - sizes)
        # With the size given, nothing waits for the device.
        shift = torch.repeat_interleave(offsets, sizes, output_size=total)
        return shift + torch.arange(total, device=shift.device)

    def _probes(self, k: int, recall: float) -> Tensor:
        """Return for each cell how many cells to search, (cells,) int64."""
        sample = self.inner[self._draw(len(self.inner), SAMPLED).to(self.x.device)]
        _, true = _exact(self.x, self.squared, sample, k)
        # The neighbour is found if its cell is searched: the rank of that cell decides.
        rank = self.near.argsort(1)[self.cell[sample][:, None], self.cell[true]]
        ranks = rank.flatten().sort().values
        wanted = ranks[min(len(ranks) - 1, int(recall * len(ranks)))] + 1
        enough = (self.sizes[self.near].cumsum(1) <= k).sum(1) + 1
        return torch.maximum(enough, wanted)


def _exact(x: Tensor, squared: Tensor, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return squared distances and indices of the k nearest neighbours of x[queries]."""
    rows = max(1, BLOCK_BYTES // (4 * len(x)))
    distances = torch.empty(len(queries), k, device=x.device)
    indices = torch.empty(len(queries), k, dtype=torch.int64, device=x.device)
    for begin in range(0, len(queries), rows):
        part = slice(begin, begin + rows)
        distances[part], indices[part] = _closest(x, squared, queries[part], k)
    return distances.clamp_min_(0), indices


def _closest(x: Tensor, squared: Tensor, own: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return squared distances, which rounding may make negative, and indices, for a block."""
    # |x_i|² is constant along a row and does not change the order: it is added later.
    scores = torch.addmm(squared[None, :], x[own], x.T, alpha=-2)
    scores[torch.arange(len(own), device=x.device), own] = torch.inf
    near, index = torch.topk(scores, k, dim=1, largest=False, sorted=True)
    return near + squared[own, None], index


def _nearest_centre(x: Tensor, centres: Tensor) -> Tensor:
    """Return the nearest centre of each point, (n,) int64."""
    squared = centres.square().sum(1)
    rows = max(1, BLOCK_BYTES // (4 * len(centres)))
    parts = [
        torch.addmm(squared[None, :], part, centres.T, alpha=-2).argmin(1) for part in x.split(rows)
    ]
    return torch.cat(parts)


def _centred(x: Tensor, overwrite: bool = False) -> tuple[Tensor, Tensor]:
    """Return x and its squared norms; centred, |a|² + |b|² - 2ab loses the fewest digits."""
    mean = x.mean(0, keepdim=True)
    x = x.sub_(mean) if overwrite and x.dtype == torch.float32 else (x - mean).float()
    return x, _squared(x)


def _squared(x: Tensor) -> Tensor:
    """Return the squared norm of each row, (n,)."""
    return torch.cat([part.square().sum(1) for part in x.split(_rows(x))])


def _rows(x: Tensor) -> int:
    """Return how many rows of x (n, d) float32 are a block."""
    return max(1, BLOCK_BYTES // (4 * x.shape[1]))


def _reordered(x: Tensor, order: Tensor) -> Tensor:
    """Sort the rows of x (n, d) in place, some columns at a time."""
    for part in x.split(max(1, BLOCK_BYTES // (4 * len(x))), dim=1):
        part.copy_(part[order])
    return x


def _check(x: Tensor, k: int) -> None:
    if len(x) <= k:
        raise InvalidValueError(f"k must be below the number of points, {len(x)}, got {k}", "", "k")


class _full_precision:
    """Disable TF32 in the block, because distances must be exact."""

    def __enter__(self) -> None:
        self.before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = False

    def __exit__(self, *_: object) -> None:
        torch.backends.cuda.matmul.allow_tf32 = self.before
