"""The times to a target of two arms, cell by cell, and which of them share their luck."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from thresher.study.draws import Groups, shared_draws, varies
from thresher.study.summaries import CellSummary
from thresher.study.survival import CensoredTimes, Times, compare_times

Arms = dict[Any, CellSummary]
"""The summaries of one cell by arm."""


def compare_censored(cells: Sequence[Arms], arm: Any, baseline: Any) -> CensoredTimes | None:
    """Compare the times of two arms in one cell, or over several; None if none is censored."""
    both = [(cell[arm], cell[baseline]) for cell in cells if arm in cell and baseline in cell]
    if not all(c.values or c.censored for pair in both for c in pair):
        return None
    if not any(c.censored for pair in both for c in pair):
        return None
    seeds = [seed for seed in _times(both[0][0]) if all(seed in _times(c) for p in both for c in p)]
    groups = _groups(both, seeds)
    if groups is None:
        return compare_times([_stratum(pair, None) for pair in both])
    if not groups:
        return None
    order = [seed for group in groups for seed in group]
    units = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    return compare_times([_stratum(pair, order) for pair in both], units)


def _groups(both: Sequence[tuple[CellSummary, CellSummary]], seeds: list[int]) -> Groups | None:
    """Return the seeds whose runs are independent of each other's; None if all runs are.

    Seeds with the same draw of a step share its luck. A draw that one seed uses in several cells
    makes its runs there alike.
    """
    if not any(varies(c) for pair in both for c in pair):
        return None
    shared = [groups for pair in both if (groups := shared_draws(*pair, seeds)) is not None]
    if shared:
        return min(shared, key=len)
    return [[seed] for seed in seeds] if len(both) > 1 else None


def _stratum(pair: tuple[CellSummary, CellSummary], seeds: list[int] | None) -> tuple[Times, Times]:
    """Return the times of both arms; of all runs, or of those with these seeds, in their order."""
    known = [t for c in pair for t in _times(c).values() if math.isfinite(t)]
    longest = max(known, default=1.0)
    first, second = (
        Times(
            np.minimum([_times(c)[seed] for seed in seeds or _times(c)], longest),
            np.array([seed in c.values for seed in seeds or _times(c)]),
        )
        for c in pair
    )
    return first, second


def _times(cell: CellSummary) -> dict[int, float]:
    """Return by seed when a run reached the target, or ended without it."""
    return {**cell.values, **cell.censored}
