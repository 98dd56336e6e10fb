"""The error of a run, estimated from all arms and cells of a study together.

In a cell of the other axes, arms × seeds is a two-way layout: what is left after removing the mean
of each arm and each seed is the error, with (arms - 1)(seeds - 1) degrees of freedom. The estimates
of all cells are pooled, with safeguards that keep the false-positive rate if the spread
differs (`tests/study/test_pooling.py` checks it by simulation):

- A cell whose own error is larger than that of the other cells counts for half: its error is the
  mean of both, with twice the cell's degrees of freedom. If it is significantly larger (F-test), it
  is used alone. Omnibus tests of equal variances (Bartlett, over cells and over arms) are not
  enough: both accept one cell of twice the spread in 61 % of studies of 6 × 3 × 4 runs, and 10 % of
  all such studies without an effect then report one.
- A cell whose own error is significantly smaller is used alone as well: the spread of large batches
  would hide what small batches show.
- A pair of arms whose differences spread significantly more than the average pair, or one of whose
  arms spreads more than the others, is judged without the other arms.
- An arm that spreads far more than the others does not count for their comparisons: it would hide
  what they show.
- Errors that the cells share, such as a selection drawn for each seed and used in every cell,
  reduce the degrees of freedom (Satterthwaite).
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import special

LEVEL_CELL = 0.04
"""Level of the test that the error of a cell is larger than that of the others."""
LEVEL_CELL_DF = 0.2
"""The same, divided by the degrees of freedom of the cell, where that is higher: with two, a test
at 0.04 misses too many cells of five times the spread."""
LEVEL_SMALLER = 0.003
"""Level of the test that it is smaller; low, because an error that is too small finds effects that
are not there."""
LEVEL_PAIR = 0.25
"""Level of the test that a pair of arms spreads more than the average pair; high, because a pair
with one arm of large spread exceeds the average by little."""
LEVEL_ARM = 1.5
"""Level, divided by the number of arms and by the degrees of freedom of one, of the test that an
arm spreads more than the others: its pairs are judged by themselves."""
LEVEL_FAR = 0.05
"""Level, divided by the number of arms, of the test that it spreads so much more that it is left
out of the error of the others."""
LEVEL_SHARED = 0.25
"""Level of the test that cells share errors; high, because pooling is the exception (Bozivich,
Bancroft and Hartley, 1956)."""

Values = Mapping[int, float]
"""Values of the metric by seed."""


@dataclass(frozen=True)
class RunError:
    """The error of one run."""

    variance: float
    """Variance of a run about the means of its arm and its seed."""
    df: float
    """Degrees of freedom of the estimate."""
    cells: int
    """Number of cells that it is pooled over."""
    arms: int
    """Number of arms that it is pooled over."""


class StudyError:
    """The error of the runs of a study.

    Args:
        cells: The runs of each cell of the other axes: values by arm and seed.
        resolution: Step of the metric; the variance of rounding, resolution²/12, is added.
    """

    def __init__(self, cells: Sequence[Mapping[Hashable, Values]], resolution: float = 0.0) -> None:
        self._cells, self._resolution = list(cells), resolution
        self._all, self._alone = _alike(self._cells)
        self._layouts: dict[frozenset[Hashable], _Layout] = {}

    def in_cell(self, cell: int, arm: Hashable, baseline: Hashable) -> RunError | None:
        """Return the error for a comparison in one cell; None if it has no complete seeds."""
        return self._with_rounding(self._layout(arm, baseline).in_cell(cell))

    def of_means(self, arm: Hashable, baseline: Hashable, drawn: bool = False) -> RunError | None:
        """Return the error of means over all cells; None if no seed is complete in all of them.

        `drawn` says that cells share draws, so that their errors are not independent.
        """
        return self._with_rounding(self._layout(arm, baseline).of_means(drawn))

    def _with_rounding(self, error: RunError | None) -> RunError | None:
        if error is None or not self._resolution:
            return error
        variance = error.variance + self._resolution**2 / 12
        return RunError(variance, error.df, error.cells, error.arms)

    def _layout(self, arm: Hashable, baseline: Hashable) -> "_Layout":
        """Return the layout of the arms of like spread, or of this pair if it spreads more."""
        key = frozenset((arm, baseline))
        if key not in self._layouts:
            members = [{a: v for a, v in cell.items() if a in key} for cell in self._cells]
            pair, every = _Layout(members), self._all
            both = pair.errors and every.errors and key <= every.arms - self._alone
            more = not both or _larger(pair.pooled, pair.df, every.pooled, every.df) < LEVEL_PAIR
            self._layouts[key] = pair if more else every
        return self._layouts[key]


class _Layout:
    """The residuals of a two-way layout, arms × seeds, in each cell."""

    def __init__(self, cells: Sequence[Mapping[Hashable, Values]]) -> None:
        several = [{a: v for a, v in cell.items() if len(v) > 1} for cell in cells]
        usable = [set(cell) for cell in several if len(cell) > 1]
        self.arms = set.intersection(*usable) if usable else set()
        order = sorted(self.arms, key=str)
        self.count = len(cells)
        self._in_cell: dict[int, RunError | None] = {}
        self.seeds: dict[int, list[int]] = {}
        """Complete seeds by cell."""
        self.residuals: dict[int, np.ndarray] = {}
        """(seeds, arms) residuals by cell."""
        self.squares: dict[int, np.ndarray] = {}
        """(arms,) sum of the squared residuals of each arm by cell."""
        self.errors: dict[int, tuple[float, int]] = {}
        """Mean square and degrees of freedom by cell."""
        runs: dict[int, list[list[float]]] = {}
        for number, cell in enumerate(several):
            if len(order) > 1 and self.arms <= cell.keys():
                members = [cell[arm] for arm in order]
                complete = set(members[0]).intersection(*members[1:])
                seeds = [seed for seed in members[0] if seed in complete]
                if len(seeds) > 1:
                    self.seeds[number] = seeds
                    runs[number] = [[v[s] for v in members] for s in seeds]
        for size in set(map(len, self.seeds.values())):
            self._fit({number: rows for number, rows in runs.items() if len(rows) == size})
        self.errors = {number: self.errors[number] for number in self.seeds}

    def _fit(self, runs: Mapping[int, Sequence[Sequence[float]]]) -> None:
        """Find the residuals of cells with equally many seeds: (seeds, arms) values by cell."""
        values = np.array(list(runs.values()), float)
        _, seeds, arms = values.shape
        df = (arms - 1) * (seeds - 1)
        # As `mean` computes it, with less overhead.
        values -= np.add.reduce(values, axis=2, keepdims=True) / arms
        values -= np.add.reduce(values, axis=1, keepdims=True) / seeds
        squares = values**2
        of_cell = np.add.reduce(squares.reshape(len(runs), -1), axis=1).tolist()
        of_arms = np.add.reduce(squares, axis=1)
        for at, number in enumerate(runs):
            self.residuals[number], self.squares[number] = values[at], of_arms[at]
            self.errors[number] = (of_cell[at] / df, df)

    @cached_property
    def pooled(self) -> float:
        return self._every[0]

    @property
    def df_of_arm(self) -> float:
        """Degrees of freedom of the differences between one arm and the others."""
        return self._every[1] / (len(self.arms) - 1)

    @cached_property
    def df(self) -> float:
        """Degrees of freedom of `pooled`, fewer than their sum if the cells share errors."""
        total = self._every[1]
        if len(self.errors) < 2:
            return total
        parts = self._shared
        if parts is None:
            return float(max(df for _, df in self.errors.values()))
        between, within, _ = parts
        k = len(self.errors)
        if between + within == 0:
            return total
        effective = (between + (k - 1) * within) ** 2 / (between**2 + (k - 1) * within**2)
        # The estimate of the share is noisy; the sum of the degrees of freedom is the most.
        return min(total, effective * total / k)

    @cached_property
    def _shared(self) -> tuple[float, float, int] | None:
        """Return the mean squares between and within cells and the degrees of the first."""
        cells = list(self.seeds)
        common = set.intersection(*map(set, self.seeds.values())) if cells else set()
        seeds = sorted(common)
        df = (len(self.arms) - 1) * (len(seeds) - 1)
        if df < 1 or len(cells) < 2:
            return None
        values = np.array([self._residuals_of(cell, seeds) for cell in cells])
        values -= np.add.reduce(values, axis=1, keepdims=True) / len(seeds)
        mean = np.add.reduce(values, axis=0) / len(cells)
        between = len(cells) * float(np.add.reduce(mean**2, axis=None)) / df
        of_cells = np.add.reduce((values - mean) ** 2, axis=None)
        within = float(of_cells) / (df * (len(cells) - 1))
        return between, within, df

    def _residuals_of(self, cell: int, seeds: Sequence[int]) -> np.ndarray:
        own = self.seeds[cell]
        residuals = self.residuals[cell]
        return residuals if own == seeds else residuals[[own.index(seed) for seed in seeds]]

    @cached_property
    def _every(self) -> tuple[float, float]:
        """The pooled variance of all cells, and the sum of their degrees of freedom."""
        return self._mean(list(self.errors))

    def _mean(self, cells: Sequence[int]) -> tuple[float, float]:
        total = sum(self.errors[cell][1] for cell in cells)
        weighted = sum(variance * df for variance, df in map(self.errors.__getitem__, cells))
        return (weighted / total if total else math.nan), float(total)

    def p_spreads_more(self) -> dict[Hashable, float]:
        """Return by arm the p-value of the F-test that it spreads more than the other arms.

        Its differences from the mean of the others are compared with what is left of the residuals.
        Cells count alike, whatever their spread is.
        """
        arms = len(self.arms)
        used = [cell for cell, (error, _) in self.errors.items() if error > 0]
        total = sum(self.errors[cell][1] for cell in used)
        order = sorted(self.arms, key=str)
        if arms < 3 or not total:
            return dict.fromkeys(order, 1.0)
        squares = np.zeros(arms)
        for cell in used:
            squares += self.squares[cell] / self.errors[cell][0]
        own = squares * arms / (arms - 1)
        # Fewer degrees of freedom if the cells share errors.
        df = total / (arms - 1) * self.df / self._every[1]
        rest = (total - own) / (arms - 2)
        return {
            arm: _larger(a, df, r, df * (arms - 2))
            for arm, a, r in zip(order, own, rest, strict=True)
        }

    def in_cell(self, cell: int) -> RunError | None:
        if cell not in self._in_cell:  # every pair of arms asks for it
            self._in_cell[cell] = self._find_in_cell(cell)
        return self._in_cell[cell]

    def _find_in_cell(self, cell: int) -> RunError | None:
        if cell not in self.errors:
            return None
        arms, k = len(self.arms), len(self.errors)
        own, df = self.errors[cell]
        rest = [other for other in self.errors if other != cell]
        if not rest:
            return RunError(own, df, 1, arms)
        others, others_df = self._mean(rest)
        level = max(LEVEL_CELL, LEVEL_CELL_DF / df)
        alone = _larger(own, df, others, others_df) < level
        if alone or _larger(others, others_df, own, df) < LEVEL_SMALLER:
            return RunError(own, df, 1, arms)
        half = (own + others) / 2
        if half > self.pooled:
            return RunError(half, min(2.0 * df, self.df), k, arms)
        return RunError(self.pooled, self.df, k, arms)

    def of_means(self, drawn: bool) -> RunError | None:
        parts = self._shared
        if parts is None or len(self.errors) < self.count:
            return None
        between, within, df = parts
        k = len(self.errors)
        independent = _larger(between, df, within, df * (k - 1)) > LEVEL_SHARED
        if drawn or not independent:
            return RunError(between / k, df, 1, len(self.arms))
        variances = np.array([variance for variance, _ in self.errors.values()])
        total = np.add.reduce(variances)
        # Satterthwaite: the mean of unequal variances has fewer degrees of freedom.
        uneven = total**2 / (k * np.add.reduce(variances**2)) if total else 1.0
        return RunError(float(total) / k / k, self.df * float(uneven), k, len(self.arms))


def _alike(cells: Sequence[Mapping[Hashable, Values]]) -> tuple[_Layout, set[Hashable]]:
    """Return the layout of the arms of like spread, and all arms that spread more than others."""
    layout, alone = _Layout(cells), set[Hashable]()
    while len(layout.arms) > 2:
        p = layout.p_spreads_more()
        level = LEVEL_ARM / (len(p) * max(1.0, layout.df_of_arm))
        alone |= {arm for arm in p if p[arm] < level}
        noisiest = min(p, key=lambda arm: p[arm])
        if p[noisiest] >= LEVEL_FAR / len(p):
            break
        alone.add(noisiest)
        cells = [{arm: v for arm, v in cell.items() if arm != noisiest} for cell in cells]
        layout = _Layout(cells)
    return layout, alone


def _larger(first: float, df: float, second: float, second_df: float) -> float:
    """Return the p-value of the F-test that the first variance is larger than the second."""
    if second == 0 or not math.isfinite(second):
        return 1.0 if first == 0 or not math.isfinite(second) else 0.0
    return float(special.fdtrc(df, second_df, first / second))
