"""The critical batch at one stage of training, from branches that begin with the same weights.

Branches of several batch sizes train on the same samples in the same order. The loss of each is
smoothed by a line in its logarithm, log L(s) = log L_0 − k_B·s after s samples, with one L_0 for
all branches of a run. The progress per sample then obeys k_B = k_0/(1 + B/B_crit), which is
E(B) = E_min(1 + B/B_crit) for a short way. B_crit is fitted by least squares, k_0 for each run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from thresher.errors import InvalidValueError

DRAWS = 1000
BEYOND = 100.0
"""B_crit is searched up to this factor below the smallest and above the largest batch."""
GRID = 400
LEVEL = 0.05
TOLERANCE = 0.25
"""A batch is within tolerance if it makes the progress of the smallest with this much more samples
or less, as a quarter of the critical batch does."""

LossCurve = Sequence[tuple[float, float]]
"""(samples that the weights have seen in the branch, mean loss of the next batch)."""


@dataclass(frozen=True)
class BranchFit:
    """Result of `fit_branches`."""

    critical_batch: float
    low: float | None
    """Low end of its 95 % interval; None if the branches give no bound."""
    high: float | None
    progress: dict[int, float]
    """Fall of the smoothed log loss at equal samples over that of the smallest batch."""
    within_tolerance: int
    """The largest batch that needs at most 1.25 times the samples of the smallest."""
    draws: tuple[float, ...] = field(default=(), repr=False)
    """Critical batches of the bootstrap; empty if one run leaves no degree of freedom."""


def loss_slopes(curves: Sequence[LossCurve]) -> np.ndarray:
    """Return k of each branch of one run, (branches,).

    A step's loss is the mean over its batch, so that its weight is the samples up to the next step.
    """
    rows, targets, weights = [], [], []
    for column, curve in enumerate(curves):
        stride = curve[1][0] - curve[0][0] if len(curve) > 1 else 1.0
        for samples, loss in curve:
            row = np.zeros(len(curves) + 1)
            row[0], row[1 + column] = 1.0, -samples
            rows.append(row)
            targets.append(np.log(max(loss, 1e-12)))
            weights.append(np.sqrt(stride))
    scale = np.array(weights)
    matrix = np.array(rows) * scale[:, None]
    return np.asarray(np.linalg.lstsq(matrix, np.array(targets) * scale, rcond=None)[0][1:])


def fit_branches(runs: Sequence[Mapping[int, LossCurve]]) -> BranchFit:
    """Fit the critical batch to the branches of several runs at the same stage.

    Args:
        runs: For each run the loss curves of its branches by batch size, ascending and the same in
            all runs.

    Raises:
        InvalidValueError: There are fewer than two batches, or the smallest made no progress.
    """
    batches = np.array(list(runs[0]), float) if runs else np.empty(0)
    if len(batches) < 2:
        raise InvalidValueError(f"branches need two batch sizes or more, got {len(batches)}")
    slopes = np.stack([loss_slopes(list(curves.values())) for curves in runs])
    base = float(slopes[:, 0].mean())
    if base <= 0:
        raise InvalidValueError(
            f"the loss does not fall in the branches at batch {batches[0]:,.0f}",
            "train the pilot for fewer epochs, or lower `lr`",
        )
    grid = np.geomspace(batches[0] / BEYOND, batches[-1] * BEYOND, GRID)
    best, squares = _best(slopes[None], batches, grid)
    critical = float(grid[best[0]])
    freedom = slopes.size - len(slopes) - 1
    draws = np.empty(0)
    if freedom > 0:
        generator = np.random.default_rng(0)
        shape = 1 / (1 + batches / critical)
        fitted = (slopes @ shape / (shape @ shape))[:, None] * shape
        spread = np.sqrt(squares[0] / generator.chisquare(freedom, (DRAWS, 1, 1)))
        noise = spread * generator.standard_normal((DRAWS, *slopes.shape))
        draws = grid[_best(fitted + noise, batches, grid)[0]]
    low, high = critical_interval(draws, critical, grid, 0.05)
    progress = {int(b): float(k) / base for b, k in zip(batches, slopes.mean(0), strict=True)}
    within = [batch for batch, part in progress.items() if part >= 1 / (1 + TOLERANCE)]
    return BranchFit(*(critical, low, high, progress, max(within)), draws=tuple(map(float, draws)))


def _best(
    slopes: np.ndarray, batches: np.ndarray, grid: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the index of the best B_crit and the squares left, for (draws, runs, batches)."""
    shape = 1 / (1 + batches / grid[:, None])
    unit = shape / np.linalg.norm(shape, axis=1, keepdims=True)
    explained = (np.einsum("drb,gb->drg", slopes, unit) ** 2).sum(axis=1)
    best = explained.argmax(axis=1)
    total = (slopes**2).sum(axis=(1, 2))
    return best, np.maximum(total - explained[np.arange(len(best)), best], 0.0)


def critical_interval(
    draws: np.ndarray, critical: float, grid: np.ndarray, near: float
) -> tuple[float | None, float | None]:
    """Return the 95 % interval of a critical batch; None for an end that is at an end of the grid,
    within a share `near` of it, and for both without draws."""
    if not len(draws):
        return None, None
    low, high = np.quantile(draws, [LEVEL / 2, 1 - LEVEL / 2])
    return (
        min(float(low), critical) if low > (1 + near) * grid[0] else None,
        max(float(high), critical) if high < (1 - near) * grid[-1] else None,
    )
