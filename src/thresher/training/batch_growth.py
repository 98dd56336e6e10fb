"""A batch that grows with the gradient noise scale: `batch_schedule` noise.

After each epoch the batch doubles if twice the batch is still a small share of the noise scale, as
measured in the last 1,000 steps. It never shrinks, and one doubling per epoch limits what a single
wrong estimate can do. The choice is part of the checkpoint.
"""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thresher.training.noise_estimate import NoiseEstimate

SAFE = 0.25
"""Largest batch, in critical batches: a quarter costs 1.25 times the samples of the smallest
batch, and 1.5 times if the critical batch is really half as large."""
EVERY = 10
"""Steps between measurements of the noise scale."""
MEASURED_LEAST = 10
"""Measurements before the first growth; fewer say little about the noise scale."""
GROWTH_MOST = 16
"""The largest batch by default, in first batches."""


def largest_batch(batch: int, bound: int | None, samples: int) -> int:
    """Return the largest power-of-two multiple of `batch` within `bound` and `samples`."""
    bound = min(GROWTH_MOST * batch if bound is None else bound, samples)
    largest = batch
    while 2 * largest <= bound:
        largest *= 2
    return largest


def next_batch(batch: int, largest: int, noise: "NoiseEstimate") -> int:
    """Return the batch of the next epoch after one at `batch`: the same, or twice it."""
    return grown_batch(batch, largest, noise.value, noise.measured)


def grown_batch(batch: int, largest: int, noise_scale: float | None, measured: int) -> int:
    """Return `next_batch` for a noise scale that so many measurements gave."""
    if noise_scale is None or measured < MEASURED_LEAST:
        return batch
    return 2 * batch if 2 * batch <= min(largest, SAFE * noise_scale) else batch


def measurements(steps: float) -> int:
    """Return how often the noise scale was measured after so many steps; the first measures it."""
    return math.ceil(steps / EVERY)
