"""Predict what a batch that grows with the noise scale saves against a constant one.

The critical batch grows during training. `--batch-schedule noise` follows it by the rule of
`batch_growth.grown_batch`, which is applied here to the curve of the pilots.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from thresher.training.batch_growth import grown_batch, largest_batch, measurements

WORTH = 0.1
"""Share of the steps that a schedule must save to be offered."""

CriticalCurve = Sequence[tuple[float, float]]
"""(share of the training, critical batch), ascending."""


@dataclass(frozen=True)
class ScheduleOffer:
    """A growing batch beside the constant one that it begins with."""

    phases: tuple[tuple[int, int], ...]
    """(first epoch, batch) as predicted."""
    steps: int
    constant_steps: int
    steps_saved: float
    """Share of the constant batch's steps."""
    samples: float
    samples_added: float
    """Share of the constant batch's samples."""
    command: str = ""
    """The command that trains it."""


def offer_schedule(
    curve: CriticalCurve, batch: int, samples: float, train_samples: int
) -> ScheduleOffer | None:
    """Predict a run that begins with `batch`, which alone would need `samples` to the target.

    Returns None if it saves less than a tenth of the steps, or without a curve. The command is
    left empty.
    """
    if not curve:
        return None
    shares, criticals = (np.array(column) for column in zip(*curve, strict=True))
    largest = largest_batch(batch, None, train_samples)
    phases, steps, needed, done = [(0, batch)], 0.0, 0.0, 0.0
    epoch, size = 0, batch
    while done < samples:
        critical = float(np.interp(done / samples, shares, criticals))
        before, size = size, grown_batch(size, largest, critical, measurements(steps))
        if size != before:
            phases.append((epoch, size))
        # An epoch at a larger batch brings training less far than one at the first.
        cost = (1 + size / critical) / (1 + batch / critical)
        part = min(train_samples / cost, samples - done)
        done += part
        needed += part * cost
        # An epoch ends with a smaller batch of what is left.
        steps += part * cost / train_samples * math.ceil(train_samples / size)
        epoch += 1
    constant = math.ceil(samples / train_samples * math.ceil(train_samples / batch))
    saved = 1 - steps / constant
    if saved < WORTH:
        return None
    return ScheduleOffer(
        phases=tuple(phases),
        steps=math.ceil(steps),
        constant_steps=constant,
        steps_saved=saved,
        samples=needed,
        samples_added=needed / samples - 1,
    )
