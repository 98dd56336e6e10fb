"""The sweep that plans are held to."""

import math
from collections.abc import Sequence

import numpy as np
from benchmarks.plan_check import best_factors


def _best(samples: Sequence[Sequence[float]]) -> list[int]:
    chosen: list[int] = best_factors(np.log(np.array(samples))).tolist()
    return chosen


def test_neighbouring_batches_help_to_choose_a_rate() -> None:
    rows: list[list[float]] = [[100, 90, 95], [120, 100, 98], [150, 130, 140], [200, 180, math.nan]]
    assert _best(rows) == [1, 1, 1, 1]
    # What is much better at a batch is chosen there.
    assert _best([[100, 90, 95], [120, 100, 60], [150, 130, 140]])[1] == 2
    # A factor that missed the target is not chosen, whatever the neighbours say.
    assert _best([[100, 50], [100, math.nan], [100, 50]]) == [1, 0, 1]
