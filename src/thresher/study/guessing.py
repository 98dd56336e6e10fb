"""What a run that diverged counts as: a network that guesses the class."""

import math
from collections.abc import Iterable

from thresher.study.reported import POINTS

LOSSES = ("loss", "train_loss")
"""Metrics of which a run that diverged has none; it counts as guessing."""


def guess(metrics: Iterable[str], classes: int | None) -> dict[str, float]:
    """Return these metrics of guessing; of an unknown number of classes, 0 points and no loss."""
    every = dict.fromkeys(POINTS, 1 / classes if classes else 0.0)
    every |= dict.fromkeys(LOSSES, math.log(classes)) if classes else {}
    return {key: every[key] for key in metrics if key in every}
