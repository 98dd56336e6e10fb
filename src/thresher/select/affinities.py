"""The input of t-SNE: nearest neighbours, perplexity search, one symmetric sparse matrix.

Everything runs in torch on the device of the data, deterministically, and without host
synchronisation inside loops.
"""

from dataclasses import dataclass

import torch

from thresher.select.neighbours import nearest

BISECTIONS = 60


@dataclass(frozen=True)
class Affinities:
    """Symmetric joint probabilities p_ij in CSR form, without p_ii; they sum to one.

    Memory: 8 bytes per entry, about 2·3·perplexity·0.7 entries per point.
    """

    row_start: torch.Tensor
    """(n + 1,) int64."""
    column: torch.Tensor
    """(entries,) int32."""
    value: torch.Tensor
    """(entries,) float32."""

    @property
    def n(self) -> int:
        return len(self.row_start) - 1

    def rows(self) -> torch.Tensor:
        """Return the row of every entry, (entries,) int64."""
        counts = self.row_start.diff()
        return torch.repeat_interleave(torch.arange(self.n, device=counts.device), counts)


def conditional(distances: torch.Tensor, perplexity: float) -> torch.Tensor:
    """Return p_{j|i} (n, k) over each point's neighbours, with entropy log(perplexity)."""
    # The precision β of each row by bisection, all rows at once.
    n = len(distances)
    target = torch.tensor(perplexity, device=distances.device, dtype=torch.float64).log()
    d = (distances - distances[:, :1]).double()
    scale = d.mean(1, keepdim=True).clamp_min(1e-300)
    d = d / scale
    low = torch.zeros(n, 1, dtype=torch.float64, device=d.device)
    high = torch.full_like(low, torch.inf)
    beta = torch.ones_like(low)
    for _ in range(BISECTIONS):
        weight = torch.exp(-d * beta)
        total = weight.sum(1, keepdim=True)
        entropy = total.log() + beta * (d * weight).sum(1, keepdim=True) / total
        wide = entropy > target
        low = torch.where(wide, beta, low)
        high = torch.where(wide, high, beta)
        beta = torch.where(high.isinf(), beta * 2, (low + high) / 2)
    weight = torch.exp(-d * beta)
    return (weight / weight.sum(1, keepdim=True)).float()


def symmetric(indices: torch.Tensor, conditional: torch.Tensor) -> Affinities:
    """Return (p_{j|i} + p_{i|j}) / 2n as a CSR matrix, entries sorted by row and column."""
    n, k = indices.shape
    row = torch.arange(n, device=indices.device).repeat_interleave(k)
    column, value = indices.reshape(-1), conditional.reshape(-1) / (2 * n)
    key = torch.cat([row * n + column, column * n + row])
    del row, column
    key, order = torch.sort(key, stable=True)
    value = value[order % len(value)]
    del order
    # A pair of mutual neighbours occurs twice, side by side; no pair occurs three times.
    same = key[1:] == key[:-1]
    value[:-1] += torch.where(same, value[1:], 0.0)
    first = torch.ones(len(key), dtype=torch.bool, device=key.device)
    first[1:] = ~same
    key, value = key[first], value[first]
    rows = torch.arange(n + 1, device=key.device) * n
    row_start = torch.searchsorted(key, rows)
    return Affinities(row_start, (key % n).int(), value / value.double().sum().float())


def affinities(x: torch.Tensor, perplexity: float) -> Affinities:
    """Return t-SNE's joint probabilities of x (n, d), over 3·perplexity neighbours or all.

    A perplexity above the number of neighbours is not possible; as in openTSNE, it is a third of
    that then.
    """
    k = min(len(x) - 1, int(3 * perplexity))
    distances, indices = nearest(x, k)
    return symmetric(indices, conditional(distances, perplexity if perplexity <= k else k / 3))
